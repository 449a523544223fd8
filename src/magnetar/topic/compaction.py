"""Compaction of a topic: for every key, only its last message is kept, in a ledger of its own beside the topic.

The first of two phases reads the topic and notes where the last message of each key is; the second reads it again and
writes those messages to a new ledger. Both begin with what the previous compaction has left, so what was trimmed
meanwhile is not needed. Readers of the compacted view read the compacted ledger up to the cursor's position, and the
topic after it (`read`). The topic itself does not change, so other readers see all that is not trimmed.

A message with a key and without a payload deletes the key, in chunks or not. Keys are bytes: two keys that are not
UTF-8 are different keys, though clients may show them alike. All chunks of a key's last message stay, and those of
older ones go together. Chunks of several producers may be mixed, and may be in several ledgers. A message whose last
chunk has not been seen may be completed after the last entry that is compacted, so its chunks stay, and so does the
key's last whole message. It is given up when its producer has published something else after it: producers send the
chunks of a message one after another. A repeated chunk is a producer's retry and goes; a chunk whose predecessor is
missing cannot become a message, and goes.

Invariant: The cursor `__compaction` names the ledger (property `CompactedTopicLedger`), and stands at the last entry
           that was looked at: no later entry is trimmed before it is compacted. Both are stored in one write, and only
           then is the previous ledger deleted, as Apache's compactor does.
Order:     Entries of the ledger are in the order of the topic. A message is where its entry is; a chunked one where its
           last chunk is, because clients get it there.
Format:    The digest of the ledger is CRC32, as in Pulsar's; the password is empty.
Limits:    A run holds a key and a position per key, and a position per chunk in memory; no payloads. A bounded number
           of writes is in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from magnetar.config.topic import TopicConfig
from magnetar.errors import CompactionError, MagnetarError, MalformedEntryError, NoSuchLedgerError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.entry_format.head import Chunk, EntryHead, Text
from magnetar.topic.entry_format.messages import (
    NO_BATCH,
    decode_compacted,
    encode_compacted,
    encode_message_id,
    filtered_batch,
    keys_of,
    size_of,
)
from magnetar.topic.log.index import first_where
from magnetar.topic.log.ledger_roller import delete_ledgers
from magnetar.topic.log.log import TopicLog
from magnetar.topic.log.managed_ledger import LogContext
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST, Position
from magnetar.wire.bookkeeper.digests import DigestType
from magnetar.wire.bookkeeper.frames import Buffer

Place = tuple[int, int, int]
"""Ledger, entry, index in its batch."""


class _Chunked:
    """Is a message in chunks, as far as it was seen."""

    __slots__ = ("key", "positions", "producer", "size")

    def __init__(self, head: EntryHead) -> None:
        self.key = head.key
        self.producer = head.producer
        self.positions: list[Position] = []
        self.size = 0


class CompactionChoice:
    """Decides which messages of a topic are kept. Pure.

    Is asked in two phases: `note` for every entry in order; after that `what_is_left` for each.
    """

    def __init__(self, *, keeps_null_keys: bool) -> None:
        self._keeps_null_keys = keeps_null_keys
        self._latest: dict[Text, Place | _Chunked] = {}
        self._open: dict[Text, _Chunked] = {}  # By uuid.
        self._kept_chunks: frozenset[Position] | None = None

    @property
    def keys(self) -> int:
        return len(self._latest)

    # --- phase one ----------------------------------------------------------------------------------------------------

    def note(self, entry: LogEntry) -> None:
        assert self._kept_chunks is None, "phase two has begun"
        try:
            head = entry.head
            if head.is_marker:
                return
            if self._open:
                self._give_up_those_before(head)
            chunk = head.chunk
            if chunk is not None:
                self._note_chunk(entry, chunk)
                return
            keys = keys_of(entry)
        except MalformedEntryError:
            return
        for index, key, size in keys:
            if key is not None:
                self._note_message(key, (*entry.position, index), size)

    def _note_message(self, key: Text, place: Place | _Chunked, size: int) -> None:
        if size:
            self._latest[key] = place
        else:
            self._latest.pop(key, None)

    def _give_up_those_before(self, head: EntryHead) -> None:
        """Gives up earlier messages of this entry's producer, which sends nothing more of them."""
        producer, uuid = head.producer, head.uuid
        for other in [other for other, message in self._open.items() if message.producer == producer and other != uuid]:
            del self._open[other]

    def _note_chunk(self, entry: LogEntry, chunk: Chunk) -> None:
        uuid, number, parts = chunk
        if number == 0:
            self._open[uuid] = _Chunked(entry.head)  # A retry begins the message anew.
        message = self._open.get(uuid)
        if message is None or number < len(message.positions):
            return
        if number > len(message.positions):
            del self._open[uuid]
            return
        message.positions.append(entry.position)
        message.size += size_of(entry)
        if len(message.positions) >= parts:
            del self._open[uuid]
            if message.key is not None:
                self._note_message(message.key, message, message.size)

    # --- phase two ----------------------------------------------------------------------------------------------------

    def what_is_left(self, entry: LogEntry) -> Buffer | None:
        """Returns the entry as it is kept, or None if it is not. Raises MalformedEntryError if it cannot be read."""
        head = entry.head
        if head.is_marker:
            return None
        position = entry.position
        if head.chunk is not None:
            if head.key is None:
                return entry.data if self._keeps_null_keys else None
            return entry.data if position in self._chunks() else None
        if head.is_readable_batch:
            return filtered_batch(entry, lambda index, key: self._is_kept((*position, index), key))
        return entry.data if self._is_kept((*position, NO_BATCH), head.key) else None

    def _is_kept(self, place: Place, key: Text | None) -> bool:
        return self._keeps_null_keys if key is None else self._latest.get(key) == place

    def _chunks(self) -> frozenset[Position]:
        if self._kept_chunks is None:
            whole = (message for message in self._latest.values() if isinstance(message, _Chunked))
            self._kept_chunks = frozenset(_positions(whole)) | frozenset(_positions(self._open.values()))
        return self._kept_chunks


