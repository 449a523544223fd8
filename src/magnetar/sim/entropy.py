"""SimEntropy: seeded randomness, and a wall clock that may be wrong.

Clock:     the loop's time, plus the moment at which every simulated world begins, plus this node's own error: an
           offset, a drift, jumps in either direction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

from magnetar.runtime.entropy import Entropy
from magnetar.sim.seeds import seeded

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
