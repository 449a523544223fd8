"""SimRuntime: the seams of one simulated process, as a composition root gets them."""

from __future__ import annotations

from collections.abc import Callable

from magnetar.runtime.disk import Disk
from magnetar.runtime.offload import Offload
from magnetar.runtime.runtime import Runtime
from magnetar.sim.delay import Delay
from magnetar.sim.device import SimDevice
from magnetar.sim.disk import SimDisk
from magnetar.sim.entropy import SimEntropy
from magnetar.sim.offload import SimOffload
from magnetar.storage.ordered_store import OrderedStore


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
