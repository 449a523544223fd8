"""A topic in memory with the real chain and the real acknowledgement state, subscriptions on it, and consumers that
keep what they get. Time is virtual.

    @pytest.mark.virtual_time
    async def test_what_is_published_is_delivered() -> None:
        world = World()
        consumer = world.connect("c", SHARED, permits=10)
        world.publish(3)
        await settle()
        assert consumer.ids == [0, 1, 2]
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

from magnetar.broker.dispatch.blockers import Blocker, BlockerKind, Explanation
from magnetar.broker.dispatch.context import DispatchLimits
from magnetar.broker.subscriptions.consumer import Consumer, Delivery, KeySharedSettings, SubscriptionType
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.config.dispatch import DispatchConfig
from magnetar.errors import MagnetarError
from magnetar.sim.loop import SimLoop
from magnetar.sim.machine import SimEntropy, WallClock
from magnetar.topic.chain import LedgerChain
from magnetar.topic.cursor.acks import AckedParts, AckState
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST, Position
from magnetar.wire.pulsar.entry import broker_entry_header
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata

EXCLUSIVE = SubscriptionType.EXCLUSIVE
SHARED = SubscriptionType.SHARED
FAILOVER = SubscriptionType.FAILOVER
KEY_SHARED = SubscriptionType.KEY_SHARED
ENTRY_BYTES = 100
LEDGER_ENTRIES = 50  # So that scenes cross the end of a ledger.


async def settle(turns: int = 1_000) -> None:
    """Until nothing can happen without time passing."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop), "time is virtual in this world"
    ready = loop.root.ready
    for _ in range(turns):
        await asyncio.sleep(0)
        if not ready:
            return
    raise AssertionError("it never comes to rest")


def body(metadata: MessageMetadata, payload: bytes = b"payload") -> bytes:
    return with_checksum(metadata.SerializeToString(), payload)


def message(index: int, *, batch: int = 1, key: str | None = None, **fields: object) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=index, publish_time=1_000 + index)
    if batch > 1:
        metadata.num_messages_in_batch = batch
    if key is not None:
        metadata.partition_key = key
    for name, value in fields.items():
        setattr(metadata, name, value)
    return broker_entry_header(index, 1_000 + index) + body(metadata)


class Topic:
    """An EntrySource. Entry n of the topic is at `position(n)`."""

    def __init__(self, ledger_entries: int = LEDGER_ENTRIES) -> None:
        self.chain = LedgerChain()
        self.chain.begin(1)
        self.entries: list[LogEntry] = []
        self.ledger_entries = ledger_entries
        self.is_terminated = False
        self.is_cached = True
        """Whether `read_nowait` finds anything."""
        self.cold_before = 0
        """Entries before this one are not cached."""
        self.failures: dict[Position, MagnetarError] = {}
        self.has_index = True
        """Whether entries carry an index."""
        self.reads: list[tuple[Position, int]] = []
        self.gate: asyncio.Event | None = None
        self._watchers: list[Callable[[], None]] = []

    def position(self, index: int) -> Position:
        return Position(1 + index // self.ledger_entries, index % self.ledger_entries)

    def index(self, position: Position) -> int:
        return (position.ledger_id - 1) * self.ledger_entries + position.entry_id

    @property
    def last_confirmed(self) -> Position:
        return self.chain.last_confirmed

    def append(self, data: bytes, messages: int | None = None) -> Position:
        position = self.position(len(self.entries))
        if position.ledger_id != self.chain.spans[-1].ledger_id:
            self.chain.begin(position.ledger_id)
        self.chain.grow(position.entry_id + 1, (position.entry_id + 1) * ENTRY_BYTES)
        self.entries.append(LogEntry(position, data, messages))
        return position

    def tell(self) -> None:
        for watcher in tuple(self._watchers):
            watcher()

    def watch_tail(self, callback: Callable[[], None]) -> None:
        self._watchers.append(callback)

    def unwatch_tail(self, callback: Callable[[], None]) -> None:
        self._watchers = [watcher for watcher in self._watchers if watcher != callback]

    def read_nowait(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry] | None:
        is_cached = self.is_cached and self.index(self.chain.at_or_after(first)) >= self.cold_before
        return self._run(first, entries_max) if is_cached else None

    async def read(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]:
        self.reads.append((first, entries_max))
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0.001)
        run = self._run(first, entries_max)
        for entry in run:
            if entry.position in self.failures:
                raise self.failures[entry.position]
        return run

    def _run(self, first: Position, entries_max: int) -> list[LogEntry]:
        assert entries_max > 0
        first = self.chain.at_or_after(first)
        if first > self.chain.last_confirmed:
            return []
        start = self.index(first)
        return self.entries[start : start + entries_max]

    @property
    def next_confirmed_index(self) -> int:
        return sum(entry.messages for entry in self.entries)

    async def index_bounds(self, position: Position) -> tuple[int, int] | None:
        if not self.has_index:
            return None
        if self.gate is not None:
            await self.gate.wait()
        at = self.index(position)
        first = sum(entry.messages for entry in self.entries[:at])
        return first, first + self.entries[at].messages

    async def position_at_time(self, publish_ms: int) -> Position:
        for entry in self.entries:
            if entry.head.metadata.publish_time >= publish_ms and self.chain.contains(entry.position):
                return entry.position
        return self.chain.end


