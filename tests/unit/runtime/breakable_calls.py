"""System calls that fail when a test wants it, so that the real disk can be tested with a broken device."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from magnetar.runtime.disk import Buffer
from magnetar.runtime.system_file import SystemCalls


class BreakableCalls(SystemCalls):
    def __init__(self) -> None:
        self.room: int | None = None
        self.write_bytes_max: int | None = None
        self.writes = 0
        self.syncs: list[str] = []
        self._failing_syncs: list[tuple[int, int]] = []
        self._failing_cuts: list[tuple[int, int]] = []

    def fail_sync(self, path: Path) -> None:
        self._failing_syncs.append(_identity(path.stat()))

    def fail_cut(self, path: Path) -> None:
        self._failing_cuts.append(_identity(path.stat()))

    def write(self, fd: int, chunks: Sequence[Buffer], offset: int) -> int:
        self.writes += 1
        limits = [limit for limit in (self.room, self.write_bytes_max) if limit is not None]
        if not limits:
            return super().write(fd, chunks, offset)
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = b"".join(chunks)[: min(limits)]
        if self.room is not None:
            self.room -= len(taken)
        return super().write(fd, [taken], offset)

    def truncate(self, fd: int, size: int) -> None:
        _fail_if_named(self._failing_cuts, fd)
        super().truncate(fd, size)

    def sync_data(self, fd: int) -> None:
        self.syncs.append("data")
        _fail_if_named(self._failing_syncs, fd)
        super().sync_data(fd)

    def sync_all(self, fd: int) -> None:
        self.syncs.append("all")
        _fail_if_named(self._failing_syncs, fd)
        super().sync_all(fd)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _fail_if_named(failing: list[tuple[int, int]], fd: int) -> None:
    identity = _identity(os.fstat(fd))
    if identity in failing:
        failing.remove(identity)
        raise OSError(errno.EIO, os.strerror(errno.EIO))
