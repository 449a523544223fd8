"""SimDisk and SimFile: what one component of one process sees of a simulated device.

Each has two halves, as the real ones have: the component's half only hands over, and the device's half does the work
when its turn comes. Chunks are read when the write has its effect: a caller that changes them too early writes the
wrong bytes. A crash makes both inert: every await on them stands still forever.

Order:     One operation at a time, in the order in which they were asked for, as the real disk's thread does it. The
           place that asks for a sync is noted when the method is called, so these methods are not `async def`.
Failure:   A file or directory whose sync has failed is refused from then on. The disk keeps that, so that it follows a
           rename and outlives a close.
Read next: magnetar/runtime/disk.py for the promises, device.py for what happens below
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from magnetar.errors import ClosedError, DiskError, FileCutError, FileLockedError, SyncFailedError
from magnetar.runtime.disk import Buffer, Disk, DiskUsage, File, check_within, checked_file_path, checked_path
from magnetar.runtime.system_file import reason, translate, translated
from magnetar.sim.device import Directory, FileImage, SimDevice
from magnetar.sim.offload import SimOffload, Stage

# --- files ------------------------------------------------------------------------------------------------------------


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
        """Its sync is no site: it only makes later syncs faster, and no code relies on the zeros."""
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


# --- the disk ---------------------------------------------------------------------------------------------------------


class SimDisk(Disk):
    def __init__(self, device: SimDevice, root: str = "", *, name: str = "disk") -> None:
        """`root` is a directory of the device, which need not exist yet."""
        self._device = device
        self._view = _View(device, checked_path(root), name)
        self._lane = SimOffload(name, seed=f"{device.seed}/lane")
        device.attach(self._lane)

    async def open(self, path: str, *, create: bool = False, reuse: bool = False) -> File:
        name = checked_file_path(path)
        file = await self._operation(name, partial(self._view.open, name, create, reuse))
        assert isinstance(file, OpenFile)
        return SimFile(file, name, self._lane, self._device.sites.here)

    async def make_dir(self, path: str) -> None:
        name = checked_path(path)
        made, delay_s = partial(self._view.make_dir, name), partial(self._device.operation_s, self._view.full(name))
        if not self._view.has_root:  # Two effects, so that a crash can find it made and not yet durable.
            sync_s = partial(self._device.sync_s, self._view.full(""))
            await self._lane.hand_over(Stage(self._view.make_root, delay_s), Stage(self._view.sync_root, sync_s))
        await self._lane.hand_over(Stage(made, delay_s))

    async def rename(self, old: str, new: str) -> None:
        name, new_name = checked_file_path(old), checked_file_path(new)
        await self._operation(name, partial(self._view.rename, name, new_name))

    async def remove(self, path: str) -> None:
        name = checked_file_path(path)
        await self._operation(name, partial(self._view.remove, name))

    async def list(self, directory: str = "") -> list[str]:
        name = checked_path(directory)
        return list(await self._operation(name, partial(self._view.list, name)))

    def sync_dir(self, directory: str = "") -> Coroutine[Any, Any, None]:
        return self._sync_dir(directory, self._device.sites.here())  # Not `async def`: a coroutine's caller is unknown.

    async def usage(self) -> DiskUsage:
        usage = await self._operation("", self._view.usage)
        assert isinstance(usage, DiskUsage)
        return usage

    async def lock(self, path: str) -> None:
        name = checked_file_path(path)
        await self._operation(name, partial(self._view.lock, name))

    async def aclose(self) -> None:
        if not self._view.is_closing:
            self._view.is_closing = True
            await self._operation("", self._view.close)
        await self._lane.aclose()
        self._device.detach(self._lane)

    async def _sync_dir(self, directory: str, site: str) -> None:
        name = checked_path(directory)
        delay_s = partial(self._device.sync_s, self._view.full(name))
        await self._lane.hand_over(Stage(partial(self._view.sync_dir, name, site), delay_s))

    async def _operation(self, path: str, run: Callable[[], Any]) -> Any:
        delay_s = partial(self._device.operation_s, self._view.full(path))
        return await self._lane.hand_over(Stage(run, delay_s))


class _View:
    """The device's half: plain calls on paths that are already checked."""

    def __init__(self, device: SimDevice, root: str, name: str) -> None:
        self.is_closing = False
        self._device = device
        self._tree = device.tree
        self._root = root
        self._name = name
        self._files: list[OpenFile] = []
        self._locks: list[int] = []
        self._new_above: list[Directory] = []
        self._refused_files: dict[int, str] = {}
        self._refused_dirs: dict[int, str] = {}

    @property
    def has_root(self) -> bool:
        """The device's own root is always there."""
        return not self._root

    def full(self, path: str) -> str:
        return f"{self._root}/{path}".strip("/")

    def open(self, path: str, create: bool, reuse: bool) -> OpenFile:
        with translated("open", self._label(path)):
            image = self._image(path, create)
        if image.number in self._refused_files:
            raise SyncFailedError(self._refused_files[image.number])
        file = OpenFile(self._device, image, self._refused_files)
        if reuse:
            file.become_room()
        self._files = [other for other in self._files if not other.is_closed]
        self._files.append(file)
        return file

    def make_dir(self, path: str) -> None:
        with translated("make directory", self._label(path)):
            self._tree.make_dir(self.full(path))

    def make_root(self) -> None:
        """Not durable yet. See `SystemDisk` for why an empty one counts as new."""
        with translated("make directory", self._label("")):
            made = self._tree.make_dir(self._root)
            is_empty = not self._tree.directory(self._root).entries
        self._new_above = self._tree.above(self._root) if made or is_empty else []

    def sync_root(self) -> None:
        """No other code can sync a directory outside the root."""
        for directory in self._new_above:
            self._sync_names(directory)
        self._new_above = []

    def rename(self, old: str, new: str) -> None:
        with translated("rename", self._label(old)):
            self._tree.rename(self.full(old), self.full(new))

    def remove(self, path: str) -> None:
        with translated("remove", self._label(path)):
            self._tree.remove(self.full(path))

    def list(self, directory: str) -> list[str]:
        with translated("list", self._label(directory)):
            return sorted(self._tree.directory(self.full(directory)).entries)

    def sync_dir(self, path: str, site: str) -> None:
        with translated("open directory", self._label(path)):
            directory = self._tree.directory(self.full(path))
        if directory.number in self._refused_dirs:
            raise SyncFailedError(self._refused_dirs[directory.number])
        if site not in self._device.sites.ignored:
            self._sync_names(directory)

    def _sync_names(self, directory: Directory) -> None:
        try:
            self._device.sync_dir(directory)
        except OSError as error:
            name = self._device.label(directory.path)
            text = f"syncing directory {name} failed: {reason(error)}; check the device, then restart this process"
            self._refused_dirs[directory.number] = text
            raise SyncFailedError(text) from error

    def usage(self) -> DiskUsage:
        with translated("measure", self._label("")):
            self._tree.directory(self._root)
        return self._device.usage()

    def lock(self, path: str) -> None:
        with translated("open", self._label(path)):
            image = self._image(path, create=True)
        if (holder := self._device.locks.get(image.number)) is not None:
            raise FileLockedError(f"{self._label(path)} is locked by {holder}: stop it, or use another directory")
        self._device.locks[image.number] = self._name
        self._locks.append(image.number)

    def close(self) -> None:
        for file in self._files:
            file.close()
        for number in self._locks:
            del self._device.locks[number]
        self._files.clear()
        self._locks.clear()

    def _image(self, path: str, create: bool) -> FileImage:
        full = self.full(path)
        node = self._tree.find(full)
        if node is None and create:
            return self._tree.create(full)
        return self._tree.file(full)

    def _label(self, path: str) -> str:
        return self._device.label(self.full(path))
