"""The cluster of one seed: bookies as for ledgers, and on them brokers, producers and consumers, each a process.

Broker:    node broker-0 …; starts again after a moment, whatever ended it.
App:       node of a producer or a consumer; what it must remember over its lives is in the history, as an application
           would have it in a database of its own. It ends by itself when the workload is over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from magnetar.broker.broker import Broker
from magnetar.broker.pulsar.front_end import PulsarFrontEnd
from magnetar.client import ClientOptions, PulsarClient
from magnetar.config.root import Config
from magnetar.ledger.client import LedgerClient
from magnetar.runtime.metrics import Metrics
from magnetar.sim.ledgers.cluster import ClientNode, Cluster, Node
from magnetar.sim.machine import SimRuntime
from magnetar.sim.seeds import seeded
from magnetar.sim.topics.options import TopicOptions
from magnetar.sim.topics.ownership import Board
from magnetar.sim.topics.watch import TopicWatch
from magnetar.sim.world import World

Work: TypeAlias = Callable[[PulsarClient], Coroutine[Any, Any, None]]
Beside: TypeAlias = Callable[[str, Broker], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def nothing_beside(_name: str, _broker: Broker) -> AsyncIterator[None]:
    yield


@dataclass(slots=True, kw_only=True)
class BrokerNode(ClientNode):
    board: Board
    beside: Beside
    """What else the process does while the broker serves."""
    watch: TopicWatch
    broker: Broker | None = None
    """While it serves."""
    is_leaving: bool = False
    """It was told to stop in order, and starts again after that."""

    @property
    def is_running(self) -> bool:
        return self.broker is not None

    async def main(self, runtime: SimRuntime) -> None:
        store = self.metadata.connect()
        try:
            async with LedgerClient(store, self.config, runtime) as client:
                front_end = PulsarFrontEnd(self.config.pulsar)
                broker = await Broker.open(
                    self.config,
                    runtime,
                    store,
                    client,
                    Metrics(),
                    front_ends=[front_end],
                    http_address=f"{self.config.pulsar.reached_at}:0",
                    ownership=lambda address: self.board.join(self.name, address),
                )
                self.client, self.broker = client, broker
                self.watch.note(f"{self.name} serves")
                self.watch.tell("on_broker_open", self.name, front_end)
                try:
                    async with self.beside(self.name, broker):
                        await self.stopping.wait()
                finally:
                    self.on_gone()
                    if self.is_leaving:
                        await self.end_work()  # Operators are sent away before the broker is closed.
                    await broker.aclose()
        finally:
            await store.aclose()

    def on_gone(self) -> None:
        self.client = self.broker = None
        self.watch.tell("on_broker_closed", self.name)

    def leave(self) -> None:
        """It stops in order, and is started again when it has ended, however that was."""
        self.is_leaving = True
        self.stopping.set()

    def stop(self) -> None:
        """In order; it is not started again."""
        self.is_leaving = False
        self.stopping.set()

    def may_return(self) -> bool:
        if self.is_leaving:
            self.is_leaving = False
            self.stopping.clear()
        return not self.stopping.is_set()


@dataclass(slots=True, kw_only=True)
class AppNode(Node):
    run: Work
    service_url: str
    options: ClientOptions
    is_at_work: bool = False

    @property
    def is_running(self) -> bool:
        return self.is_at_work

    async def main(self, runtime: SimRuntime) -> None:
        self.is_at_work = True
        client = PulsarClient(self.service_url, runtime.entropy, self.options)
        try:
            await self.run(client)
            self.is_done = True
        finally:
            self.is_at_work = False
            await client.aclose()

    def on_gone(self) -> None:
        self.is_at_work = False


class TopicCluster(Cluster):
    watch: TopicWatch

    def __init__(self, world: World, options: TopicOptions, watch: TopicWatch) -> None:
        super().__init__(world, options.base, watch)
        self.topic_options = options
        self.board = Board(seeded(f"{options.base.seed}/board"))
        self.brokers: dict[str, BrokerNode] = {}
        self.apps: dict[str, AppNode] = {}
        self.beside: Beside = nothing_beside

    def add_nodes(self) -> None:
        for number in range(self.topic_options.brokers):
            name = f"broker-{number}"
            config = self.topic_options.broker_config(name)
            self.brokers[name] = BrokerNode(
                name, config, metadata=self.metadata, board=self.board, beside=self.beside, watch=self.watch
            )
            self.add_node(self.brokers[name])
        names = list(self.brokers)
        for number, topic in enumerate(self.topic_options.topic_names):
            self.board.owners[topic] = names[number % len(names)]

    def add_app(self, name: str, run: Work, *, options: ClientOptions | None = None) -> AppNode:
        options = options or self.topic_options.client_options()
        node = AppNode(name, Config(), run=run, service_url=self.topic_options.service_url, options=options)
        self.apps[name] = node
        self.add_node(node)
        return node
