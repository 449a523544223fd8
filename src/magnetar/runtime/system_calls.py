"""The system calls that decide about durability, as an object: a test hands in one that fails when told to.

Everything else the disk does is called directly; only what must be made to fail in a test is here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from magnetar.runtime.disk import Buffer


class SystemCalls:
    def write(self, fd: int, chunks: Sequence[Buffer], offset: int) -> int:
        """Writes at most IOV_MAX chunks in order at `offset`; may write less, and says how much."""
        return os.pwritev(fd, chunks, offset)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def forget_cached(self, fd: int, offset: int, size: int) -> None:
        """Clean pages are given back; dirty ones stay, and the kernel begins to write them to the device."""
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)

    def sync_data(self, fd: int) -> None:
        """The bytes, and the metadata without which they cannot be read back: a grown size, newly used blocks."""
        os.fdatasync(fd)

    def sync_all(self, fd: int) -> None:
        """The bytes and all metadata; also for directories."""
        os.fsync(fd)
