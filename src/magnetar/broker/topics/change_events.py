"""`__change_events` of every namespace: the policies' access to their topic.

Where this broker owns the topic, it is read and written at its log; otherwise by a client (remote_events.py).

At the log it is read from its partitions, without a subscription, and compacted: other brokers trim what they have
compacted. Batches and compression of other brokers' clients are undone. A write is one message per event, by a producer
of this broker that no client has; durable when `publish` returns.

Failure:   A reader whose topic was unloaded reports that, and is opened again. So is one that had not read all that was
           compacted meanwhile: it would miss the deletions among it.
Read next: broker/policies/events.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from magnetar.broker.front_end import PULSAR
from magnetar.broker.policies.events import EventsReader, IncomingEvent, OutgoingEvent
from magnetar.broker.publishing.producers import Producer, ProducerOptions, Publish
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.remote_events import RemoteEvents
from magnetar.errors import (
    MagnetarError,
    MalformedEntryError,
    ServiceNotReadyError,
    TopicFencedError,
    TopicNotFoundError,
)
from magnetar.names import CHANGE_EVENTS, NamespaceName, TopicName
from magnetar.topic.compaction import CompactedLedger
from magnetar.topic.entry_format.messages import KeyedMessage, encode_message, keyed_messages
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST

if TYPE_CHECKING:
    from magnetar.broker.service import BrokerService

log = logging.getLogger(__name__)

_ENTRIES_MAX: Final = 200
_BYTES_MAX: Final = 2**20
_PUBLISH_TIMEOUT_S: Final = 30.0
_PRODUCER: Final = "magnetar-policies"


class ChangeEvents:
    """`EventsTopics` of this broker. `attach` it before it is used."""

    service: BrokerService

    def __init__(self) -> None:
        self._remote: RemoteEvents | None = None

    def attach(self, service: BrokerService) -> None:
        self.service = service

    async def aclose(self) -> None:
        if self._remote is not None:
            await self._remote.aclose()

    async def open_reader(self, namespace: NamespaceName) -> EventsReader | None:
        names = await self._names(namespace)
        if not await self._are_here(names):
            if not any([await self.service.exists(name) for name in names]):
                return None
            return await self._of_other_brokers().open_reader(namespace.topic(CHANGE_EVENTS))
        topics: dict[int, PersistentTopic] = {}
        for number, name in enumerate(names):
            try:
                topics[number] = await self._topic(name, create=False)
            except TopicNotFoundError:
                continue
        return ChangeEventsReader(self.service, topics) if topics else None

    async def publish(self, namespace: NamespaceName, event: OutgoingEvent) -> tuple[int, int, int]:
        names = await self._names(namespace)
        partition = 0 if len(names) == 1 else hash_to_partition(event.key, len(names))
        if not await self._are_here([names[partition]]):
            async with asyncio.timeout(_PUBLISH_TIMEOUT_S):
                return partition, *await self._of_other_brokers().publish(names[partition], event)
        topic = await self._topic(names[partition], create=True)
        writer = _Writer(self.service.entropy.wall_ms(), topic)
        async with asyncio.timeout(_PUBLISH_TIMEOUT_S):
            ledger_id, entry_id = await writer.write(event)
        return partition, ledger_id, entry_id

    async def _are_here(self, names: Sequence[TopicName]) -> bool:
        """Whether this broker owns all of them."""
        owners = [await self.service.ownership.owner_of(name) for name in names]
        return all(owner.is_here for owner in owners)

    def _of_other_brokers(self) -> RemoteEvents:
        if self._remote is None:
            self._remote = RemoteEvents(self.service.address.url_for(PULSAR), self.service.entropy)
        return self._remote

    async def _names(self, namespace: NamespaceName) -> list[TopicName]:
        base = namespace.topic(CHANGE_EVENTS)
        partitioned = await self.service.resources.partitioned_topics.get(base)
        return [base] if partitioned is None else [base.with_partition(each) for each in range(partitioned.partitions)]

    async def _topic(self, name: TopicName, *, create: bool) -> PersistentTopic:
        return await self.service.topics.get_persistent(name, create=create)


def hash_to_partition(key: str, partitions: int) -> int:
    """As Java clients choose a partition by default: `String.hashCode` without its sign."""
    value = 0
    for unit in memoryview(key.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return (value & 0x7FFF_FFFF) % partitions


class ChangeEventsReader:
    def __init__(self, service: BrokerService, topics: dict[int, PersistentTopic]) -> None:
        self._service = service
        self._topics = topics
        self._places = {number: _Place(topic) for number, topic in topics.items()}
        self._more = asyncio.Event()
        self._is_over = False
        for topic in topics.values():
            topic.log.watch_tail(self._more.set)
        service.topics.changed.append(self._on_changed)

    async def read_available(self) -> Sequence[IncomingEvent]:
        while True:
            self._more.clear()
            found, is_end = [], True
            for number, place in self._places.items():
                for entry in await place.read_on():
                    is_end = False
                    found += events_of(entry, number)
            if found or is_end:
                return found

    async def wait_for_more(self) -> None:
        await self._more.wait()
        if self._is_over:
            raise TopicFencedError("the topic of policies was unloaded")

    def _on_changed(self, name: TopicName, is_loaded: bool) -> None:
        if not is_loaded and any(topic.name == name for topic in self._topics.values()):
            self._is_over = True
            self._more.set()

    async def aclose(self) -> None:
        for topic in self._topics.values():
            topic.log.unwatch_tail(self._more.set)
        if self._on_changed in self._service.topics.changed:
            self._service.topics.changed.remove(self._on_changed)


class _Place:
    """How far a reader is in one partition."""

    def __init__(self, topic: PersistentTopic) -> None:
        self._view = topic.compaction.view
        self._next = EARLIEST
        self._compacted: CompactedLedger | None = self._view.compacted

    async def read_on(self) -> list[LogEntry]:
        """ServiceNotReadyError: begin again."""
        entries = await self._view.read(self._next, _ENTRIES_MAX, _BYTES_MAX)
        self._require_same_view()
        if entries:
            self._next = entries[-1].position.next
        return entries

    def _require_same_view(self) -> None:
        before, self._compacted = self._compacted, self._view.compacted
        if self._compacted is not before and self._compacted is not None and self._next <= self._compacted.horizon:
            raise ServiceNotReadyError("topic policies were compacted while they were read: read them again")


def events_of(entry: LogEntry, partition: int) -> list[IncomingEvent]:
    """None of an entry that cannot be unpacked: one bad message must not keep a namespace from serving."""
    try:
        return list(_events_in(entry, partition))
    except MalformedEntryError as error:
        log.warning("an event of policies is skipped", extra={"position": tuple(entry.position), "why": str(error)})
        return []


def _events_in(entry: LogEntry, partition: int) -> Iterator[IncomingEvent]:
    head = entry.head
    if not head.is_marker:
        position = (partition, *entry.position)
        for key, payload in keyed_messages(entry):
            yield IncomingEvent(key, payload, head.schema_version, position)


class _Writer:
    """One message by a producer that ends with it."""

    def __init__(self, now_ms: int, topic: PersistentTopic) -> None:
        self._now_ms = now_ms
        self._topic = topic
        self._done: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

    async def write(self, event: OutgoingEvent) -> tuple[int, int]:
        message = KeyedMessage(event.key, event.payload)
        body = encode_message(message, _PRODUCER, self._now_ms, event.schema_version, event.replicate_to)
        producer = Producer(ProducerOptions(producer_id=0, name=_PRODUCER), self)
        self._topic.publisher.publish((producer, 0, 0, 1, len(body), 0.0), body)
        return await self._done

    def published(
        self, producer: Producer, ledger_id: int, first_entry_id: int, run: Sequence[Publish], size: int
    ) -> None:
        del producer, run, size
        if not self._done.done():
            self._done.set_result((ledger_id, first_entry_id))

    def publish_failed(self, producer: Producer, run: Sequence[Publish], error: MagnetarError) -> None:
        del producer, run
        if not self._done.done():
            self._done.set_exception(error)

    def close_producer(self, producer: Producer) -> None:
        """It is not registered anywhere."""

    async def check_alive(self) -> bool:
        return True

    def hold(self, reason: str) -> None:
        """There is only one message."""

    def let_go(self, reason: str) -> None:
        """There is only one message."""
