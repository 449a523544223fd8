"""A real file: appended at the end by vectored writes, made durable by fdatasync.

Order:     `pwritev` at the known end, so there is no file position to get wrong. The caller's chunks go to the kernel
           as they are; a short write continues from the middle of a chunk through a memoryview. Bytes that are appended
           without a sync are given to the device every few megabytes: the sync that follows has less to do at once, and
           other files' syncs do not wait for it. fdatasync flushes the bytes and, as the file has grown, its size. It
           need not flush a size that has shrunk, so the first sync after a truncate is a full fsync.
           Room is zeros after the end, written and synced, or the bytes of a file that is used again. fallocate would
           make room quicker, but then the first write to each block changes the file's metadata, which fdatasync has
           to write, too: slower than no room at all.
Failure:   after a failed sync, or a torn append that cannot be cut off, `refusal` is set for good. `translate` makes
           our errors from OSError, so that every message names the file and the reason. `SystemCalls` are the calls
           that decide about durability, as an object: a test passes one that fails on demand.
Threads:   `SystemFile` is the loop's half and only hands over; `OpenFile` does the work on the disk's thread. The
           functions that read a library's own files block: call them on an offload lane.
Read next: disk.py for the promises
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from crc32c import crc32c

from magnetar.errors import ClosedError, DiskError, DiskFullError, FileCutError, FileMissingError, SyncFailedError
from magnetar.runtime.disk import Buffer, File, check_within
from magnetar.runtime.runtime import Offload

_PART_BYTES = 2**20


def first_line_of(path: str) -> str | None:
    """Returns None if the file does not exist."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    except FileNotFoundError:
        return None


def size_of(path: str) -> int | None:
    """Returns None if the file does not exist."""
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return None


def sync_file(path: str) -> None:
    """Makes the file's present content durable, whichever process wrote it. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum_of_start(path: str, size: int) -> int | None:
    """Returns the CRC-32C of the first bytes of a file; None if it has fewer."""
    checksum, left = 0, size
    with Path(path).open("rb") as file:
        while left and (part := file.read(min(left, _PART_BYTES))):
            checksum = crc32c(part, checksum)
            left -= len(part)
    return None if left else checksum


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_IOV_MAX: Final = 1024  # Linux's limit of buffers in one vectored write.
_ZEROS: Final = bytes(256 * 2**10)
_PAGE_BYTES: Final = 4096
_WRITE_OUT_BYTES: Final = 4 * 2**20  # After this many unsynced bytes the device is kept busy with them.


class SystemCalls:
    def write(self, fd: int, chunks: Sequence[Buffer], offset: int) -> int:
        """Writes at most IOV_MAX chunks in order at `offset`; may write less, and returns how much."""
        return os.pwritev(fd, chunks, offset)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def forget_cached(self, fd: int, offset: int, size: int) -> None:
        """Gives clean pages back; dirty ones stay, and the kernel begins to write them to the device."""
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)

    def sync_data(self, fd: int) -> None:
        """Syncs the bytes, and the metadata that a read needs: a grown size, newly used blocks."""
        os.fdatasync(fd)

    def sync_all(self, fd: int) -> None:
        """Syncs the bytes and all metadata; also for directories."""
        os.fsync(fd)


class SystemFile(File):
    """The loop's half."""

    def __init__(self, file: OpenFile, path: str, lane: Offload) -> None:
        self.path = path
        self._file = file
        self._lane = lane

    @property
    def size(self) -> int:
        return self._file.end

    async def read(self, offset: int, length: int) -> bytes:
        return await self._lane(self._file.read, offset, length)

    async def append(self, chunks: Sequence[Buffer]) -> int:
        return await self._lane(self._file.append, chunks)

    async def append_and_sync(self, chunks: Sequence[Buffer]) -> int:
        return await self._lane(self._file.append_and_sync, chunks)

    async def truncate(self, size: int) -> None:
        await self._lane(self._file.truncate, size)

    async def preallocate(self, size: int) -> None:
        await self._lane(self._file.preallocate, size)

    async def sync(self) -> None:
        await self._lane(self._file.sync)

    async def write_again(self, offset: int, data: Buffer) -> None:
        await self._lane(self._file.write_again, offset, data)

    async def forget_cached(self, end: int) -> None:
        await self._lane(self._file.forget_cached, end)

    async def aclose(self) -> None:
        if not self._file.is_closed:
            await self._lane(self._file.close)


