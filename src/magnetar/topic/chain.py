"""LedgerChain: which positions of a topic exist, by arithmetic over the list of its ledgers.

The ledgers are in ascending order of their ids; all but the last are closed, and the last grows as entries are
confirmed. Entries of one ledger are 0 to n − 1. Some ledgers may be empty. Only the topic's log changes the chain;
cursors and dispatchers read it, and see it grow.

Limits:    The rank of a position is the number of entries at it or before it. Every question is one or two ranks, each
           found by bisection, so no cost depends on the number of entries or ledgers between two positions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from magnetar.topic.position import EARLIEST, Position


@dataclass(frozen=True, slots=True)
class LedgerSpan:
    """Describes one ledger of the chain."""

    ledger_id: int
    entries: int = 0
    size_bytes: int = 0
    closed_ms: int = 0
    """When it was closed; 0 while it is written."""
    kept: bytes = field(default=b"", repr=False)
    """Its element of the topic's node as it was read, which preserves unknown fields."""


class LedgerChain:
    """Answers questions about positions. A topic that was terminated and then trimmed has a chain without ledgers."""

    __slots__ = ("_before", "_counts", "_ids", "_last", "_sizes", "_spans")

    def __init__(self, spans: Iterable[LedgerSpan] = ()) -> None:
        self._spans = sorted(spans, key=lambda span: span.ledger_id)
        self._last = EARLIEST
        self._rebuild()

    def _rebuild(self) -> None:
        """Computes everything again after ledgers were added or dropped."""
        self._ids = [span.ledger_id for span in self._spans]
        self._counts = [span.entries for span in self._spans]
        self._sizes = [span.size_bytes for span in self._spans]
        self._before: list[int] = []  # For each ledger: the entries in all ledgers before it.
        total = 0
        for count in self._counts:
            self._before.append(total)
            total += count
        if total:
            self._last = self._at_rank(total)
        elif self._ids:  # It never moves back: positions after which nothing is left were confirmed anyway.
            self._last = max(self._last, Position(self._ids[0], -1))

    @property
    def spans(self) -> tuple[LedgerSpan, ...]:
        self._settle()
        return tuple(self._spans)

    @property
    def last_confirmed(self) -> Position:
        """The last entry that exists; without one, the place before the first one to come."""
        return self._last

    @property
    def end(self) -> Position:
        """Where the next entry will be, unless another ledger is begun before."""
        return Position(self._ids[-1], self._counts[-1]) if self._ids else self._last.next

    @property
    def first_position(self) -> Position:
        """The first entry that exists, or `end`."""
        return self._at_rank(1) if self.entries else self.end

    @property
    def entries(self) -> int:
        return self._before[-1] + self._counts[-1] if self._ids else 0

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes)

    def span_of(self, ledger_id: int) -> LedgerSpan | None:
        self._settle()
        at = bisect_left(self._ids, ledger_id)
        return self._spans[at] if at < len(self._ids) and self._ids[at] == ledger_id else None

    def contains(self, position: Position) -> bool:
        """Whether a confirmed entry is at this position."""
        at = bisect_left(self._ids, position.ledger_id)
        found = at < len(self._ids) and self._ids[at] == position.ledger_id
        return found and 0 <= position.entry_id < self._counts[at]

    def next_position(self, position: Position) -> Position:
        """Returns the first entry after this position, or `end`."""
        return self._at_rank_or_end(self._rank(position) + 1)

    def at_or_after(self, position: Position) -> Position:
        """Returns the first entry at or after this position, or `end`."""
        return position if self.contains(position) else self.next_position(position)

    def previous_position(self, position: Position) -> Position:
        """Returns the last entry before this position; without one, the place before the first."""
        rank = self._rank(position)
        return self._at_rank_or_start(rank - 1 if self.contains(position) else rank)

    def clamp(self, position: Position) -> Position:
        """Returns the nearest place at or before this position that a mark-delete can be at."""
        return position if self.contains(position) else self.previous_position(position)

    def position_after(self, after: Position, entries: int) -> Position:
        """Returns the position this number of entries after `after`, or the last one: 1 is the next one, 0 is
        `clamp`."""
        assert entries >= 0
        return self._at_rank_or_start(min(self._rank(after) + entries, self.entries))

    def entries_between(self, after: Position, up_to: Position) -> int:
        """Counts the entries with `after` < position ≤ `up_to`."""
        return max(0, self._rank(up_to) - self._rank(after))

    def bytes_between(self, after: Position, up_to: Position) -> int:
        """Estimates the size of these entries, as if the entries of one ledger were all of the same size."""
        return max(0, self._bytes_up_to(up_to) - self._bytes_up_to(after))

    def _bytes_up_to(self, position: Position) -> int:
        at = bisect_left(self._ids, position.ledger_id)
        size = sum(self._sizes[:at])
        if at < len(self._ids) and self._ids[at] == position.ledger_id and self._counts[at]:
            entries = min(max(position.entry_id + 1, 0), self._counts[at])
            size += self._sizes[at] * entries // self._counts[at]
        return size

    def _rank(self, position: Position) -> int:
        ids = self._ids
        at = bisect_left(ids, position.ledger_id)
        if at == len(ids):
            return self.entries
        if ids[at] != position.ledger_id:
            return self._before[at]
        return self._before[at] + min(max(position.entry_id + 1, 0), self._counts[at])

    def _at_rank(self, rank: int) -> Position:
        at = bisect_left(self._before, rank) - 1
        return Position(self._ids[at], rank - self._before[at] - 1)

    def _at_rank_or_end(self, rank: int) -> Position:
        return self._at_rank(rank) if rank <= self.entries else self.end

    def _at_rank_or_start(self, rank: int) -> Position:
        if rank > 0:
            return self._at_rank(rank)
        return Position(self._ids[0], -1) if self._ids else self._last

    # --- changes (by the log) -----------------------------------------------------------------------------------------

    def begin(self, ledger_id: int) -> None:
        """Adds a new ledger at the end."""
        assert not self._ids or ledger_id > self._ids[-1], "ledger ids only grow"
        self._settle()
        self._spans.append(LedgerSpan(ledger_id))
        self._rebuild()

    def grow(self, entries: int, size_bytes: int) -> None:
        """Sets the entries and the bytes of the last ledger."""
        assert entries >= self._counts[-1]
        self._counts[-1] = entries
        self._sizes[-1] = size_bytes
        if entries:
            self._last = Position(self._ids[-1], entries - 1)

    def close_last(self, closed_ms: int) -> None:
        self._settle()
        self._spans[-1] = replace(self._spans[-1], closed_ms=closed_ms)

    def drop(self, ledger_ids: Iterable[int]) -> None:
        gone = frozenset(ledger_ids)
        self._settle()
        self._spans = [span for span in self._spans if span.ledger_id not in gone]
        self._rebuild()

    def _settle(self) -> None:
        """Brings the last ledger's span up to date: `grow` runs for every run of entries, and makes no span."""
        if self._spans and self._spans[-1].entries != self._counts[-1]:
            self._spans[-1] = replace(self._spans[-1], entries=self._counts[-1], size_bytes=self._sizes[-1])
