"""Points: at a named step of the protocol, the process that is there is killed, or stands still for a while."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from magnetar.sim.device import Crash
from magnetar.staging.publisher import Reached

if TYPE_CHECKING:
    from magnetar.sim.staging.cluster import StagingCluster

_OFTEN: Final = {"mid-append": 0.1, "mid-copy": 0.5}
"""Points that are passed again and again: struck less."""


class Points:
    def __init__(self, cluster: StagingCluster, random: Random, strike: float, only: Sequence[str]) -> None:
        """`only` at these points; empty: at all of them."""
        self.is_over = False
        self._cluster = cluster
        self._random = random
        self._strike = strike
        self._only = only

    def of(self, node: str) -> Reached:
        def reached(point: str, epoch: int) -> None:
            self._pass(node, point, epoch)

        return reached

    def _pass(self, node: str, point: str, epoch: int) -> None:
        watch = self._cluster.watch
        watch.counters[f"point {point}"] += 1
        if self.is_over or (self._only and point not in self._only):
            return
        if self._random.random() >= self._strike * _OFTEN.get(point, 1.0):
            return
        fate = self._random.choice(("killed", "killed", "paused"))
        watch.note(f"{node} is {fate} at {point} of epoch {epoch}")
        watch.struck(f"{fate} at {point}")
        loop = self._cluster.world.loop
        process = self._cluster.world.process(node)
        work = self._kill if fate == "killed" else self._pause
        loop.call_soon(work, node, process, context=loop.root.context)

    def _kill(self, node: str, process: object) -> None:
        if self._cluster.world.process(node) is process and process is not None:
            self._cluster.crash(node, Crash.KILL)

    def _pause(self, node: str, process: object) -> None:
        if self._cluster.world.process(node) is process and process is not None:
            self._cluster.pause(node, self._random.choice((0.05, 0.5, 2.0)) * self._random.random())
