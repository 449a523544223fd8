"""What the parts of the disk contract share: the disk under test with the means to break it, and small helpers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from magnetar.errors import SyncFailedError
from magnetar.runtime.disk import Disk, File


class DiskHarness(ABC):
    """The disk under test, whose root exists and is empty, and the means to break it."""

    disk: Disk

    @abstractmethod
    def another_disk(self) -> Disk:
        """A second Disk on the same root, as another process would have it. The harness closes it."""

    @abstractmethod
    def fail_next_sync(self, path: str) -> None:
        """The next sync of this file, or of this directory ("" is the root), fails; the ones after it would succeed."""

    @abstractmethod
    def leave_room_for(self, size: int) -> None:
        """Appends find room for this many bytes more, then the device is full."""

    @abstractmethod
    def make_room(self) -> None:
        """Ends `leave_room_for`."""

    @abstractmethod
    def fail_next_cut(self, path: str) -> None:
        """The next attempt to shorten this file fails, the cut after a failed append included."""


async def write(disk: Disk, path: str, data: bytes) -> str:
    """Makes a file with this content, durably; returns its path."""
    file = await disk.open(path, create=True)
    await file.truncate(0)
    await file.append_and_sync([data])
    await file.aclose()
    return path


async def contents(disk: Disk, path: str) -> bytes:
    file = await disk.open(path)
    try:
        return await file.read(0, file.size)
    finally:
        await file.aclose()


async def expect_refusal(file: File) -> None:
    attempts = [
        file.sync(),
        file.append([b"x"]),
        file.append_and_sync([b"x"]),
        file.truncate(0),
        file.preallocate(100),
        file.write_again(0, b""),
        file.read(0, 1),
        file.sync(),
    ]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [SyncFailedError] * len(attempts)
