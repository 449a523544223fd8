"""A simulated file: the same two halves as the real one, on a simulated device.

Two halves:  `SimFile` is what the component sees and only hands over; `OpenFile` does the work when its turn comes.
Chunks:      they are read when the write has its effect, not when it is asked for: a caller that changes them too early
             writes the wrong bytes, as it would for real.
Sync:        the place it is asked from is noted when the method is called (sync_sites.py), which is why these methods
             are not `async def` themselves.
Refusal:     kept by the Disk per file, so that it follows a rename and outlives a close.
Read next:   magnetar/runtime/disk.py for the promises, magnetar/runtime/system_file.py for the real one
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from magnetar.errors import ClosedError, DiskError, FileCutError, SyncFailedError
from magnetar.runtime.disk import Buffer, File, check_within
from magnetar.runtime.system_file import reason, translate, translated
from magnetar.sim.devices.device import SimDevice
from magnetar.sim.devices.image import FileImage
from magnetar.sim.offload import SimOffload, Stage


class OpenFile:
    """The device's half."""

    def __init__(self, device: SimDevice, image: FileImage, refusals: dict[int, str]) -> None:
        self.end = len(image.cache)
        self.is_closed = False
        self._room = 0  # The end may move up to here without a change of the file's size.
        self._device = device
        self._image = image
        self._name = device.label(image.path)
        self._refusals = refusals  # Number of the file → why; shared by all files of one Disk.

    def become_room(self) -> None:
        """For a file that is used again."""
        self._room, self.end = self.end, 0

    def operation_s(self) -> float:
        return self._device.operation_s(self._image.path)

    def sync_s(self) -> float:
        return self._device.sync_s(self._image.path)

    def read(self, offset: int, length: int) -> bytes:
        self._check_usable()
        if offset < 0 or length < 0:
            raise DiskError(f"cannot read {self._name}: offset {offset} and length {length} must not be negative")
        end = min(offset + length, self.end)
        if offset >= end:
            return b""
        if end > len(self._image.cache):
            raise FileCutError(f"{self._name} is shorter than before: something else has cut it")
        with translated("read", self._name):
            return self._device.read(self._image, offset, end)

    def append(self, chunks: Sequence[Buffer]) -> int:
        self._check_usable()
        start, data = self.end, b"".join(chunks)
        try:
            self._device.write(self._image, start, data)
        except OSError as error:
            self._cut_torn_write()
            raise translate("write to", self._name, error) from error
        self.end += len(data)
        return start

    def append_interrupted(self, chunks: Sequence[Buffer]) -> None:
        if not self.is_closed and self._image.number not in self._refusals:
            self._device.write_prefix(self._image, self.end, b"".join(chunks))

    def truncate(self, size: int) -> None:
        self._check_usable()
        if not 0 <= size <= self.end:
            raise DiskError(
                f"cannot truncate {self._name} to {size} bytes: it has {self.end}, and truncating only shortens"
            )
        with translated("truncate", self._name):
            self._device.cut(self._image, size)
        self.end = size
        self._room = 0

    def preallocate(self, size: int) -> None:
        self._check_usable()
        start = max(self.end, self._room)
        if size <= start:
            return
        try:
            self._device.write(self._image, start, bytes(size - start))
        except OSError as error:
            self._cut_torn_write()
            raise translate("make room in", self._name, error) from error
        self._room = size

    def sync(self, site: str) -> None:
        self._check_usable()
        if site not in self._device.sites.ignored:
            self.sync_anyway()

    def sync_anyway(self) -> None:
        try:
            self._device.sync(self._image)
        except OSError as error:
            raise self._refuse(f"syncing {self._name} failed: {reason(error)}") from error

    def write_again(self, offset: int, data: Buffer) -> None:
        self._check_usable()
        check_within(self._name, offset, len(data), self.end)
        try:
            self._device.write(self._image, offset, bytes(data))
        except OSError as error:
            raise self._refuse(f"writing to {self._name} again failed: {reason(error)}") from error

    def write_again_interrupted(self, offset: int, data: Buffer) -> None:
        if not self.is_closed and self._image.number not in self._refusals:
            self._device.write_prefix(self._image, offset, bytes(data))

    def forget_cached(self, end: int) -> None:
        """Only checked: a simulated cache has no limit, and forgetting durable bytes changes no answer."""
        self._check_usable()
        assert end >= 0, end

    def close(self) -> None:
        self.is_closed = True

    def _check_usable(self) -> None:
        if self.is_closed:
            raise ClosedError(f"{self._name} is closed")
        if self._image.number in self._refusals:
            raise SyncFailedError(self._refusals[self._image.number])

    def _cut_torn_write(self) -> None:
        self._room = 0
        try:
            if len(self._image.cache) > self.end:  # Else nothing was written.
                self._device.cut(self._image, self.end)
        except OSError as error:
            raise self._refuse(f"a torn write at the end of {self._name} cannot be cut off: {reason(error)}") from error

    def _refuse(self, why: str) -> SyncFailedError:
        text = f"{why}; what was written since the last sync is lost: check the device, then restart this process"
        self._refusals[self._image.number] = text
        return SyncFailedError(text)