class OpenFile:
    """The thread's half."""

    def __init__(self, fd: int, path: str, name: str, calls: SystemCalls) -> None:
        self.path: str | None = path  # It follows a rename; None when the name is removed.
        self.end = os.fstat(fd).st_size
        self.refusal: str | None = None
        self._fd: int | None = fd
        self._name = name
        self._calls = calls
        self._was_cut = False
        self._forgotten = 0  # The kernel was asked to give pages back up to here.
        self._written_out = self.end  # The kernel was asked to write up to here, or further.
        self._room = 0  # The end may move up to here without a change of the file's size.

    def become_room(self) -> None:
        """Makes the file's bytes room, because it is used again."""
        self._room, self.end = self.end, 0
        self._written_out = 0

    @property
    def is_closed(self) -> bool:
        return self._fd is None

    def read(self, offset: int, length: int) -> bytes:
        fd = self._usable_fd()
        if offset < 0 or length < 0:
            raise DiskError(f"cannot read {self._name}: offset {offset} and length {length} must not be negative")
        pieces: list[bytes] = []
        wanted = max(0, min(length, self.end - offset))
        while wanted:
            with translated("read", self._name):
                piece = os.pread(fd, wanted, offset)
            if not piece:
                raise FileCutError(f"{self._name} is shorter than before: another program has cut it")
            pieces.append(piece)
            offset += len(piece)
            wanted -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def append(self, chunks: Sequence[Buffer]) -> int:
        start = self._append(chunks)
        if self.end - self._written_out >= _WRITE_OUT_BYTES:
            with translated("write out", self._name):
                self._calls.forget_cached(self._usable_fd(), self._written_out, self.end - self._written_out)
            self._written_out = self.end
        return start

    def append_and_sync(self, chunks: Sequence[Buffer]) -> int:
        start = self._append(chunks)
        self.sync()
        return start

    def _append(self, chunks: Sequence[Buffer]) -> int:
        fd = self._usable_fd()
        start = self.end
        try:
            self.end = _write_all(self._calls, fd, chunks, start)
        except OSError as error:
            self._cut_torn_write(fd)
            raise translate("write to", self._name, error) from error
        return start

    def truncate(self, size: int) -> None:
        fd = self._usable_fd()
        if not 0 <= size <= self.end:
            raise DiskError(
                f"cannot truncate {self._name} to {size} bytes: it has {self.end}, and truncating only shortens"
            )
        with translated("truncate", self._name):
            self._calls.truncate(fd, size)
        self._was_cut = True
        self.end = size
        self._written_out = min(self._written_out, size)
        self._room = 0

    def preallocate(self, size: int) -> None:
        fd = self._usable_fd()
        start = max(self.end, self._room)
        if size <= start:
            return
        whole, rest = divmod(size - start, len(_ZEROS))
        try:
            self._room = _write_all(self._calls, fd, [_ZEROS] * whole + [_ZEROS[:rest]], start)
        except OSError as error:
            self._cut_torn_write(fd)
            raise translate("make room in", self._name, error) from error
        self.sync()

    def sync(self) -> None:
        fd = self._usable_fd()
        try:
            if self._was_cut:
                self._calls.sync_all(fd)
            else:
                self._calls.sync_data(fd)
        except OSError as error:
            raise self._refuse(f"syncing {self._name} failed: {reason(error)}") from error
        self._was_cut = False
        self._written_out = self.end

    def write_again(self, offset: int, data: Buffer) -> None:
        fd = self._usable_fd()
        check_within(self._name, offset, len(data), self.end)
        try:
            _write_all(self._calls, fd, [data], offset)
        except OSError as error:
            raise self._refuse(f"writing to {self._name} again failed: {reason(error)}") from error
        self.sync()

    def forget_cached(self, end: int) -> None:
        fd = self._usable_fd()
        end = min(end, self.end) // _PAGE_BYTES * _PAGE_BYTES  # The kernel would leave out a page that is in part ours.
        if end > self._forgotten:
            with translated("give back the pages of", self._name):
                self._calls.forget_cached(fd, self._forgotten, end - self._forgotten)
            self._forgotten = end

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with translated("close", self._name):
                os.close(fd)

    def _usable_fd(self) -> int:
        if self._fd is None:
            raise ClosedError(f"{self._name} is closed")
        if self.refusal is not None:
            raise SyncFailedError(self.refusal)
        return self._fd

    def _cut_torn_write(self, fd: int) -> None:
        self._room = 0
        try:
            if os.fstat(fd).st_size > self.end:  # Otherwise nothing was written.
                self._calls.truncate(fd, self.end)
                self._was_cut = True
        except OSError as error:
            raise self._refuse(f"a torn write at the end of {self._name} cannot be cut off: {reason(error)}") from error

    def _refuse(self, why: str) -> SyncFailedError:
        self.refusal = (
            f"{why}; what was written since the last sync is lost: check the device, then restart this process"
        )
        return SyncFailedError(self.refusal)


def _write_all(calls: SystemCalls, fd: int, chunks: Sequence[Buffer], offset: int) -> int:
    """Writes every chunk; returns the offset after the last byte."""
    for first in range(0, len(chunks), _IOV_MAX):
        group: Sequence[Buffer] = chunks[first : first + _IOV_MAX]
        while group := _without_empty_head(group):
            written = calls.write(fd, group, offset)
            if not written:
                raise OSError(errno.EIO, "the device takes no bytes")
            offset += written
            group = _rest(group, written)
    return offset


def _without_empty_head(group: Sequence[Buffer]) -> Sequence[Buffer]:
    """Skips empty chunks: they would make a write of nothing, which must not look like a stuck device."""
    for index, chunk in enumerate(group):
        if len(chunk):
            return group[index:] if index else group
    return ()


def _rest(group: Sequence[Buffer], written: int) -> Sequence[Buffer]:
    """Returns the part of the group that a write of `written` bytes has left."""
    for index, chunk in enumerate(group):
        if written < len(chunk):
            return [memoryview(chunk)[written:], *group[index + 1 :]]
        written -= len(chunk)
    assert not written, "a chunk is a view of something wider than bytes: its length is not its size"
    return ()


@contextmanager
def translated(action: str, path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise translate(action, path, error) from error


def translate(action: str, path: str | Path, error: OSError) -> DiskError:
    text = f"cannot {action} {path}: {reason(error)}"
    if error.errno in _FULL:
        return DiskFullError(f"{text}; free some room on that device or move the directory to a larger one")
    if error.errno == errno.ENOENT:
        return FileMissingError(text)
    return DiskError(text)


def reason(error: OSError) -> str:
    if error.errno is None:
        return str(error)
    return f"{os.strerror(error.errno)} ({errno.errorcode.get(error.errno, error.errno)})"