def _positions(messages: Iterable[_Chunked]) -> Iterable[Position]:
    return (position for message in messages for position in message.positions)


COMPACTED_DIGEST: Final = DigestType.CRC32
_WRITES_MAX: Final = 500
_WRITE_BYTES_MAX: Final = 16 * 2**20
_KNOWN_MAX: Final = 128  # Positions of entries that were looked at, and places where readers continue.

K = TypeVar("K")
V = TypeVar("V")


class CompactedLedger:
    """Is read by the topic's own positions: the first entry at or after a position is found by bisection, and the place
    where a reader continues is remembered, so that it costs nothing."""

    def __init__(self, reader: LedgerReader, horizon: Position) -> None:
        """Is called by `open` only."""
        self.ledger_id = reader.ledger_id
        self.horizon = horizon
        """The last entry of the topic that was looked at: after it, the topic itself is read."""
        self._reader = reader
        self._positions: OrderedDict[int, Position] = OrderedDict()
        self._going_on: OrderedDict[Position, int] = OrderedDict()
        self._end: Position | None = None  # Nothing is at or after it, as far as was seen.

    @classmethod
    async def open(cls, client: LedgerClient, ledger_id: int, horizon: Position) -> CompactedLedger:
        return cls(await client.open(ledger_id, digest_type=COMPACTED_DIGEST), horizon)

    @property
    def behind_horizon(self) -> Position:
        return self.horizon.next

    @property
    def entries(self) -> int:
        return self._reader.last_confirmed + 1

    @property
    def size_bytes(self) -> int:
        return self._reader.length or 0

    async def read(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]:
        """Returns at least one entry, unless none is at or after this position."""
        if self.is_behind_all(first):
            return []
        start = self._going_on.pop(first, None)
        if start is None:
            start = await self._find(first)
        if start >= self.entries:
            self._note_end(first)
            return []
        mean = max(1, self.size_bytes // self.entries)
        count = max(1, min(entries_max, -(-bytes_max // mean), self.entries - start))
        found = await self._reader.read_some(start, start + count - 1)
        entries = [decode_compacted(entry.payload) for entry in found]
        following = entries[-1].position.next
        if start + len(entries) < self.entries:
            _note(self._going_on, following, start + len(entries))
        else:
            self._note_end(following)
        return entries

    def is_behind_all(self, position: Position) -> bool:
        """Whether nothing is known to be at or after this position.

        The position may still be before the horizon: the messages between were deleted.
        """
        return position > self.horizon or (self._end is not None and position >= self._end)

    def _note_end(self, end: Position) -> None:
        self._end = end if self._end is None else min(self._end, end)

    async def last_entry(self) -> LogEntry | None:
        if not self.entries:
            return None
        (entry,) = await self._reader.read_some(self.entries - 1, self.entries - 1)
        return decode_compacted(entry.payload)

    async def _find(self, first: Position) -> int:
        async def reaches(entry_id: int) -> bool:
            return await self._position(entry_id) >= first

        return await first_where(0, self.entries, reaches)

    async def _position(self, entry_id: int) -> Position:
        known = self._positions.get(entry_id)
        if known is None:
            (entry,) = await self._reader.read_some(entry_id, entry_id)
            known = decode_compacted(entry.payload).position
            _note(self._positions, entry_id, known)
        return known


def _note(known: OrderedDict[K, V], key: K, value: V) -> None:
    known[key] = value
    while len(known) > _KNOWN_MAX:
        known.popitem(last=False)


class CompactedOutput:
    """Writes entries: `put` waits for the oldest when too much is in flight; `flush` waits for all.

    The first error ends it. A caller that gives up calls `abandon`, so that no outcome stays unread.
    """

    def __init__(self, writer: LedgerWriter) -> None:
        self.entries = 0
        self._writer = writer
        self._pending: deque[tuple[asyncio.Future[int], int]] = deque()
        self._bytes = 0

    async def put(self, data: bytes) -> None:
        self._pending.append((self._writer.enqueue(data), len(data)))
        self._bytes += len(data)
        self.entries += 1
        while len(self._pending) > _WRITES_MAX or self._bytes > _WRITE_BYTES_MAX:
            await self._oldest()

    async def flush(self) -> None:
        while self._pending:
            await self._oldest()

    async def _oldest(self) -> None:
        future, size = self._pending.popleft()
        self._bytes -= size
        try:
            await future
        except MagnetarError:
            self.abandon()
            raise

    def abandon(self) -> None:
        for future, _ in self._pending:
            future.cancel()
        self._pending.clear()


log = logging.getLogger(__name__)

COMPACTION_CURSOR: Final = "__compaction"
LEDGER_PROPERTY: Final = "CompactedTopicLedger"
_READ_ENTRIES: Final = 500
_READ_BYTES: Final = 2**20


class CompactionCursor(Protocol):
    """What compaction needs of the cursor `__compaction`."""

    @property
    def mark_delete(self) -> Position: ...
    @property
    def long_properties(self) -> Mapping[str, int]: ...
    def set_long_properties(self, properties: Mapping[str, int]) -> None: ...
    def acknowledge_to(self, position: Position) -> None: ...
    async def flush(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    ledger_id: int
    """-1 if there was nothing to compact."""
    entries_read: int
    entries_written: int
    keys: int


class TopicCompaction:
    """Knows what of a topic was compacted, and compacts more. It reads like a log (see broker/dispatch)."""

    def __init__(self, topic: str, topic_log: TopicLog, context: LogContext, config: TopicConfig) -> None:
        """`topic` is the name that users know."""
        self._topic = topic
        self._log = topic_log
        self._context = context
        self._config = config
        self.compacted: CompactedLedger | None = None
        """The ledger that holds what was compacted, or None."""
        self.is_running = False
        self.watch_tail = topic_log.watch_tail
        self.unwatch_tail = topic_log.unwatch_tail
        self.position_at_time = topic_log.position_at_time

    async def restore(self, cursor: CompactionCursor) -> None:
        """Opens the compacted ledger of a topic that has this cursor."""
        ledger_id = cursor.long_properties.get(LEDGER_PROPERTY)
        if ledger_id is None:
            return
        try:
            self.compacted = await CompactedLedger.open(self._context.client, ledger_id, cursor.mark_delete)
        except NoSuchLedgerError:
            log.error(
                "a compacted ledger does not exist any more", extra={"topic": self._topic, "ledger_id": ledger_id}
            )

    # --- the compacted view -------------------------------------------------------------------------------------------

    @property
    def chain(self) -> LedgerChain:
        return self._log.chain

    @property
    def last_confirmed(self) -> Position:
        horizon = self.compacted.horizon if self.compacted is not None else EARLIEST
        return max(self._log.last_confirmed, horizon)

    @property
    def is_terminated(self) -> bool:
        return self._log.is_terminated

    def read_nowait(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry] | None:
        if self.compacted is not None:
            if not self.compacted.is_behind_all(first):
                return None
            first = max(first, self.compacted.behind_horizon)
        return self._log.read_nowait(first, entries_max, bytes_max)

    async def read(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]:
        """Reads like `TopicLog.read`.

        Positions may be of ledgers that the topic no longer has: a reader continues at the next entry id, and not at
        the chain's next position.
        """
        compacted = self.compacted
        if compacted is not None and first <= compacted.horizon:
            entries = await compacted.read(first, entries_max, bytes_max)
            if entries:
                return entries
            first = compacted.behind_horizon
        return await self._log.read(first, entries_max, bytes_max)

    # --- compacting ---------------------------------------------------------------------------------------------------

    async def run(self, cursor: CompactionCursor) -> CompactionResult:
        """Compacts everything that is confirmed now. CompactionError if it runs already; if it raises, nothing has
        changed."""
        if self.is_running:
            raise CompactionError(f"topic {self._topic} is being compacted already")
        self.is_running = True
        try:
            return await self._run(cursor)
        finally:
            self.is_running = False

    async def _run(self, cursor: CompactionCursor) -> CompactionResult:
        up_to = self._log.last_confirmed
        before = self.compacted
        if up_to.entry_id < 0 or (before is not None and up_to <= before.horizon):
            return CompactionResult(ledger_id=-1, entries_read=0, entries_written=0, keys=0)
        choice, entries_read = await self._choose(up_to)
        writer = await self._make_ledger(up_to)
        try:
            written = await self._write(choice, up_to, writer)
            await writer.close()
            compacted = await CompactedLedger.open(self._context.client, writer.ledger_id, up_to)
        except BaseException:
            await writer.release()
            await delete_ledgers(self._context.client, [LedgerSpan(writer.ledger_id)])
            raise
        await self._adopt(compacted, cursor)
        if before is not None:
            await delete_ledgers(self._context.client, [LedgerSpan(before.ledger_id)])
        log.info(
            "a topic is compacted", extra={"topic": self._topic, "ledger_id": writer.ledger_id, "entries": written}
        )
        return CompactionResult(
            ledger_id=writer.ledger_id, entries_read=entries_read, entries_written=written, keys=choice.keys
        )

    async def _adopt(self, compacted: CompactedLedger, cursor: CompactionCursor) -> None:
        """Moves readers first, and then the cursor: once that has moved, the topic may be trimmed."""
        self.compacted = compacted
        cursor.set_long_properties({**cursor.long_properties, LEDGER_PROPERTY: compacted.ledger_id})
        cursor.acknowledge_to(compacted.horizon)
        await cursor.flush()

    async def _make_ledger(self, up_to: Position) -> LedgerWriter:
        config = self._config
        return await self._context.client.create(
            ensemble_size=config.ensemble_size,
            write_quorum=config.write_quorum,
            ack_quorum=config.ack_quorum,
            digest_type=COMPACTED_DIGEST,
            custom_metadata={
                "application": b"pulsar",
                "component": b"compacted-ledger",
                "pulsar/compactedTopic": self._topic.encode(),
                "pulsar/compactedTo": encode_message_id(up_to),
            },
        )

    async def _entries(self, up_to: Position) -> AsyncGenerator[LogEntry, None]:
        """Yields the compacted view, without entries that come meanwhile."""
        place = EARLIEST
        while entries := await self.read(place, _READ_ENTRIES, _READ_BYTES):
            for entry in entries:
                if entry.position > up_to:
                    return
                yield entry
            place = entry.position.next
            await asyncio.sleep(0)  # Entries from memory need no wait, so other tasks get their turn here.

    async def _choose(self, up_to: Position) -> tuple[CompactionChoice, int]:
        """Runs phase one: notes where the last message of each key is."""
        choice = CompactionChoice(keeps_null_keys=self._config.compaction_retain_null_key)
        count = 0
        async with aclosing(self._entries(up_to)) as entries:
            async for entry in entries:
                count += 1
                choice.note(entry)
        return choice, count

    async def _write(self, choice: CompactionChoice, up_to: Position, writer: LedgerWriter) -> int:
        """Runs phase two: writes those messages, in the order of the topic."""
        output = CompactedOutput(writer)
        try:
            async with aclosing(self._entries(up_to)) as entries:
                async for entry in entries:
                    kept = self._what_is_left(choice, entry)
                    if kept is not None:
                        await output.put(encode_compacted(entry.position, kept))
            await output.flush()
        finally:
            output.abandon()
        return output.entries

    def _what_is_left(self, choice: CompactionChoice, entry: LogEntry) -> Buffer | None:
        try:
            return choice.what_is_left(entry)
        except MalformedEntryError as error:
            log.warning(
                "an entry that cannot be read is kept as it is", extra={"topic": self._topic, "why": str(error)}
            )
            return entry.data

    async def delete(self) -> None:
        """Deletes the compacted ledger when the topic or the cursor is deleted."""
        compacted, self.compacted = self.compacted, None
        if compacted is not None:
            await delete_ledgers(self._context.client, [LedgerSpan(compacted.ledger_id)])