class SimFile(File):
    """The component's half."""

    def __init__(self, file: OpenFile, path: str, lane: SimOffload, note_site: Callable[[], str]) -> None:
        self.path = path
        self._file = file
        self._lane = lane
        self._note_site = note_site

    @property
    def size(self) -> int:
        return self._file.end

    async def read(self, offset: int, length: int) -> bytes:
        return bytes(await self._operation(partial(self._file.read, offset, length)))

    async def append(self, chunks: Sequence[Buffer]) -> int:
        return int(await self._lane.hand_over(self._append_stage(chunks)))

    def append_and_sync(self, chunks: Sequence[Buffer]) -> Coroutine[Any, Any, int]:
        return self._append_and_sync(chunks, self._note_site())

    async def truncate(self, size: int) -> None:
        await self._operation(partial(self._file.truncate, size))

    async def preallocate(self, size: int) -> None:
        """Its sync is no site: it is there for speed, and nobody relies on the zeros."""
        written = Stage(partial(self._file.preallocate, size), self._file.operation_s)
        await self._lane.hand_over(written, Stage(self._file.sync_anyway, self._file.sync_s))

    def sync(self) -> Coroutine[Any, Any, None]:
        return self._sync(self._note_site())

    def write_again(self, offset: int, data: Buffer) -> Coroutine[Any, Any, None]:
        return self._write_again(offset, data, self._note_site())

    async def forget_cached(self, end: int) -> None:
        await self._operation(partial(self._file.forget_cached, end))

    async def aclose(self) -> None:
        if not self._file.is_closed:
            await self._operation(self._file.close)

    async def _sync(self, site: str) -> None:
        await self._lane.hand_over(Stage(partial(self._file.sync, site), self._file.sync_s))

    async def _write_again(self, offset: int, data: Buffer, site: str) -> None:
        written = Stage(
            partial(self._file.write_again, offset, data),
            self._file.operation_s,
            partial(self._file.write_again_interrupted, offset, data),
        )
        await self._lane.hand_over(written, Stage(partial(self._file.sync, site), self._file.sync_s))

    async def _append_and_sync(self, chunks: Sequence[Buffer], site: str) -> int:
        """Two effects, so that a crash can find the group written and not yet durable."""
        written = self._append_stage(chunks)
        durable = Stage(partial(self._file.sync, site), self._file.sync_s)
        return int(await self._lane.hand_over(written, durable))

    async def _operation(self, run: Callable[[], Any]) -> Any:
        return await self._lane.hand_over(Stage(run, self._file.operation_s))

    def _append_stage(self, chunks: Sequence[Buffer]) -> Stage:
        return Stage(
            partial(self._file.append, chunks),
            self._file.operation_s,
            partial(self._file.append_interrupted, chunks),
        )
