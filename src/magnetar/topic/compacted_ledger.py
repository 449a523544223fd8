"""CompactedLedger: a topic without what later messages have replaced, read by the topic's own positions.

Order:     entries are in the order of the topic; the first one at or behind a position is found by bisection, and a
           reader that goes on is remembered, so it costs nothing.
Digest:    CRC32, as Pulsar has it for these ledgers; the password is empty.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeVar

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.reader import LedgerReader
from magnetar.topic.compacted_entries import decode_compacted
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.digests import DigestType

COMPACTED_DIGEST: Final = DigestType.CRC32
_KNOWN_MAX: Final = 128  # Positions of entries that were looked at, and places where readers go on.

K = TypeVar("K")
V = TypeVar("V")


class CompactedLedger:
    def __init__(self, reader: LedgerReader, horizon: Position) -> None:
        """For `open` only."""
        self.ledger_id = reader.ledger_id
        self.horizon = horizon
        """The last entry of the topic that was looked at: behind it, the topic itself is read."""
        self._reader = reader
        self._positions: OrderedDict[int, Position] = OrderedDict()
        self._going_on: OrderedDict[Position, int] = OrderedDict()
        self._end: Position | None = None  # Nothing is at or behind it, as far as somebody has seen.

    @classmethod
    async def open(cls, client: LedgerClient, ledger_id: int, horizon: Position) -> CompactedLedger:
        return cls(await client.open(ledger_id, digest_type=COMPACTED_DIGEST), horizon)

    @property
    def behind_horizon(self) -> Position:
        return Position(self.horizon.ledger_id, self.horizon.entry_id + 1)

    @property
    def entries(self) -> int:
        return self._reader.last_confirmed + 1

    @property
    def size_bytes(self) -> int:
        return self._reader.length or 0

    async def read(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]:
        """At least one, unless there is none at or behind this position."""
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
        last = entries[-1].position
        behind = Position(last.ledger_id, last.entry_id + 1)
        if start + len(entries) < self.entries:
            _note(self._going_on, behind, start + len(entries))
        else:
            self._note_end(behind)
        return entries

    def is_behind_all(self, position: Position) -> bool:
        """Whether nothing is known to be at or behind this position, which may still be before the horizon: what is
        between was deleted."""
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
