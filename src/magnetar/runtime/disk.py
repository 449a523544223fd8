"""Disk: the files of one component, with durability spelled out; and its paths, checked alike in both worlds.

Invariant: nothing survives a power loss unless `sync` (a file's bytes and length) or `sync_dir` (names: created,
           renamed, removed) returned.
Failure:   after a failed sync the unsynced bytes are lost, though a read may still show them. So the file refuses every
           further call with SyncFailedError, also when it is opened again, until the component starts anew with another
           Disk: no caller can retry an fsync by accident. A directory whose `sync_dir` failed refuses further
           `sync_dir` alike. After a failed append, `size` is unchanged, and its bytes are cut off again before the
           error is raised. If that is impossible, the file is treated as after a failed sync.
           A cancelled call is still carried out; its caller does not know the outcome.
Format:    paths are relative to the disk's root, with `/`, normalised; absolute ones and `..` are refused with
           DiskError.
Threads:   every call that touches the device is awaited and runs on the component's own thread, in the order of the
           calls; appending a group and making it durable is one hand-over (`append_and_sync`).
Read next: system_disk.py, and tests/contracts/disk.py for the behaviour both worlds must show
"""

from __future__ import annotations

import posixpath
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from magnetar.errors import DiskError

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class DiskUsage:
    total_bytes: int
    free_bytes: int


class File(ABC):
    """An open file. One owner; closed by it."""

    path: str
    """The path under which it was opened."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The bytes up to the end, appended ones included; preallocated room after the end does not count.

        An append that has not returned yet may already be counted.
        """

    @abstractmethod
    async def read(self, offset: int, length: int) -> bytes:
        """Returns up to `length` bytes; fewer only at the end of the file."""

    @abstractmethod
    async def append(self, chunks: Sequence[Buffer]) -> int:
        """Writes the chunks one after the other at the end; returns the offset of the first byte. Not durable yet.

        The chunks are not copied: neither they nor the sequence may change until this returns. A memoryview is one of
        bytes (its length is its size).
        """

    @abstractmethod
    async def append_and_sync(self, chunks: Sequence[Buffer]) -> int:
        """`append` and `sync` in one hand-over to the thread: the journal's group commit."""

    @abstractmethod
    async def truncate(self, size: int) -> None:
        """Cuts the end off. Not durable yet. Growing a file this way is refused with DiskError."""

    @abstractmethod
    async def preallocate(self, size: int) -> None:
        """Fills the file with zeros beyond its end, up to `size`, and syncs it; appends overwrite them.

        So appends need no new blocks and no change of the file's size, which makes their sync cheaper. `size` stays
        until the file is opened again: then the zeros that were not overwritten are content, and the reader must know
        its end by itself. DiskFullError if there is no room. A truncate, and the cut after a failed append, give the
        room back.
        """

    @abstractmethod
    async def sync(self) -> None:
        """Returns when all bytes of this file are durable; after a SyncFailedError it always raises."""

    @abstractmethod
    async def write_again(self, offset: int, data: Buffer) -> None:
        """Writes bytes that the file already shows at this place once more, and syncs the file.

        This makes durable what a former process left in the page cache. A `sync` alone does not: after a failed sync
        the kernel takes the pages for clean, and no later sync writes them. The call needs no room and changes neither
        the content nor the size. When it fails, the file is treated as after a failed sync.
        """

    @abstractmethod
    async def forget_cached(self, end: int) -> None:
        """Hints that durable bytes before this offset need not be kept in memory. Reads are unchanged."""

    @abstractmethod
    async def aclose(self) -> None:
        """Closes the file, a refused one too; repeated calls are harmless. Closing does not make anything durable."""


class Disk(ABC):
    """A directory tree that belongs to one component."""

    @abstractmethod
    async def open(self, path: str, *, create: bool = False, reuse: bool = False) -> File:
        """Opens for reading and appending. Missing: FileMissingError, or a new empty file if `create`.

        With `reuse` it is opened as if it were empty: its content is room, as `preallocate` makes it, and appends
        overwrite it from the beginning. The rest is content again when the file is next opened.
        One File per path at a time: each keeps its own idea of the end.
        """

    @abstractmethod
    async def make_dir(self, path: str) -> None:
        """Makes the directory and its parents, the root included; no error if it exists.

        Durable after `sync_dir` of the parents below the root; the root itself is durable at once.
        """

    @abstractmethod
    async def rename(self, old: str, new: str) -> None:
        """Renames one file, replacing `new` in one step if it exists.

        Durable after `sync_dir` of the directories involved.
        """

    @abstractmethod
    async def remove(self, path: str) -> None:
        """Removes one file. Durable after `sync_dir`."""

    @abstractmethod
    async def list(self, directory: str = "") -> list[str]:
        """Returns the sorted names in one directory, files and directories alike."""

    @abstractmethod
    async def sync_dir(self, directory: str = "") -> None:
        """Returns when the names in this directory are durable."""

    @abstractmethod
    async def usage(self) -> DiskUsage:
        """Returns the room on the device below the root."""

    @abstractmethod
    async def lock(self, path: str) -> None:
        """Takes an exclusive lock on a file until this process ends or `aclose`; FileLockedError if it is held.

        Another Disk of the same process is kept out too. The file stays when the lock ends.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Releases locks and ends the component's thread. Files must be closed before."""


def checked_path(path: str) -> str:
    """Returns the normal form of a path below the root; "" is the root itself."""
    if path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise DiskError(f"{path!r} is not a path below the root of this disk: it must be relative and without '..'")
    normal = posixpath.normpath(path)
    return "" if normal == "." else normal


def checked_file_path(path: str) -> str:
    normal = checked_path(path)
    if not normal:
        raise DiskError(f"{path!r} names the root of this disk, where a file's name is needed")
    return normal


def check_within(name: str, offset: int, length: int, end: int) -> None:
    """Raises DiskError unless the range lies inside a file that ends there."""
    if not 0 <= offset <= offset + length <= end:
        raise DiskError(f"cannot write {length} bytes at {offset} of {name} again: it has {end} bytes")
