"""AckedEntries: which entries of one ledger are acknowledged one by one, after the mark-delete position.

Format:    Everything before `floor` is covered by the mark-delete position and not counted here; `floor` to `base` is
           an unbroken run; from `base` on there is one byte per entry, 0 or 1, up to the highest acknowledged one or a
           little further. C code finds, counts and fills bytes, and one byte is little compared with the entry. Stored
           as a bitmap, bit i is entry i of the ledger (codec.py).
Limits:    The caller adds only entries that exist, so it is never longer than the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

_TO_DIGITS: Final = bytes([48, 49]) + bytes(254)
"""Maps flags to the digits of a binary number, which Python parses in linear time."""
_TO_FLAGS: Final = bytes(1 if byte == 49 else 0 for byte in range(256))
_GROWTH: Final = 1024
"""Bytes that are reserved at once after an acknowledged entry."""


class AckedEntries:
    __slots__ = ("base", "flags", "floor")

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self.base = floor
        self.flags = bytearray()

    def add(self, entry_ids: Sequence[int], entries: int) -> int:
        """Adds those that exist in a ledger of `entries` entries; returns how many were not acknowledged before."""
        first = entry_ids[0]
        if len(entry_ids) > 2 and entry_ids == list(range(first, first + len(entry_ids))):  # The usual case.
            return self.add_run(first, min(entry_ids[-1], entries - 1))
        flags, base = self.flags, self.base
        newly, room = 0, len(flags)
        for entry_id in entry_ids:
            index = entry_id - base
            if index >= room:
                if entry_id >= entries:
                    continue
                self._reserve(min(entry_id + _GROWTH, entries))
                room = len(flags)
            if index >= 0 and not flags[index]:
                flags[index] = 1
                newly += 1
        self._settle()
        return newly

    def _reserve(self, entries: int) -> None:
        """Makes room for entries below this id."""
        missing = entries - self.base - len(self.flags)
        if missing > 0:
            self.flags.extend(bytes(missing))

    def _settle(self) -> None:
        """Takes what has become an unbroken run out of the bytes."""
        flags = self.flags
        if flags and flags[0]:
            run = flags.find(0)
            if run < 0:
                run = len(flags)
            del flags[:run]  # Cheap: a bytearray moves its start.
            self.base += run

    def add_run(self, first: int, last: int) -> int:
        """Adds these, both included; returns how many were not acknowledged before."""
        start, stop = max(first - self.base, 0), last + 1 - self.base
        if stop <= start:
            return 0
        self._reserve(last + 1)
        newly = self.flags.count(0, start, stop)
        self.flags[start:stop] = b"\x01" * (stop - start)
        self._settle()
        return newly

    def add_bitmap(self, bitmap: int) -> None:
        """Adds a bitmap. Entries before `base` are acknowledged anyway."""
        combined = (self.to_bitmap() | bitmap) >> self.base
        self.flags = bytearray(bin(combined)[:1:-1].encode().translate(_TO_FLAGS))
        self._settle()

    def raise_floor(self, floor: int) -> None:
        """Records that the mark-delete position covers everything before this."""
        self.floor = max(self.floor, floor)
        if self.base < self.floor:
            del self.flags[: self.floor - self.base]
            self.base = self.floor
            self._settle()

    # --- questions ----------------------------------------------------------------------------------------------------

    def has(self, entry_id: int) -> bool:
        index = entry_id - self.base
        if index < 0:
            return entry_id >= 0  # The place before the first entry is not an entry.
        return index < len(self.flags) and self.flags[index] == 1

    def has_any(self) -> bool:
        return self.base > self.floor or 1 in self.flags

    def next_unacked(self, entry_id: int) -> int:
        """Returns the first id from this one on that is not acknowledged."""
        start = max(entry_id - self.base, 0)
        if start >= len(self.flags):
            return self.base + start
        found = self.flags.find(0, start)
        return self.base + (len(self.flags) if found < 0 else found)

    def last(self) -> int:
        """Returns the highest acknowledged id, or `floor` − 1."""
        return self.base + self.flags.rfind(1)

    def count(self, entries: int) -> int:
        """Counts the acknowledged entries from `floor` on, below this id."""
        run = max(min(self.base, entries) - self.floor, 0)
        return run + self.flags.count(1, 0, max(entries - self.base, 0))

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yields the first and last entry id of each run from `floor` on, ascending."""
        flags, base = self.flags, self.base
        if base > self.floor:
            yield self.floor, base - 1
        start = flags.find(1)
        while start >= 0:
            stop = flags.find(0, start)
            if stop < 0:
                stop = len(flags)
            yield base + start, base + stop - 1
            start = flags.find(1, stop)

    def range_count(self) -> int:
        return self.flags.count(b"\x00\x01") + (self.base > self.floor)

    def to_bitmap(self) -> int:
        """Returns a bitmap in which bit i is entry i."""
        run = ((1 << (self.base - self.floor)) - 1) << self.floor
        acked = self.flags[: self.flags.rfind(1) + 1]  # Mostly far shorter than what is reserved.
        acked.reverse()
        return run | (int(acked.translate(_TO_DIGITS), 2) << self.base if acked else 0)
