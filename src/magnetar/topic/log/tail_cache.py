"""The tail cache: the newest entries of every topic, so that consumers that keep up never touch a bookie.

Invariant: A topic's part is one gapless stretch of its log that ends with the last confirmed entry, over ledgers too.
Limits:    The bytes are bounded over all topics of a broker. The oldest run of entries is dropped first, whatever its
           topic, and whether or not its readers have passed it. A topic that is closed gives its part back at once
           (`clear`). Adding, finding and evicting are per run, not per entry. A read is a slice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

ENTRY_BYTES: Final = 512
"""What an entry costs besides its data: objects, and its metadata once that is parsed."""
_RUNS_MAX: Final = 2**16  # Bounds the runs of cleared topics, which may wait after the run of a topic that is not.
_SHIFT_MIN: Final = 256  # Fewer dropped entries than this are not worth moving the others.


class TailCache:
    """Holds the newest entries of all topics of a broker."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._runs: deque[tuple[TopicTail, int]] = deque()
        """The oldest first: the topic's tail, and the number of the run's last entry there."""

    def tail(self) -> TopicTail:
        """Makes the part of a topic that is opened."""
        return TopicTail(self)

    def on_added(self, tail: TopicTail, end: int, size: int) -> None:
        self.bytes_held += size
        runs = self._runs
        runs.append((tail, end))
        while self.bytes_held > self.bytes_max or len(runs) > _RUNS_MAX or runs[0][0].has_dropped(runs[0][1]):
            oldest, oldest_end = runs.popleft()
            oldest.drop_before(oldest_end)
            if not runs:
                break


class _Stretch(NamedTuple):
    """Describes consecutive entries of one ledger."""

    ledger_id: int
    first_entry_id: int
    first_number: int


class TopicTail:
    """Is a topic's part. Entries are numbered from 0; those from `_first` on are held."""

    __slots__ = ("_cache", "_ends", "_entries", "_first", "_offset", "_size_before", "_stretches")

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self._entries: list[LogEntry] = []
        self._ends: list[int] = []
        """For each entry: the size of all entries up to it, since the beginning."""
        self._offset = 0
        """The number of `_entries[0]`, which may be dropped already."""
        self._first = 0
        self._size_before = 0
        """The size of all that came before `_entries[0]`."""
        self._stretches: list[_Stretch] = []

    def __len__(self) -> int:
        return self._offset + len(self._entries) - self._first

    def add(self, ledger_id: int, first_entry_id: int, entries: Sequence[LogEntry]) -> None:
        """Adds the next entries that are confirmed."""
        if not self._cache.bytes_max:
            return
        number = self._offset + len(self._entries)
        if not self._stretches or self._stretches[-1].ledger_id != ledger_id:
            self._stretches.append(_Stretch(ledger_id, first_entry_id, number))
        ends = self._ends
        before = ends[-1] if ends else self._size_before
        if len(entries) == 1:
            ends.append(before + len(entries[0].data) + ENTRY_BYTES)
        else:
            sizes = [len(entry.data) + ENTRY_BYTES for entry in entries]
            sizes[0] += before
            ends.extend(accumulate(sizes))
        self._entries.extend(entries)
        self._cache.on_added(self, number + len(entries), ends[-1] - before)

    def read(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry] | None:
        """Returns the entries from this one on, at least one; None if it is not held."""
        number = self._number_of(first)
        if number is None:
            return None
        at = number - self._offset
        before = self._ends[at - 1] if at else self._size_before
        most = min(at + entries_max, len(self._entries))
        end = bisect_right(self._ends, before + bytes_max, at + 1, most) if at + 1 < most else at + 1
        return self._entries[at:end]

    def _number_of(self, position: Position) -> int | None:
        ledger_id, entry_id = position
        end = self._offset + len(self._entries)
        for stretch in reversed(self._stretches):
            if stretch.ledger_id == ledger_id:
                number = stretch.first_number + entry_id - stretch.first_entry_id
                return number if max(self._first, stretch.first_number) <= number < end else None
            if stretch.ledger_id < ledger_id:
                return None
            end = stretch.first_number
        return None

    def clear(self) -> None:
        self.drop_before(self._offset + len(self._entries))

    def has_dropped(self, number: int) -> bool:
        return number <= self._first

    def drop_before(self, number: int) -> None:
        """Drops the entries with a lower number."""
        if number <= self._first:
            return
        first, last = self._first - self._offset, number - self._offset
        before = self._ends[first - 1] if first else self._size_before
        self._cache.bytes_held -= self._ends[last - 1] - before
        self._first = number
        if last == len(self._entries) or (last >= _SHIFT_MIN and last * 2 >= len(self._entries)):
            self._shift(last)
        else:  # The list is shortened later; its entries are dropped now.
            self._entries[first:last] = [_GONE] * (last - first)

    def _shift(self, count: int) -> None:
        self._size_before = self._ends[count - 1]
        del self._entries[:count]
        del self._ends[:count]
        self._offset += count
        while len(self._stretches) > 1 and self._stretches[1].first_number <= self._first:
            self._stretches.pop(0)


_GONE: Final = LogEntry(Position(-1, -1), b"", 0)
