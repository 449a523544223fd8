"""SimDisk: what one component of one process sees of a simulated device.

Lane:      one operation at a time, in the order they were asked for, as the real disk's thread does it.
Crash:     `SimDevice.crash` makes this object inert, files included: every await on it stands still for ever. A
           restarted process makes a new SimDisk on the same device.
Read next: magnetar/runtime/disk.py for the promises, device.py for what happens below
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from magnetar.errors import FileLockedError, SyncFailedError
from magnetar.runtime.disk import Disk, DiskUsage, File, checked_file_path, checked_path
from magnetar.runtime.system_file import reason, translated
from magnetar.sim.devices.device import SimDevice
from magnetar.sim.devices.file import OpenFile, SimFile
from magnetar.sim.devices.image import FileImage
from magnetar.sim.devices.tree import Directory
from magnetar.sim.offload import SimOffload, Stage


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
        return self._sync_dir(directory, self._device.sites.here())  # Not `async def`: see sync_sites.py.

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
        """Nobody else can sync a directory outside the root."""
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
