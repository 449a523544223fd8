"""The cluster of one seed: that of topics, and on it drivers, executors and sweepers, each a process with a client.

Points:    at a named step of the protocol, the process that reached it is killed, or stands still for a while.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Final, TypeAlias

from magnetar.broker.broker import Broker
from magnetar.ledger.client import LedgerClient
from magnetar.sim.devices.device import Crash
from magnetar.sim.ledgers.cluster import ClientNode
from magnetar.sim.seeds import seeded
from magnetar.sim.staging.asking import AskingPublisher, answering
from magnetar.sim.staging.options import StagingOptions
from magnetar.sim.staging.watch import StagingWatch
from magnetar.sim.topics.cluster import TopicCluster
from magnetar.sim.world import World
from magnetar.staging.publisher import Reached

Run: TypeAlias = Callable[[LedgerClient], Coroutine[Any, Any, None]]

_OFTEN: Final = {"mid-append": 0.1, "mid-copy": 0.5}
"""Points that are passed again and again: struck less."""


@dataclass(slots=True, kw_only=True)
class WorkerNode(ClientNode):
    run: Run | None = None
    """None: it waits for tasks."""
    can_own: ClassVar[bool] = False

    async def live(self, client: LedgerClient) -> None:
        if self.run is None:
            await self.stopping.wait()
        else:
            await self.run(client)
            self.is_done = True


class StagingCluster(TopicCluster):
    watch: StagingWatch

    def __init__(self, world: World, options: StagingOptions, watch: StagingWatch) -> None:
        super().__init__(world, options.world, watch)
        self.staging_options = options
        self.workers: dict[str, WorkerNode] = {}
        strike = options.strike if "points" in options.faults else 0.0
        self.points = Points(self, seeded(f"{options.base.seed}/points"), strike, options.points)
        self.beside = self._answering

    @asynccontextmanager
    async def _answering(self, name: str, broker: Broker) -> AsyncIterator[None]:
        broker.staged.reached = self.points.of(name)
        async with answering(broker):
            yield

    def publisher(self, purpose: str) -> AskingPublisher:
        return AskingPublisher(list(self.brokers), seeded(f"{self.options.seed}/asking/{purpose}"))

    def add_worker(self, name: str, run: Run | None = None) -> WorkerNode:
        node = self.workers[name] = WorkerNode(name, self.options.client_config(), metadata=self.metadata, run=run)
        self.add_node(node)
        return node

    def running_workers(self, prefix: str) -> list[WorkerNode]:
        return [node for name, node in self.workers.items() if name.startswith(prefix) and node.is_running]


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
