"""A compacted ledger, which has a topic without the messages that later ones have replaced: reading and writing it.

Order:     Entries are in the order of the topic. `CompactedLedger` reads them by the topic's own positions: the first
           entry at or after a position is found by bisection, and the place where a reader continues is remembered, so
           that it costs nothing. `CompactedOutput` writes them, a bounded number at a time.
Format:    The digest is CRC32, as in Pulsar's compacted ledgers; the password is empty.
Read next: compaction.py
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Final, TypeVar

from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.topic.entry_format.compacted import decode_compacted
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.digests import DigestType

COMPACTED_DIGEST: Final = DigestType.CRC32
_WRITES_MAX: Final = 500
_WRITE_BYTES_MAX: Final = 16 * 2**20
_KNOWN_MAX: Final = 128  # Positions of entries that were looked at, and places where readers continue.

K = TypeVar("K")
V = TypeVar("V")


class CompactedLedger:
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
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if await self._position(middle) < first:
                low = middle + 1
            else:
                high = middle
        return low

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
