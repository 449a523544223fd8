"""What happens in a world of topics: producers and consumers at work, and an operator who moves topics.

Producer:  it begins with whatever has no receipt yet, or now and then even before, message by message; then it
           continues with new ones, in batches if the seed says so. An error, or a moment's wish, and it begins anew.
Batches:   what was in a batch is repeated message by message. Deduplication knows how far a producer has come and no
           more: a batch that begins with a repeat and ends with a new message passes for a repeat, as in Pulsar.
Sequence:  a message's number says which one it is, forever; so a repeat is known as one.
Consumer:  it is opened, gets some messages, is closed or killed or thrown out; again, until the workload is over. It
           acknowledges with a receipt, in passing, all up to one, or never.
Hold:      in some seeds a consumer keeps what it does not answer at once, and acknowledges later, all of it at a time.
Calm:      when producers have ended and everything is healed, a consumer stays, now and then rejects a message, and
           keeps all others until nothing comes any more. So it reaches its limits, and no permits hide what dispatch
           forgets.
Move:      another broker shall serve a topic. The old one is told soon, or late, or stands still, or is killed. A
           broker that is not told continues, until it meets the new owner's fence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from magnetar.client import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Consumer,
    ConsumerOptions,
    Message,
    MessageId,
    Producer,
    ProducerOptions,
    PulsarClient,
)
from magnetar.errors import ClosedError, MagnetarError, ServiceNotReadyError
from magnetar.names import TopicName
from magnetar.sim.device import Crash
from magnetar.sim.machine import WORLD_BEGINS_MS
from magnetar.sim.seeds import seeded
from magnetar.sim.topics.cluster import BrokerNode, TopicCluster
from magnetar.sim.topics.compacting import compact
from magnetar.sim.topics.options import TopicOptions
from magnetar.sim.topics.watch import NOT_SAID, Progress, Sends, TopicWatch, plain

# --- producers --------------------------------------------------------------------------------------------------------

REPEATS_AT_ONCE = 4
_RESTART_S = 0.02
_END = 0.05  # How likely a life ends after a burst.
_DELAY_S_MAX = 0.6  # Of messages that ask to be delivered later.


class ProducerApp:
    def __init__(self, sends: Sends, options: TopicOptions, watch: TopicWatch, random: Random) -> None:
        self.is_over = False
        """It sends nothing new, and ends when everything is stored."""
        self._sends = sends
        self._options = options
        self._watch = watch
        self._random = random
        self._is_broken = False
        self._unheard: set[asyncio.Future[MessageId]] = set()
        """Sent, and the callback did not run yet, though the outcome may be known already."""

    async def run(self, client: PulsarClient) -> None:
        while not (self.is_over and self._sends.first_open == self._sends.sent):
            self._is_broken = False
            try:
                await self._repeat(client)
                if not self.is_over:
                    await self._go_on(client)
            except (MagnetarError, TimeoutError) as error:
                self._watch.note(f"{self._sends.producer} begins anew: {type(error).__name__}: {error}")
                self._watch.counters["producers begun anew"] += 1
                await asyncio.sleep(_RESTART_S * (0.5 + self._random.random()))

    # --- what may be there already ------------------------------------------------------------------------------------

    async def _repeat(self, client: PulsarClient) -> None:
        sends, random = self._sends, self._random
        first = sends.first_open
        if random.random() < self._options.rewind:
            first = max(0, first - random.randint(1, 6))
        if first == sends.sent:
            return
        producer = await self._open(client, first, batching=False)
        try:
            for start in range(first, sends.sent, REPEATS_AT_ONCE):
                end = min(start + REPEATS_AT_ONCE, sends.sent)
                await self._wait([self._send(producer, number) for number in range(start, end)])
        finally:
            await producer.aclose()

    # --- what is new --------------------------------------------------------------------------------------------------

    async def _go_on(self, client: PulsarClient) -> None:
        options, random = self._options, self._random
        producer = await self._open(client, self._sends.sent, batching=options.batching)
        try:
            waiting: list[asyncio.Future[MessageId]] = []
            while not self.is_over and random.random() > _END:
                for _ in range(random.randint(1, options.burst_max)):
                    await producer.wait_room()
                    self._check()  # Nothing new after a message whose fate is unknown.
                    waiting.append(self._send(producer, self._sends.sent))
                if random.random() < 0.3:
                    await self._wait(waiting)
                    waiting = []
                self._check()
                await asyncio.sleep(random.random() * options.think_s)
            await self._wait(waiting)
        finally:
            await producer.aclose()

    async def _open(self, client: PulsarClient, first: int, *, batching: bool) -> Producer:
        settings = ProducerOptions(
            name=self._sends.producer,
            batching=batching,
            batch_delay_s=0.002,
            batch_messages_max=self._options.batch_max,
            pending_messages_max=20,
            send_timeout_s=self._options.send_timeout_s,
            first_sequence_id=first,
        )
        return await client.producer(self._sends.topic, settings)

    def _send(self, producer: Producer, number: int) -> asyncio.Future[MessageId]:
        sends = self._sends
        due_ms = self._due_ms(number)
        future = producer.send_nowait(
            sends.payload(number), sequence_id=number, key=sends.key(number), deliver_at_ms=due_ms
        )
        sends.sent = max(sends.sent, number + 1)
        self._watch.counters["messages sent"] += 1
        self._unheard.add(future)
        future.add_done_callback(lambda done: self._on_answer(number, done))
        return future

    def _due_ms(self, number: int) -> int:
        """When the message may be delivered, by a clock that is right; 0: at once. It stays the same when the message
        is sent again."""
        due_s, options = self._sends.due_s, self._options
        if number >= self._sends.sent and options.delays and self._random.random() < options.delays:
            due_s[number] = self._watch.now + _DELAY_S_MAX * self._random.random()
            self._watch.counters["messages delayed"] += 1
        return int(WORLD_BEGINS_MS + due_s[number] * 1_000) if number in due_s else 0

    def _on_answer(self, number: int, done: asyncio.Future[MessageId]) -> None:
        self._unheard.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._on_receipt(number, done.result())
            return
        self._is_broken = True
        assert isinstance(error, MagnetarError), error
        is_unknown = error.retryable or error.outcome_unknown or isinstance(error, ClosedError)
        self._watch.counters["sends of unknown outcome" if is_unknown else "sends failed"] += 1
        if not is_unknown:
            self._sends.failed.setdefault(number, f"{type(error).__name__}: {error}")
            self._watch.note(f"{self._sends.producer} {number} failed for good: {error}")

    def _on_receipt(self, number: int, message_id: MessageId) -> None:
        watch, sends = self._watch, self._sends
        watch.counters["receipts"] += 1
        watch.note(f"{sends.producer} {number} is stored: {message_id}")
        watch.tell("on_receipt", sends, number, message_id)
        if sends.stored.get(number, NOT_SAID) == NOT_SAID:
            sends.stored[number] = message_id

    async def _wait(self, waiting: Sequence[asyncio.Future[MessageId]]) -> None:
        if waiting:
            await asyncio.wait(waiting)
        self._check()

    def _check(self) -> None:
        """A message that has failed a moment ago counts, though its callback comes only in the loop's next turn: what
        is sent after it would be stored, and make its repeat pass for a duplicate."""
        if self._is_broken or any(map(_has_failed, self._unheard)):
            raise ServiceNotReadyError("a message was not stored")


def _has_failed(sent: asyncio.Future[MessageId]) -> bool:
    return sent.done() and not sent.cancelled() and sent.exception() is not None


# --- consumers --------------------------------------------------------------------------------------------------------

TYPES = {"exclusive": EXCLUSIVE, "failover": FAILOVER, "shared": SHARED, "key_shared": KEY_SHARED}
RECEIVE_S = 0.1
_PAUSE_S = 0.1


class ConsumerApp:
    def __init__(self, name: str, progress: Progress, options: TopicOptions, watch: TopicWatch, random: Random) -> None:
        self.is_over = False
        self.is_calm = False
        self._held: list[Message] = []
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
            while not self.is_over and (self._random.random() > 0.01 or self.is_calm):
                try:
                    message = await consumer.receive(RECEIVE_S)
                except TimeoutError:
                    self._release(consumer)
                    continue
                received(self._watch, self._progress, self._name, message)
                await self._answer(consumer, message)
        finally:
            self._held.clear()
            await consumer.aclose()

    def _release(self, consumer: Consumer) -> None:
        """Acknowledges what it held, or gives everything back."""
        if not self._options.holds:
            return
        if not self.is_calm and self._random.random() < 0.1:
            self._held.clear()
            consumer.redeliver_unacknowledged()
        held, self._held = self._held, []
        for message in held:
            self._progress.asked.setdefault(plain(message.id), self._watch.now)
            consumer.acknowledge_nowait(message)

    async def _answer(self, consumer: Consumer, message: Message) -> None:
        random, watch, progress = self._random, self._watch, self._progress
        dice = random.random()
        if self.is_calm:
            if dice < 0.3 and not self._held:
                consumer.negative_acknowledge(message)
            else:
                self._held.append(message)
            return
        may_all = TYPES[progress.name] in (EXCLUSIVE, FAILOVER)
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
        elif self._options.holds and dice < 0.95:
            self._held.append(message)


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


# --- the workload -----------------------------------------------------------------------------------------------------


_NEVER_S = 1_000.0
_LOAD_LIMIT_S = 30.0


@dataclass(slots=True)
class Topic:
    name: str
    watch: TopicWatch
    owner: str

    @property
    def ledger_id(self) -> int | None:
        known = self.watch.chains.get(self.name)
        return known.spans[-1].ledger_id if known is not None and known.spans else None


class TopicWorkload:
    def __init__(self, cluster: TopicCluster, watch: TopicWatch) -> None:
        self.cluster = cluster
        self.options = cluster.topic_options
        self.watch = watch
        self.random: Random = seeded(f"{self.options.base.seed}/workload")
        self.topics = [Topic(name, watch, cluster.board.owners[name]) for name in self.options.topic_names]
        self.producers: list[ProducerApp] = []
        self.consumers: list[ConsumerApp] = []

    def begin(self) -> None:
        for number, topic in enumerate(self.topics):
            for subscription in self.options.subscriptions:
                self._add_consumers(number, topic, subscription)
            for which in range(self.options.producers):
                self._add_producer(f"producer-{number}-{which}", topic)

    def on_healed(self) -> None:
        """Producers and consumers are told to end when topics are served again (scenario.py)."""

    def _add_producer(self, name: str, topic: Topic) -> None:
        sends = self.watch.told.add_producer(topic.name, name, self.options.keys)
        app = ProducerApp(sends, self.options, self.watch, self._random(name))
        self.producers.append(app)
        self.cluster.add_app(name, app.run)

    def _add_consumers(self, number: int, topic: Topic, subscription: str) -> None:
        progress = self.watch.told.add_subscription(topic.name, subscription)
        for which in range(self.options.consumers):
            name = f"{subscription}-{number}-{which}"
            app = ConsumerApp(name, progress, self.options, self.watch, self._random(name))
            self.consumers.append(app)
            self.cluster.add_app(name, app.run)

    def _random(self, purpose: str) -> Random:
        return seeded(f"{self.options.base.seed}/workload/{purpose}")

    # --- the operator -------------------------------------------------------------------------------------------------

    async def direct(self, until_s: float) -> None:
        loop = self.cluster.world.loop
        gap_s = self.options.base.takeover_gap_s * 2 / len(self.topics)
        while loop.now < until_s:
            await asyncio.sleep(min(self.random.expovariate(1 / gap_s), 0.7))
            self.take_over(self.random.choice(self.topics))
            if self.options.compacts:
                self._compact(self.random.choice(self.topics))

    def _compact(self, topic: Topic) -> None:
        node = self.cluster.brokers[topic.owner]
        if node.broker is not None:
            self.cluster.spawn(node, self._compact_by(node, topic.name), f"{node.name} compacts {topic.name}")

    async def _compact_by(self, node: BrokerNode, topic: str) -> None:
        with suppress(MagnetarError, TimeoutError):
            await compact(self.cluster, node, topic)

    def take_over(self, topic: Topic, *, by: str | None = None) -> str | None:
        """Another broker gets the topic; None if none is there."""
        able = [name for name in self.cluster.running_owners() if name == by or (by is None and name != topic.owner)]
        if not able:
            return None
        random = self.random
        old, new = topic.owner, random.choice(able)
        fate = "left alone" if by is not None else self._fate()
        self.watch.note(f"{topic.name} goes from {old} to {new}; the old one is {fate}")
        self.watch.counters["take-overs"] += 1
        topic.owner = new
        after_s = 0.03 * random.random() if fate == "told" else random.choice((0.1, 0.5, _NEVER_S)) * random.random()
        self.cluster.board.move(topic.name, new, tell_old_after_s=after_s)
        self._befall(old, fate)
        if random.random() < 0.7:
            self.load_soon(topic)
        return new

    def load_soon(self, topic: Topic) -> None:
        """By its owner, which runs."""
        node = self.cluster.brokers[topic.owner]
        self.cluster.spawn(node, self._load(node, topic), f"{node.name} loads {topic.name}")

    def _fate(self) -> str:
        dice = self.random.random()
        if dice < self.options.informed:
            return "told"
        return self.random.choice(("left alone", "left alone", "paused", "killed"))

    def _befall(self, broker: str, fate: str) -> None:
        cluster = self.cluster
        if fate == "killed" and cluster.world.process(broker) is not None:
            self.watch.struck("owner killed")
            cluster.crash(broker, Crash.KILL)
        elif fate == "paused" and cluster.pause(broker, self.random.choice((0.05, 0.3, 1.0)) * self.random.random()):
            self.watch.struck("owner paused")

    async def _load(self, node: BrokerNode, topic: Topic) -> None:
        """As if a client asked for it at once."""
        await asyncio.sleep(0.03 * self.random.random())
        if node.broker is None:
            return
        try:
            async with asyncio.timeout(_LOAD_LIMIT_S) as limit:
                await node.broker.service.topic(TopicName.parse(topic.name), create=True)
        except (MagnetarError, TimeoutError) as error:
            self.watch.note(f"{node.name} did not load {topic.name}: {error}")
            if limit.expired():
                self.watch.violated("V2", f"{node.name} has not loaded {topic.name} within {_LOAD_LIMIT_S:g} s")