class MemoryCursor:
    """A SubscriptionCursor over the real acknowledgement state."""

    def __init__(self, chain: LedgerChain, *, is_durable: bool = True, at: Position = EARLIEST) -> None:
        self.name = "sub"
        self.is_durable = is_durable
        self.acks = AckState(chain, chain.previous_position(at))
        self._chain = chain
        self.flushes = 0
        self.ranges_max = 10_000
        self.reset_gate: asyncio.Event | None = None

    @property
    def mark_delete(self) -> Position:
        return self.acks.mark_delete

    def acknowledge(self, positions: Sequence[Position]) -> int:
        return self.acks.acknowledge(positions)

    def acknowledge_batch(self, position: Position, still_unacked: Sequence[int], batch_size: int) -> bool:
        return self.acks.acknowledge_batch(position, still_unacked, batch_size)

    def acknowledge_to(
        self, position: Position, still_unacked: Sequence[int] | None = None, batch_size: int = 0
    ) -> None:
        self.acks.acknowledge_to(position, still_unacked, batch_size)

    def is_acknowledged(self, position: Position) -> bool:
        return self.acks.is_acknowledged(position)

    def ack_set_of(self, position: Position) -> Sequence[int] | None:
        return self.acks.ack_set_of(position)

    def next_unacknowledged(self, position: Position) -> Position:
        return self.acks.next_unacknowledged(position)

    @property
    def is_storable(self) -> bool:
        return self.acks.range_count() <= self.ranges_max

    @property
    def last_acknowledged(self) -> Position:
        return self.acks.last_acknowledged

    def backlog_entries(self) -> int:
        return self.acks.backlog_entries()

    def acked_parts(self, parts_max: int) -> AckedParts | None:
        return self.acks.acked_parts(parts_max)

    async def flush(self) -> None:
        self.flushes += 1

    def flush_soon(self) -> None: ...

    async def reset(self, position: Position, still_unacked: Sequence[int] | None = None, batch_size: int = 0) -> None:
        if self.reset_gate is not None:
            await self.reset_gate.wait()
        self.acks = AckState(self._chain, self._chain.previous_position(position))
        if still_unacked:
            self.acks.acknowledge_batch(self._chain.at_or_after(position), still_unacked, batch_size)


