"""The client: one for all producers, consumers and readers of a cluster.

    async with PulsarClient("pulsar://localhost:6650", entropy) as client:
        producer = await client.producer("my-topic")
        await producer.send(b"hello")
        consumer = await client.consumer("my-topic", "my-subscription")
        message = await consumer.receive()
        await consumer.acknowledge(message)

Partitions are looked up once, when a producer, consumer or reader is opened. To use new ones, open another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from magnetar.client.brokers import Brokers
from magnetar.client.consuming.consumer import Consumer, Reader
from magnetar.client.consuming.incoming import Inbox
from magnetar.client.consuming.raw_reader import RawReader
from magnetar.client.consuming.subscriber import Subscriber
from magnetar.client.consuming.topic_consumer import TopicConsumer
from magnetar.client.producing.producer import Producer, TopicProducer
from magnetar.client.topics import full_name, partition_name
from magnetar.client.values import LATEST, ClientOptions, ConsumerOptions, MessageId, ProducerOptions, before
from magnetar.runtime.runtime import Entropy

_NAME_DIGITS: Final = 10


class PulsarClient:
    """Must be made on the loop that it is used on. `url`: pulsar://HOST:PORT[,HOST:PORT…]"""

    def __init__(self, url: str, entropy: Entropy, options: ClientOptions | None = None) -> None:
        self._brokers = Brokers(url, entropy, options or ClientOptions())
        self._opened: list[TopicProducer | Subscriber] = []

    async def producer(self, topic: str, options: ProducerOptions | None = None) -> Producer:
        topics = await self._topics(topic)
        parts = [TopicProducer(self._brokers, name, options or ProducerOptions()) for name in topics]
        await self._open(parts)
        return Producer(full_name(topic), parts)

    async def consumer(self, topic: str, subscription: str, options: ConsumerOptions | None = None) -> Consumer:
        inbox = Inbox()
        settings = options or ConsumerOptions()
        topics = await self._topics(topic)
        parts = [TopicConsumer(self._brokers, name, subscription, settings, inbox=inbox) for name in topics]
        await self._open(parts)
        return Consumer(full_name(topic), parts, inbox)

    async def reader(
        self,
        topic: str,
        start: MessageId = LATEST,
        *,
        is_inclusive: bool = False,
        queue_messages_max: int = 1_000,
        read_compacted: bool = False,
    ) -> Reader:
        """Begins after `start`, which is EARLIEST, LATEST or a message; with `is_inclusive` it begins at `start`."""
        inbox = Inbox()
        after = before(start) if is_inclusive else start
        options = ConsumerOptions(
            queue_messages_max=queue_messages_max, read_compacted=read_compacted, batch_index_acks=False
        )
        name = f"reader-{self._brokers.entropy.uuid().hex[:_NAME_DIGITS]}"
        topics = await self._topics(topic)
        parts = [TopicConsumer(self._brokers, part, name, options, start=after, inbox=inbox) for part in topics]
        await self._open(parts)
        return Reader(full_name(topic), parts, inbox, after)

    async def raw_reader(self, topic: str, start: MessageId) -> RawReader:
        """Returns a reader of whole entries, from `start` on. The topic has no partitions or is one, and is not
        created."""
        name = f"reader-{self._brokers.entropy.uuid().hex[:_NAME_DIGITS]}"
        reader = RawReader(self._brokers, full_name(topic), name, before(start))
        await self._open([reader])
        return reader

    async def check_reachable(self) -> None:
        """Returns when a broker of the URL has answered. Raises BrokerUnavailableError if none did."""
        await self._brokers.service()

    async def partitions_of(self, topic: str, *, create: bool = False) -> int:
        """Returns 0 for a topic without partitions. `create`: the broker may make the topic, if its policies allow
        it."""
        return await self._brokers.partitions_of(full_name(topic), create=create)

    async def topics_of(self, namespace: str) -> list[str]:
        """Returns all topics of TENANT/NAMESPACE; for partitioned ones, the partitions."""
        return await self._brokers.topics_of(namespace)

    async def aclose(self) -> None:
        """Closes everything that was opened here. Producers wait for what they sent."""
        opened, self._opened = self._opened, []
        await asyncio.gather(*(one.aclose() for one in opened))
        await self._brokers.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _topics(self, topic: str) -> list[str]:
        name = full_name(topic)
        partitions = await self._brokers.partitions_of(name)
        return [partition_name(name, number) for number in range(partitions)] or [name]

    async def _open(self, parts: Sequence[TopicProducer] | Sequence[Subscriber]) -> None:
        self._opened = [one for one in self._opened if one.error is None]
        self._opened += parts
        results = await asyncio.gather(*(part.open() for part in parts), return_exceptions=True)
        failed = [result for result in results if isinstance(result, BaseException)]
        if failed:
            await asyncio.gather(*(part.aclose() for part in parts))
            raise failed[0]
