"""Partition: what the front end keeps of a topic that is loaded, for all its Kafka clients together.

Here offsets become positions, since an offset is the index of a message. A partition has the fetches that wait for the
tail, and what is known of idempotent producers. Property `kafka.log_start` of the topic is the offset before which
clients have deleted all messages.

Order:     The idempotent producers are learnt from the log before the first batch of a Kafka client is appended
           here, so that no batch is missed.
Invariant: A consumer sees what is durable: the high watermark is the index after the last confirmed message.
Limits:    `_PLACES_MAX` places where consumers continue are remembered; another offset costs a search. Learning reads
           `_REPLAY_BYTES_MAX` of the newest entries: a repeat comes soon after its first attempt.
Failure:   When the topic is unloaded, all that wait are woken; they find that it is not served here.
Read next: producer_states.py; fetch.py, produce.py
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from magnetar.broker.kafka.producer_states import ProducerStates, is_idempotent
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.errors import KafkaRefusedError, MagnetarError, MalformedEntryError, TopicFencedError
from magnetar.runtime.slices import Slices
from magnetar.topic.entry_format import kafka
from magnetar.topic.entry_format.conversions import Conversions
from magnetar.topic.entry_format.head import broker_header_of
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST, Position
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.kafka.batches import read_head, records_of
from magnetar.wire.kafka.error_codes import ErrorCode

LEADER_EPOCH: Final = 0
"""The same for every owner: nothing that a client has read is ever cut off, so no client needs to compare epochs."""
LOG_START_PROPERTY: Final = "kafka.log_start"
_PLACES_MAX: Final = 1_000
_REPLAY_BYTES_MAX: Final = 64 * 2**20
_READ_ENTRIES: Final = 1_000
_READ_BYTES: Final = 4 * 2**20


class Found(NamedTuple):
    """What a read brought."""

    batches: list[Buffer]
    size: int


class Partition:
    """Is made for a loaded topic, and ended by `close` when that is unloaded."""

    def __init__(self, topic: PersistentTopic, conversions: Conversions, slices: Slices) -> None:
        self.topic = topic
        self.log = topic.log
        self.is_closed = False
        self.producers: ProducerStates | None = None
        self._conversions = conversions
        self._slices = slices
        self._learning: asyncio.Task[None] | None = None
        self._places: OrderedDict[int, Position] = OrderedDict()
        self._waiting: dict[Callable[[], None], None] = {}
        self._start: tuple[Position, int] | None = None
        self._deleting = asyncio.Lock()
        self._newest: dict[int, int] = {}
        """Closed ledger → the latest timestamp in it."""

    @property
    def high_watermark(self) -> int:
        return self.log.next_confirmed_index

    async def log_start(self) -> int:
        """Returns the offset of the oldest message that is not deleted; the next one if none is left."""
        return max(await self._first_offset(), int(self.log.properties.get(LOG_START_PROPERTY, 0)))

    async def _first_offset(self) -> int:
        first = self.log.chain.first_position
        if self._start is None or self._start[0] != first:
            if not self.log.chain.contains(first):
                return self.high_watermark
            self._start = (first, await self.log.index_of(first))
        return self._start[1]

    async def delete_before(self, offset: int) -> int:
        """Deletes the messages before this offset, for Kafka's clients. Returns where the partition begins now."""
        if not 0 <= offset <= self.high_watermark:
            raise _out_of_range(offset, f"the next offset is {self.high_watermark}")
        async with self._deleting:
            if offset > await self.log_start():
                await self.topic.set_property(LOG_START_PROPERTY, str(offset))
            kept = self.log.chain.previous_position(await self.log.position_at_index(await self.log_start()))
            unread = self.topic.cursors.slowest_mark_delete()
            if await self.log.trim(kept if unread is None else min(kept, unread)):
                self.topic.cursors.on_trimmed()
        return await self.log_start()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def watch(self, wake: Callable[[], None]) -> None:
        """Calls `wake` after each confirmed run, and at the end, until `unwatch`."""
        if not self._waiting:
            self.log.watch_tail(self._wake)
        self._waiting[wake] = None

    def unwatch(self, wake: Callable[[], None]) -> None:
        self._waiting.pop(wake, None)
        if not self._waiting:
            self.log.unwatch_tail(self._wake)

    def _wake(self) -> None:
        for wake in list(self._waiting):
            wake()

    def close(self) -> None:
        self.is_closed = True
        if self._learning is not None:
            self._learning.cancel()
        self._wake()

    # --- reading ------------------------------------------------------------------------------------------------------

    async def read(self, offset: int, bytes_max: int) -> Found:
        """Returns batches from the one that has this offset on: one at least, unless the offset is at the end.
        OFFSET_OUT_OF_RANGE if it is outside."""
        self.topic.last_used_s = self.topic.loop.time()  # A topic that is read is not deleted for being unused.
        if offset >= self.high_watermark:
            if offset > self.log.next_index:
                raise _out_of_range(offset, f"the next offset is {self.high_watermark}")
            return Found([], 0)
        start = await self.log_start()
        if offset < start:
            raise _out_of_range(offset, f"the first offset is {start}")
        first = self._places.get(offset) or await self.log.position_at_index(offset)
        entries = self.log.read_nowait(first, _READ_ENTRIES, bytes_max)
        if entries is None:
            entries = await self.log.read(first, _READ_ENTRIES, bytes_max)
        return await self._take(entries, bytes_max)

    async def _take(self, entries: list[LogEntry], bytes_max: int) -> Found:
        batches: list[Buffer] = []
        size = 0
        for entry in entries:
            batch, following = await self.batch_of(entry)
            if batches and size + len(batch) > bytes_max:
                break
            batches.append(batch)
            size += len(batch)
            self._remember(following, self.log.chain.next_position(entry.position))
        return Found(batches, size)

    def _remember(self, offset: int, position: Position) -> None:
        """Remembers where a consumer that has read up to here continues."""
        self._places[offset] = position
        self._places.move_to_end(offset)
        while len(self._places) > _PLACES_MAX:
            self._places.popitem(last=False)

    async def batch_of(self, entry: LogEntry) -> tuple[Buffer, int]:
        """Returns the entry as a batch, and the offset after it."""
        if kafka.is_kafka(entry.data):
            batch = kafka.batch_of(entry.data)
            head = kafka.head_of(batch)
            return batch, head.base_offset + head.last_offset_delta + 1
        await self._slices.turn()  # A conversion takes microseconds for each message.
        messages = _messages(entry)
        last, _ = broker_header_of(entry.data)
        first = last + 1 - messages if last is not None else await self.log.index_of(entry.position)
        return self._conversions.for_kafka(entry, first, messages, LEADER_EPOCH), first + messages

    # --- by time ------------------------------------------------------------------------------------------------------

    async def offset_at_time(self, timestamp: int) -> tuple[int, int] | None:
        """Returns offset and timestamp of the first record with this timestamp or a later one; None without one.

        Timestamps are the producers' own, and in no order: it looks through the log from its start. It keeps the
        latest timestamp of each closed ledger, so that the ledger need not be looked through again.
        """
        start = await self.log_start()
        for span in self.log.chain.spans:
            newest = self._newest.get(span.ledger_id)
            if not span.entries or (newest is not None and newest < timestamp):
                continue
            found = await self._find_in(span.ledger_id, timestamp, start)
            if found is not None:
                return found
        return None

    async def _find_in(self, ledger_id: int, timestamp: int, start: int) -> tuple[int, int] | None:
        chain = self.log.chain
        newest, position = -1, chain.at_or_after(Position(ledger_id, 0))
        while position.ledger_id == ledger_id and chain.contains(position):
            entries = await self.log.read(position, _READ_ENTRIES, _READ_BYTES)
            if not entries:
                break
            for entry in entries:
                if entry.position.ledger_id != ledger_id:
                    break
                batch, following = await self.batch_of(entry)
                newest = max(newest, read_head(batch).max_timestamp)
                found = self._first_record(batch, timestamp, start) if following > start else None
                if found is not None:
                    return found
            position = chain.next_position(entries[-1].position)
        span = chain.span_of(ledger_id)
        if span is not None and span.closed_ms:
            self._newest[ledger_id] = newest
            self._newest = {kept: at for kept, at in self._newest.items() if chain.span_of(kept) is not None}
        return None

    def _first_record(self, batch: Buffer, timestamp: int, start: int) -> tuple[int, int] | None:
        head = read_head(batch)
        if head.max_timestamp < timestamp:
            return None
        try:
            for record in records_of(batch, head, self._conversions.decompressed_bytes_max):
                if record.timestamp >= timestamp and head.base_offset + record.offset_delta >= start:
                    return head.base_offset + record.offset_delta, record.timestamp
        except KafkaRefusedError:  # It cannot be opened here: a consumer that begins with it misses nothing.
            return max(start, head.base_offset), head.max_timestamp
        return None

    # --- idempotent producers -----------------------------------------------------------------------------------------

    async def learn_producers(self) -> ProducerStates:
        """Returns what is known of idempotent producers, which is read from the log once. The caller sets the
        timeout."""
        if self.producers is None:
            if self._learning is None:
                self._learning = asyncio.get_running_loop().create_task(self._learn(), name="learn Kafka producers")
            learning = self._learning
            try:
                await asyncio.wait([learning])
            finally:
                if learning.done() and self._learning is learning:
                    self._learning = None
            if learning.cancelled():  # By `close`. The request itself was not cancelled.
                raise TopicFencedError(f"{self.topic.name} was unloaded: look it up again")
            learning.result()
        assert self.producers is not None
        return self.producers

    async def _learn(self) -> None:
        states = ProducerStates()
        position = self._replay_start()
        while self.log.chain.contains(position):
            for entry in await self.log.read(position, _READ_ENTRIES, _READ_BYTES):
                await self._slices.turn()
                _replay(states, entry)
                position = entry.position
            position = self.log.chain.next_position(position)
        self.producers = states  # In the turn in which the end was met: nothing of Kafka's was appended meanwhile.

    def _replay_start(self) -> Position:
        chain, left = self.log.chain, _REPLAY_BYTES_MAX
        for span in reversed(chain.spans):
            if span.entries and span.size_bytes >= left:
                mean = max(1, span.size_bytes // span.entries)
                return chain.at_or_after(Position(span.ledger_id, max(0, span.entries - left // mean)))
            left -= span.size_bytes
        return chain.at_or_after(EARLIEST)


def _replay(states: ProducerStates, entry: LogEntry) -> None:
    if not kafka.is_kafka(entry.data):
        return
    try:
        head = kafka.head_of(kafka.batch_of(entry.data))
    except MagnetarError:  # It is damaged, and cannot be repeated.
        return
    if is_idempotent(head):
        states.note(head, head.base_offset, is_stored=True)


def _messages(entry: LogEntry) -> int:
    try:
        return entry.messages
    except MalformedEntryError:
        return 1


def _out_of_range(offset: int, why: str) -> KafkaRefusedError:
    return KafkaRefusedError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} does not exist: {why}")
