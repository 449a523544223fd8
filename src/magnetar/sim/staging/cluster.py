"""The cluster of one seed: that of topics, and on it drivers, executors and sweepers, each a process with a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from magnetar.broker.broker import Broker
from magnetar.ledger.client import LedgerClient
from magnetar.sim.device import Crash
from magnetar.sim.ledgers.cluster import ClientNode
from magnetar.sim.runtime import SimRuntime
from magnetar.sim.seeds import seeded
from magnetar.sim.staging.asking import AskingPublisher, answering
from magnetar.sim.staging.metadata import StagingMetadata
from magnetar.sim.staging.options import StagingOptions
from magnetar.sim.staging.points import Points
from magnetar.sim.staging.watch import StagingWatch
from magnetar.sim.topics.cluster import BrokerNode, TopicCluster
from magnetar.sim.world import World

Run: TypeAlias = Callable[[LedgerClient], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class WorkerNode(ClientNode):
    run: Run | None = None
    """None: it waits for tasks."""
    is_done: bool = False


class StagingCluster(TopicCluster):
    def __init__(self, world: World, options: StagingOptions, watch: StagingWatch) -> None:
        self.staging_watch = watch
        self.staging_options = options
        super().__init__(world, options.world, watch)
        self.workers: dict[str, WorkerNode] = {}
        strike = options.strike if "points" in options.faults else 0.0
        self.points = Points(self, seeded(f"{options.world.base.seed}/points"), strike, options.points)

    def make_metadata(self) -> StagingMetadata:
        return StagingMetadata(self.world.entropy, self.options.client_config().metadata, self.staging_watch)

    @asynccontextmanager
    async def beside(self, node: BrokerNode, broker: Broker) -> AsyncIterator[None]:
        broker.staged.reached = self.points.of(node.name)
        async with answering(broker):
            yield

    def publisher(self, purpose: str) -> AskingPublisher:
        return AskingPublisher(list(self.brokers), seeded(f"{self.options.seed}/asking/{purpose}"))

    # --- workers ------------------------------------------------------------------------------------------------------

    def add_worker(self, name: str, run: Run | None = None) -> WorkerNode:
        self._add_machine(name)
        node = WorkerNode(name, self.options.client_config(), run=run)
        self.clients[name] = self.workers[name] = node
        self.start_client(name)
        return node

    def running_workers(self, prefix: str) -> list[WorkerNode]:
        return [node for name, node in self.workers.items() if name.startswith(prefix) and node.client is not None]

    def running_clients(self) -> list[str]:
        return [*super().running_clients(), *[node.name for node in self.running_workers("")]]

    def start_client(self, name: str) -> None:
        node = self.clients[name]
        if not (isinstance(node, WorkerNode) and node.is_done):
            super().start_client(name)

    def crash(self, name: str, kind: Crash, *, restart_s: float | None = None) -> None:
        if name in self.workers:
            self.workers[name].client = None
        super().crash(name, kind, restart_s=restart_s)

    async def _client_main(self, node: ClientNode, runtime: SimRuntime) -> None:
        if not isinstance(node, WorkerNode):
            await super()._client_main(node, runtime)
            return
        store = self.metadata.connect()
        try:
            async with LedgerClient(store, node.config, runtime) as client:
                node.client = client
                try:
                    if node.run is None:
                        await node.stopping.wait()
                    else:
                        await node.run(client)
                        node.is_done = True
                finally:
                    node.client = None
                    await self._end_work(node)
        finally:
            await store.aclose()
        self.watch.tell("on_client_closed", node.name)
