"""Ranges of entries, one ledger each, and how they are divided among tasks.

Order:     from a topic's ledgers and two spots to ranges; from ranges to splits of about the same size in bytes. A
           split is the work of one task: ranges in the order of the log, of one topic or of several small ones. Splits
           in their order are the log in its order. A ledger is cut between entries, which count as equally large.
Limits:    a task costs Spark some 60 ms of processor time before its first row, as much as 20 MB of messages do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from magnetar.spark.cluster import SegmentLedger, Segments
from magnetar.spark.reading.stream_offsets import Spot

SPLIT_BYTES_MIN: Final = 8 * 2**20  # Below that a second task costs more than it brings.
SPLIT_BYTES_MAX: Final = 128 * 2**20  # The work that is lost when a task fails; smaller ones end more evenly.
_ENTRY_OVERHEAD: Final = 64  # So that even empty entries have a size.


@dataclass(frozen=True, slots=True)
class Range:
    """Entries `first` … `last` of a ledger, both included."""

    topic: str
    """The name of the partition, for a partitioned topic."""
    partition: int
    ledger: SegmentLedger
    first: int
    last: int
    skipped: int = 0
    """The number of messages of the first entry before the range."""
    stop: int | None = None
    """Messages of the last entry from this one on are not part of it; None: all of them are."""

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    @property
    def entry_bytes(self) -> float:
        return self.ledger.size_bytes / max(self.ledger.entries, 1) + _ENTRY_OVERHEAD

    @property
    def size_bytes(self) -> float:
        return self.entries * self.entry_bytes

    @property
    def first_index(self) -> int | None:
        """The index of its first entry's first message; None: only that entry, or the broker, knows."""
        return self.ledger.first_index if self.first == 0 else None

    def cut(self, entries: int) -> tuple[Range, Range]:
        """Returns the first `entries` entries, and the others."""
        assert 0 < entries < self.entries
        middle = self.first + entries
        return replace(self, last=middle - 1, stop=None), replace(self, first=middle, skipped=0)


@dataclass(frozen=True, slots=True)
class Split:
    ranges: tuple[Range, ...]


# --- between two spots ------------------------------------------------------------------------------------------------


def ranges_between(segments: Segments, partition: int, start: Spot, end: Spot) -> list[Range]:
    """Returns all listed entries that have a message at or after `start` and before `end`."""
    found = [_in_ledger(segments.topic, partition, ledger, start, end) for ledger in segments.ledgers]
    return [each for each in found if each is not None]


def _in_ledger(topic: str, partition: int, ledger: SegmentLedger, start: Spot, end: Spot) -> Range | None:
    ledger_id = ledger.ledger_id
    if not start.ledger_id <= ledger_id <= end.ledger_id:
        return None
    first, skipped = (start.entry_id, start.skipped) if ledger_id == start.ledger_id else (0, 0)
    last, stop = ledger.entries - 1, None
    if ledger_id == end.ledger_id:
        last = min(last, end.entry_id if end.skipped else end.entry_id - 1)
        stop = end.skipped or None if last == end.entry_id else None
    is_empty = first > last or (first == last and stop is not None and skipped >= stop)
    return None if is_empty else Range(topic, partition, ledger, first, last, skipped, stop)


# --- among tasks ------------------------------------------------------------------------------------------------------


def batch_splits(ranges: Sequence[Range], cores: int, partitions_min: int | None) -> list[Split]:
    """Splits a query over everything: every core has something to do, and no task has too much."""
    size = sum(each.size_bytes for each in ranges)
    count = max(_ceil(size / SPLIT_BYTES_MAX), min(cores, _ceil(size / SPLIT_BYTES_MIN)))
    return divide(ranges, max(count, partitions_min or 1))


def stream_splits(ranges: Sequence[Range], cores: int, partitions_min: int | None) -> list[Split]:
    """Splits one batch of a stream: at most one split for each core."""
    size = sum(each.size_bytes for each in ranges)
    return divide(ranges, max(min(cores, _ceil(size / SPLIT_BYTES_MIN)), partitions_min or 1))


def divide(ranges: Sequence[Range], count: int) -> list[Split]:
    """Returns `count` splits of about the same size; fewer if there are not enough entries."""
    share = sum(each.size_bytes for each in ranges) / max(count, 1)
    splits: list[list[Range]] = [[]]
    done = 0.0  # Bytes in all splits so far.
    for whole in ranges:
        rest: Range | None = whole
        while rest is not None:
            room = share * len(splits) - done if len(splits) < count else rest.size_bytes
            piece, rest = _cut_at(rest, round(room / rest.entry_bytes))
            if piece is not None:
                splits[-1].append(piece)
                done += piece.size_bytes
            if rest is not None:
                splits.append([])
    return [Split(tuple(each)) for each in splits if each]


def _cut_at(whole: Range, entries: int) -> tuple[Range | None, Range | None]:
    if entries <= 0:
        return None, whole
    return (whole, None) if entries >= whole.entries else whole.cut(entries)


def _ceil(number: float) -> int:
    return int(-(-number // 1))