class Inbox:
    """A ConsumerSink that keeps everything, and the consumer in front of it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_writable = True
        self.deliveries: list[Delivery] = []
        self.calls = 0
        self.active: list[bool] = []
        self.ends = 0
        self.disconnects: list[str] = []
        self.consumer: Consumer

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        assert deliveries
        assert self.consumer.is_connected, "nothing may be sent to a consumer that has left"
        self.calls += 1
        self.deliveries.extend(deliveries)

    def active_changed(self, is_active: bool) -> None:
        self.active.append(is_active)

    def reached_end_of_topic(self) -> None:
        self.ends += 1

    def disconnect(self, why: str) -> None:
        self.disconnects.append(why)

    # --- what tests ask and do ---

    @property
    def ids(self) -> list[int]:
        """Indexes of the entries it got, in the order of their arrival."""
        return [self.world.topic.index(entry.position) for entry, _, _ in self.deliveries]

    @property
    def counts(self) -> list[int]:
        return [count for _, count, _ in self.deliveries]

    def positions(self, *indexes: int) -> list[Position]:
        return [self.world.topic.position(index) for index in indexes]

    def ack(self, *indexes: int) -> None:
        self.world.subscription.acknowledge(self.consumer, self.positions(*indexes))

    def ack_to(self, index: int) -> None:
        self.world.subscription.acknowledge_to(self.consumer, self.world.topic.position(index))

    def nack(self, *indexes: int) -> None:
        self.world.subscription.redeliver(self.consumer, self.positions(*indexes))

    def nack_all(self, epoch: int = 0) -> None:
        self.world.subscription.redeliver(self.consumer, None, epoch)

    def flow(self, permits: int) -> None:
        self.world.subscription.flow(self.consumer, permits)

    def close(self) -> None:
        self.world.subscription.remove_consumer(self.consumer)

    def clear(self) -> None:
        self.deliveries.clear()


class World:
    def __init__(
        self,
        *,
        limits: DispatchLimits | None = None,
        is_durable: bool = True,
        partition: int = -1,
        topic: Topic | None = None,
        **settings: int | bool,
    ) -> None:
        self.topic = topic or Topic()
        self.config = dataclasses.replace(DispatchConfig(), **settings)
        self.cursor = MemoryCursor(self.topic.chain, is_durable=is_durable)
        self.entropy = SimEntropy("world", WallClock(time=asyncio.get_running_loop().time))
        self.subscription = Subscription(
            "sub",
            self.cursor,
            self.topic,
            self.config,
            self.entropy,
            topic="persistent://public/default/orders",
            partition=partition,
            limits=limits,
        )
        self._ids = 0

    @property
    def now_ms(self) -> int:
        return self.entropy.wall_ms()

    def publish(self, count: int = 1, *, batch: int = 1, key: str | None = None, **fields: object) -> list[int]:
        first = len(self.topic.entries)
        for index in range(first, first + count):
            self.topic.append(message(index, batch=batch, key=key, **fields))
        self.topic.tell()
        return list(range(first, first + count))

    def publish_keys(self, keys: str) -> None:
        """One entry per letter, which is its key."""
        for key in keys:
            self.topic.append(message(len(self.topic.entries), key=key))
        self.topic.tell()

    def connect(
        self,
        name: str,
        subscription_type: SubscriptionType,
        *,
        permits: int = 1_000,
        priority: int = 0,
        key_shared: KeySharedSettings | None = None,
        **options: object,
    ) -> Inbox:
        inbox = Inbox(self, name)
        self._ids += 1
        inbox.consumer = Consumer(
            self._ids,
            name,
            inbox,
            subscription_type,
            priority=priority,
            key_shared=key_shared,
            **options,  # type: ignore[arg-type]
        )
        self.subscription.add_consumer(inbox.consumer)
        if permits:
            inbox.flow(permits)
        return inbox

    def blockers(self) -> dict[BlockerKind, Blocker]:
        return {blocker.kind: blocker for blocker in self.subscription.explain().blockers}

    async def explain(self) -> Explanation:
        return self.subscription.explain(await self.subscription.count_backlog())

    @property
    def backlog(self) -> int:
        return self.cursor.backlog_entries()
