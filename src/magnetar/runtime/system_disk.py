"""SystemDisk: a directory of the real file system, used on one thread.

Format:    a lock is `flock` on a file that also holds the owner's process id, so that the error names the owner. It
           belongs to the open file: the kernel releases it when the process dies, however it dies.
Failure:   a file whose opener was cancelled has no owner; `aclose` closes such files.
Threads:   every method hands one function to the disk's lane, which runs them in order; their shared state (open files,
           locks, refusals) is touched only there.
Read next: disk.py for the promises, system_file.py for files
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from magnetar.errors import FileLockedError, SyncFailedError
from magnetar.runtime.disk import Disk, DiskUsage, File, checked_file_path, checked_path
from magnetar.runtime.runtime import Offload
from magnetar.runtime.system_file import OpenFile, SystemCalls, SystemFile, reason, translated

_FILE_MODE = 0o640  # No other user may read messages.
_DIR_MODE = 0o750
_PID_BYTES_MAX = 32


class SystemDisk(Disk):
    def __init__(self, root: str, lane: Offload, calls: SystemCalls | None = None) -> None:
        """The disk owns the lane and closes it."""
        self._tree = _Tree(Path(root).absolute(), calls or SystemCalls())
        self._lane = lane

    async def open(self, path: str, *, create: bool = False, reuse: bool = False) -> File:
        name = checked_file_path(path)
        file = await self._lane(self._tree.open, name, create, reuse)
        return SystemFile(file, name, self._lane)

    async def make_dir(self, path: str) -> None:
        await self._lane(self._tree.make_dir, checked_path(path))

    async def rename(self, old: str, new: str) -> None:
        await self._lane(self._tree.rename, checked_file_path(old), checked_file_path(new))

    async def remove(self, path: str) -> None:
        await self._lane(self._tree.remove, checked_file_path(path))

    async def list(self, directory: str = "") -> list[str]:
        return await self._lane(self._tree.list, checked_path(directory))

    async def sync_dir(self, directory: str = "") -> None:
        await self._lane(self._tree.sync_dir, checked_path(directory))

    async def usage(self) -> DiskUsage:
        return await self._lane(self._tree.usage)

    async def lock(self, path: str) -> None:
        await self._lane(self._tree.lock, checked_file_path(path))

    async def aclose(self) -> None:
        if not self._tree.closing:
            self._tree.closing = True
            await self._lane(self._tree.close)
        await self._lane.aclose()


class _Tree:
    """The thread's half: plain blocking calls on paths that are already checked."""

    def __init__(self, root: Path, calls: SystemCalls) -> None:
        self.closing = False  # Set by the loop.
        self._root = root
        self._calls = calls
        self._files: list[OpenFile] = []
        self._locks: list[int] = []
        self._refused_files: dict[str, str] = {}  # Refusals of closed files; open ones know it themselves.
        self._refused_dirs: dict[str, str] = {}

    def open(self, path: str, create: bool, reuse: bool) -> OpenFile:
        self._forget_closed_files()
        if (why := self._refusal(path)) is not None:
            raise SyncFailedError(why)
        name = self._root / path
        with translated("open", name):
            fd = os.open(name, os.O_RDWR | (os.O_CREAT if create else 0), _FILE_MODE)
            file = OpenFile(fd, path, str(name), self._calls)
        if reuse:
            file.become_room()
        self._files.append(file)
        return file

    def make_dir(self, path: str) -> None:
        self._make_root()
        name = self._root / path
        with translated("make directory", name):
            name.mkdir(_DIR_MODE, parents=True, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        self._forget_closed_files()
        with translated("rename", self._root / old):
            if (self._root / old).is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            (self._root / old).replace(self._root / new)
        self._follow(new, None)
        self._follow(old, new)

    def remove(self, path: str) -> None:
        self._forget_closed_files()
        with translated("remove", self._root / path):
            (self._root / path).unlink()
        self._follow(path, None)

    def list(self, directory: str) -> list[str]:
        with translated("list", self._root / directory):
            return sorted(os.listdir(self._root / directory))  # noqa: PTH208 - names are wanted, not paths

    def sync_dir(self, directory: str) -> None:
        if directory in self._refused_dirs:
            raise SyncFailedError(self._refused_dirs[directory])
        try:
            _sync_dir(self._root / directory, self._calls)
        except SyncFailedError as error:
            self._refused_dirs[directory] = str(error)
            raise

    def usage(self) -> DiskUsage:
        with translated("measure", self._root):
            found = os.statvfs(self._root)
        return DiskUsage(total_bytes=found.f_blocks * found.f_frsize, free_bytes=found.f_bavail * found.f_frsize)

    def lock(self, path: str) -> None:
        name = self._root / path
        with translated("open", name):
            fd = os.open(name, os.O_RDWR | os.O_CREAT, _FILE_MODE)
        try:
            with translated("lock", name):
                _lock(fd, name)
        except BaseException:
            os.close(fd)
            raise
        self._locks.append(fd)

    def close(self) -> None:
        for file in self._files:
            file.close()
        for fd in self._locks:
            os.close(fd)
        self._files.clear()
        self._locks.clear()

    def _refusal(self, path: str) -> str | None:
        still_open = (file.refusal for file in self._files if file.path == path and file.refusal is not None)
        return next(still_open, self._refused_files.get(path))

    def _forget_closed_files(self) -> None:
        for file in self._files:
            if file.is_closed and file.path is not None and file.refusal is not None:
                self._refused_files[file.path] = file.refusal
        self._files = [file for file in self._files if not file.is_closed]

    def _follow(self, old: str, new: str | None) -> None:
        """Notes that the file `old` is `new` now, or has no name any more. A refusal stays with the file."""
        for file in self._files:
            if file.path == old:
                file.path = new
        refusal = self._refused_files.pop(old, None)
        if refusal is not None and new is not None:
            self._refused_files[new] = refusal

    def _make_root(self) -> None:
        """Makes the root and missing directories above it, durably: the caller cannot sync a directory outside the
        root.

        A root with content was made durable before that was put there. An empty one may come from a process that was
        killed before the sync, and so may every directory above it.
        """
        with translated("make directory", self._root):
            if self._root.is_dir() and any(self._root.iterdir()):
                return
            self._root.mkdir(_DIR_MODE, parents=True, exist_ok=True)
        for name in _above(self._root):
            _sync_dir(name, self._calls)


def _above(root: Path) -> list[Path]:
    """Returns the directories above the root, up to its mount point, the nearest first: beyond that, nothing was
    made."""
    found: list[Path] = []
    name = root
    while name != name.parent and name.stat().st_dev == name.parent.stat().st_dev:
        name = name.parent
        if os.access(name, os.R_OK):  # Otherwise another user owns it, who has made it.
            found.append(name)
    return found


def _sync_dir(name: Path, calls: SystemCalls) -> None:
    with translated("open directory", name):
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        calls.sync_all(fd)
    except OSError as error:
        text = f"syncing directory {name} failed: {reason(error)}; check the device, then restart this process"
        raise SyncFailedError(text) from error
    finally:
        os.close(fd)


def _lock(fd: int, name: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, _PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise FileLockedError(f"{name} is locked by {who}: stop it, or use another directory") from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
