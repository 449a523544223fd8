"""A consumer: receives, and acknowledges this way and that: with a receipt, in passing, all up to one, never.

Life:      opened, some messages, closed or killed or thrown out; again, until the workload is over.
"""

from __future__ import annotations

import asyncio
from random import Random

from magnetar.client import EXCLUSIVE, FAILOVER, SHARED, Consumer, ConsumerOptions, Message, MessageId, PulsarClient
from magnetar.errors import MagnetarError
from magnetar.sim.topics.history import Progress
from magnetar.sim.topics.options import TopicOptions
from magnetar.sim.topics.watch import TopicWatch

TYPES = {"exclusive": EXCLUSIVE, "failover": FAILOVER, "shared": SHARED}
RECEIVE_S = 0.1
_PAUSE_S = 0.1


class ConsumerApp:
    def __init__(self, name: str, progress: Progress, options: TopicOptions, watch: TopicWatch, random: Random) -> None:
        self.is_over = False
        self._name = name
        self._progress = progress
        self._options = options
        self._watch = watch
        self._random = random

    async def run(self, client: PulsarClient) -> None:
        while not self.is_over:
            try:
                await self._live(client)
            except MagnetarError as error:
                self._watch.note(f"{self._name} begins anew: {type(error).__name__}: {error}")
                self._watch.counters["consumers begun anew"] += 1
                await asyncio.sleep(_PAUSE_S * (0.5 + self._random.random()))

    async def _live(self, client: PulsarClient) -> None:
        consumer = await open_consumer(client, self._progress, self._name, self._options.queue_max)
        try:
            while not self.is_over and self._random.random() > 0.01:
                try:
                    message = await consumer.receive(RECEIVE_S)
                except TimeoutError:
                    continue
                received(self._watch, self._progress, self._name, message)
                await self._answer(consumer, message)
        finally:
            await consumer.aclose()

    async def _answer(self, consumer: Consumer, message: Message) -> None:
        random, watch, progress = self._random, self._watch, self._progress
        dice = random.random()
        may_all = TYPES[progress.name] != SHARED
        if dice < 0.4:
            await acknowledge(watch, progress, consumer, message)
        elif dice < 0.55 and may_all:
            progress.asked_to.append((watch.now, plain(message.id)))
            await consumer.acknowledge_to(message)
            progress.confirmed_to = max(progress.confirmed_to, plain(message.id))
            watch.counters["acks confirmed"] += 1
            watch.note(f"{progress.name}: all up to {message.id} is acknowledged for good")
        elif dice < 0.75:
            progress.asked.setdefault(plain(message.id), watch.now)
            consumer.acknowledge_nowait(message)
        elif dice < 0.85:
            consumer.negative_acknowledge(message)
        elif dice < 0.87:
            consumer.redeliver_unacknowledged()


def plain(message_id: MessageId) -> MessageId:
    return MessageId(message_id.ledger_id, message_id.entry_id, message_id.batch_index)


async def open_consumer(client: PulsarClient, progress: Progress, name: str, queue_max: int) -> Consumer:
    options = ConsumerOptions(
        type=TYPES[progress.name],
        name=name,
        from_earliest=True,
        queue_messages_max=queue_max,
        redelivery_delay_s=0.05,
    )
    return await client.consumer(progress.topic, progress.name, options)


def received(watch: TopicWatch, progress: Progress, consumer: str, message: Message) -> None:
    watch.counters["messages received"] += 1
    watch.note(f"{consumer} receives {message.id} {message.payload.decode()} ({message.redelivery_count})")
    watch.tell("on_received", progress, consumer, message)
    progress.seen[plain(message.id)] = message.payload
    progress.batch_sizes[message.id[:2]] = message.batch_size


async def acknowledge(watch: TopicWatch, progress: Progress, consumer: Consumer, message: Message) -> None:
    progress.asked.setdefault(plain(message.id), watch.now)
    await consumer.acknowledge(message)
    progress.confirmed[plain(message.id)] = None
    watch.counters["acks confirmed"] += 1
    watch.note(f"{progress.name}: {message.id} is acknowledged for good")
