"""A real file: appended at the end by vectored writes, made durable by fdatasync.

Two halves:  `SystemFile` is what the loop sees and only hands over; `OpenFile` does the work on the disk's thread.
Appends:     `pwritev` at the known end, so there is no file position to get wrong. The caller's chunks go to the kernel
             as they are; a short write goes on from the middle of a chunk through a memoryview.
Room:        zeros beyond the end, written and synced, or the bytes of a file that is used again. fallocate would be
             quicker to have, but then the first write to each block changes the file's metadata, which fdatasync has
             to write, too: slower than no room at all.
Write-out:   what is appended without a sync is given to the device every few megabytes. The sync that follows has less
             to do at once, and other files' syncs do not wait behind it.
Sync:        fdatasync flushes the bytes and, as the file has grown, its size. It need not flush a size that has
             shrunk, so the first sync after a truncate is a full fsync.
Refusal:     after a failed sync, or a torn append that cannot be cut off, `refusal` is set for good.
Read next:   disk.py for the promises
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final

from magnetar.errors import ClosedError, DiskError, FileCutError, SyncFailedError
from magnetar.runtime.disk import Buffer, File
from magnetar.runtime.offload import Offload
from magnetar.runtime.system_calls import SystemCalls
from magnetar.runtime.system_errors import reason, translate, translated

_IOV_MAX: Final = 1024  # Linux's limit of buffers in one vectored write.
_ZEROS: Final = bytes(256 * 2**10)
_PAGE_BYTES: Final = 4096
_WRITE_OUT_BYTES: Final = 4 * 2**20  # Appended without a sync: from here on the device is kept busy with them.


class OpenFile:
    """The thread's half."""

    def __init__(self, fd: int, path: str, name: str, calls: SystemCalls) -> None:
        self.path: str | None = path  # Follows a rename; None when the name is gone.
        self.end = os.fstat(fd).st_size
        self.refusal: str | None = None
        self._fd: int | None = fd
        self._name = name
        self._calls = calls
        self._was_cut = False
        self._forgotten = 0  # Up to here the kernel was told to give pages back.
        self._written_out = self.end  # Up to here, or beyond, the kernel was told to write.
        self._room = 0  # The end may move up to here without a change of the file's size.

    def become_room(self) -> None:
        """For a file that is used again."""
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
                raise FileCutError(f"{self._name} is shorter than it was: something else has cut it")
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
            if os.fstat(fd).st_size > self.end:  # Else nothing was written.
                self._calls.truncate(fd, self.end)
                self._was_cut = True
        except OSError as error:
            raise self._refuse(f"a torn write at the end of {self._name} cannot be cut off: {reason(error)}") from error

    def _refuse(self, why: str) -> SyncFailedError:
        self.refusal = (
            f"{why}; what was written since the last sync is lost: check the device, then restart this process"
        )
        return SyncFailedError(self.refusal)


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

    async def forget_cached(self, end: int) -> None:
        await self._lane(self._file.forget_cached, end)

    async def aclose(self) -> None:
        if not self._file.is_closed:
            await self._lane(self._file.close)


def _write_all(calls: SystemCalls, fd: int, chunks: Sequence[Buffer], offset: int) -> int:
    """Writes every chunk; returns the offset behind the last byte."""
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
    """Empty chunks alone would make a write of nothing, which must not look like a stuck device."""
    for index, chunk in enumerate(group):
        if len(chunk):
            return group[index:] if index else group
    return ()


def _rest(group: Sequence[Buffer], written: int) -> Sequence[Buffer]:
    """What a write of `written` bytes has left of the group."""
    for index, chunk in enumerate(group):
        if written < len(chunk):
            return [memoryview(chunk)[written:], *group[index + 1 :]]
        written -= len(chunk)
    assert not written, "a chunk is a view of something wider than bytes: its length is not its size"
    return ()
