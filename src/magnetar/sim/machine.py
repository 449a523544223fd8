"""SimMachine: one node's hardware, which outlives the processes that run on it.

Devices:   `mount` puts a device at a path; the device of "/" is always there. A root belongs to the deepest mount above
           it, so one bookie's directories can share a device or have one each.
Index:     the memory twin of the location index keeps an image per path here. What it writes is durable at once, as
           RocksDB's synced writes are, so that no crash takes it away; a disk that is replaced does.
Seeds:     every purpose draws from a generator of its own, `seeded(f"{seed}/{purpose}")`. A process's seed has its
           number in it: a restarted one does not repeat the identifiers of the one before.
Read next: runtime.py
"""

from __future__ import annotations

import posixpath

from magnetar.sim.devices.device import Crash, DiskTiming, SimDevice
from magnetar.sim.devices.sync_sites import SyncSites
from magnetar.sim.runtime import SimEntropy, SimRuntime, WallClock
from magnetar.sim.seeds import NO_DELAY, Delay
from magnetar.storage.index.memory_store import MemoryImage, MemoryStore


class SimMachine:
    def __init__(
        self,
        seed: str,
        *,
        clock: WallClock | None = None,
        disk_timing: DiskTiming | None = None,
        offload_delay: Delay = NO_DELAY,
    ) -> None:
        """`seed` is the run's and this node's, such as "17/bookie-2"."""
        self.seed = seed
        self.clock = clock if clock is not None else WallClock()
        self.sites = SyncSites()
        self.processes = 0
        self._disk_timing = disk_timing
        self._offload_delay = offload_delay
        self._devices: dict[str, SimDevice] = {}
        self._images: dict[str, MemoryImage] = {}
        self._runtime: SimRuntime | None = None
        self._dead: list[SimRuntime] = []
        self.mount("/")

    def mount(self, path: str) -> SimDevice:
        assert not self.processes, "mount before the first process starts"
        place = _normal(path)
        self._devices[place] = SimDevice(
            place.rstrip("/"), seed=f"{self.seed}/disk{place}", timing=self._disk_timing, sites=self.sites
        )
        return self._devices[place]

    def device(self, path: str = "/") -> SimDevice:
        """The device that holds this path."""
        return self._find(path)[0]

    def start(self) -> SimRuntime:
        """A process begins; the one before has ended or crashed."""
        self.processes += 1
        seed = f"{self.seed}/process-{self.processes}"
        entropy = SimEntropy(f"{seed}/entropy", self.clock)
        self._runtime = SimRuntime(seed, entropy, self._find, self._offload_delay, self._open_store)
        return self._runtime

    def crash(self, kind: Crash) -> None:
        """The process stops where it is; its disks and lanes turn inert. A power loss hits every device."""
        if self._runtime is not None:
            self._runtime.die()
            self._dead.append(self._runtime)
            self._runtime = None
        for device in self._devices.values():
            device.halt()
        for device in self._devices.values():
            device.settle(kind)

    def index_image(self, path: str) -> MemoryImage:
        """What the location index at this path has on disk; to look at, or to break."""
        return self._images.setdefault(_normal(path), MemoryImage())

    def put_index(self, path: str, image: MemoryImage) -> None:
        """In the place of the one that is there: what a rename of its directory does."""
        self._images[_normal(path)] = image

    def empty(self, path: str) -> None:
        """The disk, or this directory of it, was replaced: all below is gone. Only while no process runs."""
        device, directory = self._find(path)
        device.empty("" if directory == "." else directory)
        below = _normal(path).rstrip("/") + "/"
        self._images = {place: image for place, image in self._images.items() if not place.startswith(below)}

    def release_dead(self) -> None:
        """Cancels what still waits for a dead process. For the end of a test."""
        for runtime in self._dead:
            runtime.release()
        self._dead.clear()
        for device in self._devices.values():
            device.release_dead()

    def _open_store(self, path: str) -> MemoryStore:
        return MemoryStore(self.index_image(path))

    def _find(self, path: str) -> tuple[SimDevice, str]:
        """The device of a path, and the path on it."""
        place = mount = _normal(path)
        while mount not in self._devices:
            mount = posixpath.dirname(mount)
        return self._devices[mount], posixpath.relpath(place, mount)


def _normal(path: str) -> str:
    return posixpath.normpath(posixpath.join("/", path))
