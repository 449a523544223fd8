"""FileImage: the bytes of one file, as the page cache holds them and as the medium does.

Invariant: `durable` with `pending` applied in order is `cache`, unless a sync failed or the medium did wrong.
Changes:   `pending` is a list of writes and cuts. A file grows at its end and is cut there; only its room is
           overwritten: preallocated zeros, or what a file held that is used again.
Lost:      after a failed sync the pending changes are forgotten: reads may still show their bytes, the medium never
           gets them. What is written behind them later is durable behind a gap of zeros, as on ext4.
Read next: survival.py for what a power loss leaves
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


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
        """What every power loss would leave: durable, and not about to be cut or overwritten."""
        starts = [change.size if isinstance(change, Cut) else change.offset for change in self.pending]
        return bytes(self.durable[: min(starts, default=len(self.durable))])

    def break_range(self, start: int, end: int) -> None:
        self._bad.append((start, end))

    def is_readable(self, start: int, end: int) -> bool:
        return all(end <= bad_start or start >= bad_end for bad_start, bad_end in self._bad)
