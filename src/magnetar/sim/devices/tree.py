"""Directory: names as everybody sees them now, and as the medium has them.

Pending:   creating, renaming and removing are changes in the order they were made; `sync_dir` makes all of a
           directory's changes durable. A power loss leaves a prefix of them, chosen per directory.
Rename:    within one directory it is one change: old or new, never neither. Between two directories it is an addition
           and a removal, and the removal is never durable without the addition: old, both, or new.
Lost:      after a failed `sync_dir` the pending changes are still seen and will never be durable, nor will a removal
           whose addition is among them.

Tree: the directories and files of one simulated device. Pure state; a broken rule raises the kernel's own error.

Paths are relative to the device, normalised; "" is the root, which is always there and durable.
Read next: device.py, which adds faults and crashes
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections import deque
from collections.abc import Iterator, Mapping
from random import Random
from typing import TypeAlias

from magnetar.sim.devices.image import FileImage, survived, survived_count

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
