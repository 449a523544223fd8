"""SimRuntime: the seams of one simulated process, as a composition root gets them.

SimEntropy: seeded randomness, and a wall clock that may be wrong.

Clock:     the loop's time, plus the moment at which every simulated world begins, plus this node's own error: an
           offset, a drift, jumps in either direction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

from magnetar.runtime.disk import Disk
from magnetar.runtime.runtime import Entropy, Offload, Runtime
from magnetar.sim.devices.device import SimDevice
from magnetar.sim.devices.disk import SimDisk
from magnetar.sim.offload import SimOffload
from magnetar.sim.seeds import Delay, seeded
from magnetar.storage.index.ordered_store import OrderedStore

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
