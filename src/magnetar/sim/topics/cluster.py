"""The cluster of one seed: bookies as for ledgers, and on them brokers, producers and consumers, each a process.

Broker:    node broker-0 …; starts again after a moment, whatever ended it.
App:       node of a producer or a consumer; what it must remember over its lives is in the history, as an application
           would have it in a database of its own. It ends by itself when the workload is over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from magnetar.broker.broker import Broker
from magnetar.client import ClientOptions, PulsarClient
from magnetar.config.root import Config
from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.runtime.metrics import Metrics
from magnetar.sim.device import Crash
from magnetar.sim.ledgers.cluster import ClientNode, Cluster
from magnetar.sim.runtime import SimRuntime
from magnetar.sim.seeds import seeded
from magnetar.sim.topics.metadata import TopicMetadata
from magnetar.sim.topics.options import TopicOptions
from magnetar.sim.topics.ownership import Board
from magnetar.sim.topics.watch import TopicWatch
from magnetar.sim.world import World

Work: TypeAlias = Callable[[PulsarClient], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class BrokerNode(ClientNode):
    broker: Broker | None = None
    """While it serves."""


@dataclass(slots=True)
class AppNode(ClientNode):
    run: Work | None = None
    options: ClientOptions | None = None
    is_running: bool = False
    is_done: bool = False
    """Its work has ended by itself."""


class TopicCluster(Cluster):
    def __init__(self, world: World, options: TopicOptions, watch: TopicWatch) -> None:
        self.topic_watch = watch
        self.topic_options = options
        super().__init__(world, options.base, watch)
        self.board = Board(seeded(f"{options.base.seed}/board"))
        self.brokers: dict[str, BrokerNode] = {}
        self.apps: dict[str, AppNode] = {}

    def make_metadata(self) -> TopicMetadata:
        return TopicMetadata(self.world.entropy, self.options.client_config().metadata, self.topic_watch)

    async def start(self) -> None:
        """Returns when every bookie and every broker has started once."""
        self.store = self.metadata.connect()
        await init_cluster(self.store, self.metadata.paths, self.world.entropy)
        for number in range(self.options.bookies):
            self._add_bookie(f"bookie-{number}")
        for number in range(self.topic_options.brokers):
            self._add_broker(f"broker-{number}")
        names = list(self.brokers)
        for number, topic in enumerate(self.topic_options.topic_names):
            self.board.owners[topic] = names[number % len(names)]
        await self.wait_until(
            lambda: (
                all(node.bookie for node in self.bookies.values())
                and all(node.broker for node in self.brokers.values())
            ),
            "the cluster did not start",
        )

    # --- brokers ------------------------------------------------------------------------------------------------------

    def _add_broker(self, name: str) -> None:
        self._add_machine(name)
        self.clients[name] = self.brokers[name] = BrokerNode(name, self.topic_options.broker_config(name))
        self.start_client(name)

    def _add_machine(self, name: str) -> None:
        drift = self._clock() if "clock" in self.options.faults else (0.0, 0.0, 1.0)
        self.world.add_node(name, clock_offset_ms=drift[0], clock_drift=drift[1], rate=drift[2])
        self._nodes_by_address[self.world.network.host(name).address] = name

    async def _client_main(self, node: ClientNode, runtime: SimRuntime) -> None:
        if isinstance(node, BrokerNode):
            await self._broker_main(node, runtime)
        else:
            assert isinstance(node, AppNode)
            await self._app_main(node, runtime)
        self.watch.tell("on_client_closed", node.name)

    async def _broker_main(self, node: BrokerNode, runtime: SimRuntime) -> None:
        store = self.metadata.connect()
        try:
            async with LedgerClient(store, node.config, runtime) as client:
                broker = await Broker.open(
                    node.config,
                    runtime,
                    store,
                    client,
                    Metrics(),
                    ownership=lambda address: self.board.join(node.name, address),
                )
                node.client, node.broker = client, broker
                self.watch.note(f"{node.name} serves")
                try:
                    async with self.beside(node, broker):
                        await node.stopping.wait()
                finally:
                    node.client = node.broker = None
                    await broker.aclose()
        finally:
            await store.aclose()

    @asynccontextmanager
    async def beside(self, node: BrokerNode, broker: Broker) -> AsyncIterator[None]:
        """What else a broker's process does while it serves: nothing, in a world of topics alone."""
        del node, broker
        yield

    def running_owners(self) -> list[str]:
        return [node.name for node in self.brokers.values() if node.broker is not None]

    def running_clients(self) -> list[str]:
        return [*self.running_owners(), *[node.name for node in self.apps.values() if node.is_running]]

    def crash(self, name: str, kind: Crash, *, restart_s: float | None = None) -> None:
        if name in self.brokers:
            self.brokers[name].broker = None
        if name in self.apps:
            self.apps[name].is_running = False
        super().crash(name, kind, restart_s=restart_s)

    # --- producers and consumers --------------------------------------------------------------------------------------

    def add_app(self, name: str, run: Work, *, options: ClientOptions | None = None) -> AppNode:
        self._add_machine(name)
        node = AppNode(name, Config(), run=run, options=options)
        self.clients[name] = self.apps[name] = node
        self.start_client(name)
        return node

    def start_client(self, name: str) -> None:
        node = self.clients[name]
        if not (isinstance(node, AppNode) and node.is_done):
            super().start_client(name)

    async def _app_main(self, node: AppNode, runtime: SimRuntime) -> None:
        assert node.run is not None
        node.is_running = True
        options = node.options or self.topic_options.client_options()
        client = PulsarClient(self.topic_options.service_url, runtime.entropy, options)
        try:
            await node.run(client)
            node.is_done = True
        finally:
            node.is_running = False
            await client.aclose()

    def stop_broker(self, name: str) -> None:
        """In order; it is not started again."""
        self.brokers[name].stopping.set()


def is_expected(error: BaseException) -> bool:
    return isinstance(error, MagnetarError | TimeoutError)
