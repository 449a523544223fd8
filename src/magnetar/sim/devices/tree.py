"""What a simulated device holds: bytes of files and names in directories, in its caches and on its medium.

A file's pending changes are writes and cuts. It grows at its end and is cut there; only its room is overwritten, which
is preallocated zeros or what a file held that is used again. A directory's are names that come, go and move.

Invariant: A file's `durable` with `pending` applied in order is `cache`, unless a sync failed or the medium did wrong.
           A power loss changes no byte that was synced and is not about to be cut or overwritten. Within one directory
           a rename leaves old or new, never neither; between two it leaves old, both, or new.
Order:     A power loss leaves a prefix of a directory's changes. Of a file's it leaves a prefix with the next write
           torn, or each page and the size as they were at some moment since the last sync: the kernel writes pages back
           in an order of its own.
Failure:   After a failed sync the pending changes are still seen and never durable. What is written after them later is
           durable after a gap of zeros, as on ext4. A broken rule raises the kernel's own error.
Read next: device.py, which adds faults and crashes
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

# --- files ------------------------------------------------------------------------------------------------------------


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


# --- directories ------------------------------------------------------------------------------------------------------


Node: TypeAlias = "FileImage | Directory"


class NameChange:
    """Equal only to itself: two removals of one name are two changes."""

    def __init__(self, directory: Directory, names: Mapping[str, Node | None], needs: NameChange | None) -> None:
        self.directory = directory
        self.names = names  # None: the name goes.
        self.needs = needs
        self.is_lost = False

    @property
    def is_pending(self) -> bool:
        return self in self.directory.pending

    def apply(self, entries: dict[str, Node]) -> None:
        for name, node in self.names.items():
            entries.pop(name, None)
            if node is not None:
                entries[name] = node


class Directory:
    def __init__(self, number: int, path: str) -> None:
        self.number = number
        self.path = path
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: deque[NameChange] = deque()

    def change(self, names: Mapping[str, Node | None], *, needs: NameChange | None = None) -> NameChange:
        change = NameChange(self, names, needs)
        change.apply(self.entries)
        self.pending.append(change)
        return change

    def commit(self) -> None:
        if self.pending:
            self._commit_through(self.pending[-1])

    def commit_some(self, random: Random) -> None:
        """What a power loss happens to find on the medium already; `settle` forgets the rest."""
        if self.pending and (count := survived_count(len(self.pending), random)):
            self._commit_through(self.pending[count - 1])

    def lose(self) -> None:
        for change in self.pending:
            change.is_lost = True
        self.pending.clear()

    def settle(self) -> None:
        self.pending.clear()
        self.entries = dict(self.durable)

    def is_sure(self, name: str) -> bool:
        """Every power loss would leave this name, and for what `durable` says."""
        return name in self.durable and all(name not in change.names for change in self.pending)

    def _commit_through(self, last: NameChange) -> None:
        while last.is_pending:
            change = self.pending.popleft()
            if change.needs is not None and change.needs.is_lost:
                change.is_lost = True
                continue
            change.apply(self.durable)
            if change.needs is not None:
                change.needs.directory._commit_through(change.needs)


class Tree:
    def __init__(self) -> None:
        self._births = 0
        self.root = Directory(0, "")
        self._directories = [self.root]

    # --- looking ---

    def find(self, path: str) -> Node | None:
        """None if it is not there; NotADirectoryError if a file is in the way."""
        node: Node = self.root
        for name in _parts(path):
            if not isinstance(node, Directory):
                raise _error(errno.ENOTDIR)
            if name not in node.entries:
                return None
            node = node.entries[name]
        return node

    def file(self, path: str) -> FileImage:
        node = self.find(path)
        if node is None:
            raise _error(errno.ENOENT)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR)
        return node

    def directory(self, path: str) -> Directory:
        node = self.find(path)
        if node is None:
            raise _error(errno.ENOENT)
        if not isinstance(node, Directory):
            raise _error(errno.ENOTDIR)
        return node

    def files(self) -> Iterator[FileImage]:
        """In the order of their paths."""
        return (node for node in _walk(self.root) if isinstance(node, FileImage))

    def used_bytes(self) -> int:
        """What all files hold together."""
        directories, size = [self.root], 0
        for directory in directories:
            for node in directory.entries.values():
                if isinstance(node, FileImage):
                    size += len(node.cache)
                else:
                    directories.append(node)
        return size

    def sure(self, path: str) -> FileImage | None:
        """The file, if every power loss would leave it under this name."""
        node: Node = self.root
        for name in _parts(path):
            if not isinstance(node, Directory) or not node.is_sure(name):
                return None
            node = node.durable[name]
        return node if isinstance(node, FileImage) else None

    # --- changing ---

    def create(self, path: str) -> FileImage:
        directory, name = self._place(path)
        image = FileImage(self._next_number(), path)
        directory.change({name: image})
        return image

    def make_dir(self, path: str) -> list[Directory]:
        """Makes it and its parents; returns the parents whose names changed."""
        changed: list[Directory] = []
        parts = _parts(path)
        for depth in range(1, len(parts) + 1):
            below = "/".join(parts[:depth])
            node = self.find(below)
            if node is None:
                changed.append(self._make_one(below))
            elif not isinstance(node, Directory):
                raise _error(errno.EEXIST if depth == len(parts) else errno.ENOTDIR)
        return changed

    def above(self, path: str) -> list[Directory]:
        """The directories above this one, the next one first."""
        parts = _parts(path)
        return [self.directory("/".join(parts[:depth])) for depth in reversed(range(len(parts)))]

    def _make_one(self, path: str) -> Directory:
        parent, name = self._place(path)
        made = Directory(self._next_number(), path)
        self._directories.append(made)
        parent.change({name: made})
        return parent

    def rename(self, old: str, new: str) -> None:
        image = self.file(old)
        if isinstance(self.find(new), Directory):
            raise _error(errno.EISDIR)
        (source, old_name), (target, new_name) = self._place(old), self._place(new)
        if old == new:
            return
        if source is target:
            source.change({old_name: None, new_name: image})
        else:
            source.change({old_name: None}, needs=target.change({new_name: image}))
        image.path = new

    def remove(self, path: str) -> None:
        self.file(path)
        directory, name = self._place(path)
        directory.change({name: None})

    def empty(self, path: str) -> None:
        """Everything below is gone, at once and for good."""
        directory = self.directory(path)
        directory.entries, directory.durable = {}, {}
        directory.pending.clear()
        self._directories = [node for node in _walk(self.root) if isinstance(node, Directory)]

    def lose_power(self, random: Random | None) -> None:
        """Unsynced changes survive as the random choices say; without any, nothing unsynced does."""
        if random is not None:
            for directory in self._directories:  # In order of birth, so that equal runs draw equal lots.
                directory.commit_some(random)
        for directory in self._directories:
            directory.settle()
        self._directories = []
        for node in _walk(self.root):  # A file whose name is gone is not met here, and its blocks are gone with it.
            if isinstance(node, Directory):
                self._directories.append(node)
        for image in self.files():
            image.settle(survived(image.durable, image.pending, random) if random else bytearray(image.durable))

    def _place(self, path: str) -> tuple[Directory, str]:
        parent, name = posixpath.split(path)
        return self.directory(parent), name

    def _next_number(self) -> int:
        self._births += 1
        return self._births


def _parts(path: str) -> list[str]:
    return path.split("/") if path else []


def _walk(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, Directory):
        for name in sorted(node.entries):
            inner = node.entries[name]
            inner.path = f"{node.path}/{name}" if node.path else name
            yield from _walk(inner)


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
