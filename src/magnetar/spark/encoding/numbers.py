"""Sequence ids of entries.

Staged:    epoch (32 bits) | the Spark partition (12 bits) | the number of the entry (20 bits): each is known again.
           What does not fit is cut off, which only makes two entries that are far apart look alike.
Dedup:     epoch (32 bits) | the row, counted for each destination: a broker that has a row of this producer drops it.
"""

from __future__ import annotations

_EPOCH_SHIFT = 32
_PARTITION_SHIFT = 20
_PARTITION_MASK = 0xFFF
_ENTRY_MASK = 0xFFFFF


class TaskNumbers:
    """One for all destinations of a task."""

    def __init__(self, epoch: int, partition: int) -> None:
        self._base = (epoch << _EPOCH_SHIFT) + ((partition & _PARTITION_MASK) << _PARTITION_SHIFT)
        self._entries = 0

    def take(self, rows: int) -> tuple[int, int]:
        del rows
        number = self._base + (self._entries & _ENTRY_MASK)
        self._entries += 1
        return number, number


class RowNumbers:
    """One for each destination."""

    def __init__(self, epoch: int) -> None:
        self._next = epoch << _EPOCH_SHIFT

    def take(self, rows: int) -> tuple[int, int]:
        first = self._next
        self._next += rows
        return first, self._next - 1
