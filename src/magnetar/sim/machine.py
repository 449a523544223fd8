"""SimMachine: one node's hardware, which outlives its processes. SimRuntime: what one process sees of it.

A machine has devices, each mounted at a path; that of "/" is always there. A path belongs to the deepest mount above
it, so one bookie's directories can share a device or have one each. The location index is its twin in memory: what it
writes is durable at once, as RocksDB's synced writes are, and is lost only with its disk. The wall clock is the loop's
time after the moment at which every world begins, plus the machine's own error: an offset, a drift, jumps.

Every purpose draws from a generator of its own, `seeded(f"{seed}/{purpose}")`. A process's seed has its number in it: a
restarted one does not repeat the identifiers of the one before.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable
from typing import Final
from uuid import UUID

from magnetar.runtime.disk import Disk
from magnetar.runtime.runtime import Entropy, Offload, Runtime
from magnetar.sim.device import Crash, DiskTiming, SimDevice, SyncSites
from magnetar.sim.disk import SimDisk
from magnetar.sim.offload import SimOffload
from magnetar.sim.seeds import NO_DELAY, Delay, seeded
from magnetar.storage.index.ordered_store import MemoryImage, MemoryStore, OrderedStore

WORLD_BEGINS_MS: Final = 1_767_225_600_000  # 2026-01-01 UTC: wall clocks show this when the loop's time is 0.


class WallClock:
    """Belongs to a machine, not to a process: what an operator set wrong stays wrong over a restart."""

    def __init__(self, *, offset_ms: float = 0.0, drift: float = 0.0, time: Callable[[], float] | None = None) -> None:
        """`drift` 0.01 means that this clock gains a hundredth."""
        self._time = time if time is not None else _loop_time
        self._drift = drift
        self._since_s = 0.0
        self._then_ms = WORLD_BEGINS_MS + offset_ms

    def now_ms(self) -> float:
        return self._then_ms + (self._time() - self._since_s) * 1_000 * (1 + self._drift)

    def jump(self, by_ms: float) -> None:
        self._then_ms += by_ms

    def set_drift(self, drift: float) -> None:
        self._then_ms, self._since_s = self.now_ms(), self._time()
        self._drift = drift


class SimEntropy(Entropy):
    def __init__(self, seed: str, clock: WallClock | None = None) -> None:
        self.random = seeded(seed)
        self.clock = clock if clock is not None else WallClock()

    def uuid(self) -> UUID:
        return UUID(int=self.random.getrandbits(128), version=4)

    def wall_ms(self) -> int:
        return int(self.clock.now_ms())


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class SimRuntime(Runtime):
    def __init__(
        self,
        seed: str,
        entropy: SimEntropy,
        find_device: Callable[[str], tuple[SimDevice, str]],
        offload_delay: Delay,
        open_store: Callable[[str], OrderedStore],
    ) -> None:
        """`find_device` says which device holds a path, and under which path."""
        self.entropy = entropy
        self._seed = seed
        self._find_device = find_device
        self._offload_delay = offload_delay
        self._lanes: list[SimOffload] = []
        self.ordered_store = open_store

    def disk(self, root: str, *, name: str) -> Disk:
        device, path = self._find_device(root)
        return SimDisk(device, path, name=name)

    def offload(self, *, name: str) -> Offload:
        lane = SimOffload(name, seed=f"{self._seed}/lane", delay=self._offload_delay)
        self._lanes.append(lane)
        return lane

    def die(self) -> None:
        """Its lanes turn inert; its disks do so with their devices."""
        for lane in self._lanes:
            lane.die()

    def release(self) -> None:
        for lane in self._lanes:
            lane.release()


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
        """Replaces the existing one, as a rename of its directory does."""
        self._images[_normal(path)] = image

    def empty(self, path: str) -> None:
        """Replaces the disk, or this directory of it: deletes all below. Only while no process runs."""
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
