"""FileImage: the bytes of one file, as the page cache holds them and as the medium does.

Invariant: `durable` with `pending` applied in order is `cache`, unless a sync failed or the medium did wrong.
Changes:   `pending` is a list of writes and cuts. A file grows at its end and is cut there; only its room is
           overwritten: preallocated zeros, or what a file held that is used again.
Lost:      after a failed sync the pending changes are forgotten: reads may still show their bytes, the medium never
           gets them. What is written behind them later is durable behind a gap of zeros, as on ext4.
Read next: image.py for what a power loss leaves

Survival: which of a file's unsynced bytes a power loss leaves.

In order:  a prefix of the changes, the next write torn at any byte.
Writeback: the kernel writes pages back in an order of its own, so each page (or sector) has the content of some moment
           since the last sync, and so has the size. Bytes inside the size that nothing wrote are zeros.
Never:     a byte that was synced, and is not about to be cut or overwritten, changes; both ways keep it by
           construction.
Size:      preallocated zeros are part of it. Beyond the size there is nothing, neither zeros nor garbage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Write:
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class Cut:
    size: int


Change: TypeAlias = Write | Cut


def apply(image: bytearray, change: Change) -> None:
    if isinstance(change, Cut):
        del image[change.size :]
    else:
        image.extend(bytes(max(0, change.offset - len(image))))
        image[change.offset : change.end] = change.data


class FileImage:
    def __init__(self, number: int, path: str) -> None:
        self.number = number  # In order of birth: what an inode's number is to a real file.
        self.path = path  # Its present name, or its last one.
        self.cache = bytearray()
        self.durable = bytearray()
        self.pending: list[Change] = []
        self.has_lost = False
        self._bad: list[tuple[int, int]] = []  # Ranges that cannot be read.

    def write(self, offset: int, data: bytes) -> None:
        self._change(Write(offset, data))

    def cut(self, size: int) -> None:
        self._change(Cut(size))
        self._bad = [(start, end) for start, end in self._bad if start < size]

    def _change(self, change: Change) -> None:
        apply(self.cache, change)
        self.pending.append(change)

    def commit(self) -> None:
        for change in self.pending:
            apply(self.durable, change)
        self.pending.clear()

    def lose(self) -> None:
        """A sync failed: the pending changes are clean pages now, which nobody will ever write."""
        self.has_lost = self.has_lost or bool(self.pending)
        self.pending.clear()

    def evict(self) -> None:
        """The cache forgets its clean pages: lost bytes show as what the medium has. The size stays known."""
        size = len(self.cache)
        image = bytearray(self.durable)
        for change in self.pending:
            apply(image, change)
        image.extend(bytes(max(0, size - len(image))))
        del image[size:]
        self.cache, self.has_lost = image, False

    def settle(self, survived: bytearray) -> None:
        """After a power loss this is the file, in the cache and on the medium."""
        self.durable, self.cache = survived, bytearray(survived)
        self.pending.clear()
        self.has_lost = False
        self._bad = [(start, end) for start, end in self._bad if start < len(survived)]

    def sure(self) -> bytes:
        """What every power loss would leave: durable, and not about to be cut or overwritten by other bytes."""
        starts = [
            change.size if isinstance(change, Cut) else change.offset
            for change in self.pending
            if isinstance(change, Cut) or self.durable[change.offset : change.end] != change.data
        ]
        return bytes(self.durable[: min(starts, default=len(self.durable))])

    def break_range(self, start: int, end: int) -> None:
        self._bad.append((start, end))

    def is_readable(self, start: int, end: int) -> bool:
        return all(end <= bad_start or start >= bad_end for bad_start, bad_end in self._bad)


_UNITS: Final = (512, 4_096)  # A device writes whole sectors, the kernel whole pages.


def survived(durable: bytearray, pending: Sequence[Change], random: Random) -> bytearray:
    if not pending:
        return bytearray(durable)
    return _in_order(durable, pending, random) if random.random() < 0.5 else _writeback(durable, pending, random)


def survived_count(count: int, random: Random) -> int:
    """How many of an ordered list survive: none and all are as likely as all that lies between."""
    lot = random.random()
    if lot < 0.25:
        return 0
    return count if lot < 0.5 else random.randint(0, count)


def _in_order(durable: bytearray, pending: Sequence[Change], random: Random) -> bytearray:
    image = bytearray(durable)
    count = survived_count(len(pending), random)
    for change in pending[:count]:
        apply(image, change)
    torn = pending[count] if count < len(pending) else None
    if isinstance(torn, Write) and random.random() < 0.5:
        apply(image, Write(torn.offset, torn.data[: random.randint(0, len(torn.data))]))
    return image


def _writeback(durable: bytearray, pending: Sequence[Change], random: Random) -> bytearray:
    ends = [change.end for change in pending if isinstance(change, Write)]
    pages = _Pages(durable, max(ends, default=0), len(pending), random)
    for number, change in enumerate(pending):
        pages.apply(number, change)
    del pages.image[_size(len(durable), pending, random) :]
    return pages.image


class _Pages:
    """The widest image there was; each page stops taking changes at a moment of its own."""

    def __init__(self, durable: bytearray, end: int, changes: int, random: Random) -> None:
        self.image = bytearray(durable) + bytes(max(0, end - len(durable)))
        self._unit = random.choice(_UNITS)
        self._changes = changes
        self._random = random
        self._moments: dict[int, int] = {}

    def apply(self, number: int, change: Change) -> None:
        if isinstance(change, Cut):
            start, end, data = change.size, len(self.image), None
        else:
            start, end, data = change.offset, change.end, change.data
        for page in range(start // self._unit, -(-end // self._unit)):
            if number < self._moment(page):
                first, last = max(start, page * self._unit), min(end, (page + 1) * self._unit)
                self.image[first:last] = bytes(last - first) if data is None else data[first - start : last - start]

    def _moment(self, page: int) -> int:
        if page not in self._moments:
            self._moments[page] = survived_count(self._changes, self._random)
        return self._moments[page]


def _size(size: int, pending: Sequence[Change], random: Random) -> int:
    """The size after some of the changes, or in the middle of a write."""
    count = survived_count(len(pending), random)
    for change in pending[:count]:
        size = _size_after(size, change)
    if count < len(pending) and isinstance(pending[count], Write):
        size = random.randint(size, max(size, _size_after(size, pending[count])))
    return size


def _size_after(size: int, change: Change) -> int:
    return min(size, change.size) if isinstance(change, Cut) else max(size, change.end)
