"""The cluster of one seed: bookies as for ledgers, and on them brokers, producers and consumers, each a process.

Broker:    node broker-0 …; starts again after a moment, whatever ended it.
App:       node of a producer or a consumer; what it must remember over its lives is in the history, as an application
           would have it in a database of its own. It ends by itself when the workload is over.
Board:     which broker serves which topic, as an operator has written it.
View:      what one broker believes of that. A new owner hears of a move soon, others later; an old owner maybe not at
           all, and continues until the topic's log stops it. A broker that starts reads the board.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

from magnetar.broker.broker import Broker
from magnetar.broker.front_end import PULSAR
from magnetar.broker.ownership import (
    Acquired,
    BrokerAddress,
    Lost,
    Owner,
    OwnerRecord,
    Ownership,
    OwnershipContext,
)
from magnetar.broker.pulsar.front_end import PulsarFrontEnd
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.registry import Topics
from magnetar.client import ClientOptions, PulsarClient
from magnetar.config.root import Config
from magnetar.errors import NotAllowedError, ServiceNotReadyError
from magnetar.ledger.client import LedgerClient
from magnetar.names import TopicName
from magnetar.runtime.metrics import Metrics
from magnetar.sim.ledgers.cluster import ClientNode, Cluster, Node
from magnetar.sim.loop import SimLoop
from magnetar.sim.machine import SimRuntime
from magnetar.sim.seeds import seeded
from magnetar.sim.topics.options import PORT, TopicOptions
from magnetar.sim.topics.watch import TopicWatch
from magnetar.sim.world import World

# --- ownership --------------------------------------------------------------------------------------------------------


class Board:
    def __init__(self, random: Random) -> None:
        self.owners: dict[str, str] = {}
        """Topic → the node that shall serve it."""
        self._generations: dict[str, int] = {}
        """Topic → how often it was moved."""
        self._random = random
        self._views: dict[str, View] = {}

    def join(self, name: str, address: BrokerAddress) -> View:
        """A broker starts."""
        view = self._views[name] = View(name, address)
        for topic, owner in self.owners.items():
            view.begin(topic, owner, self._generations.get(topic, 0))
        return view

    def move(self, topic: str, to: str, *, tell_old_after_s: float) -> None:
        old, self.owners[topic] = self.owners.get(topic, ""), to
        generation = self._generations[topic] = self._generations.get(topic, 0) + 1
        for name, view in self._views.items():
            delay_s = 0.02 * self._random.random() if name == to else 0.3 * self._random.random()
            view.hear_later(topic, to, generation, tell_old_after_s if name == old else delay_s)

    def tell_everybody(self) -> None:
        for topic, owner in self.owners.items():
            for view in self._views.values():
                view.hear_later(topic, owner, self._generations.get(topic, 0), 0.0)


class View(Ownership):
    """Of one process. The operator speaks to it from outside; it listens as the process that it belongs to.

    A topic that was another's in between is lost first, also when it comes back at the same moment: what is loaded
    knows nothing of what the other has done.
    """

    def __init__(self, name: str, address: BrokerAddress) -> None:
        self._name = name
        self._address = address
        self._owners: dict[str, tuple[int, str]] = {}
        """Topic → generation and owner."""
        self._listeners: dict[Lost, None] = {}
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self._loop = loop
        self._process = loop.current()

    def begin(self, topic: str, owner: str, generation: int) -> None:
        self._owners[topic] = generation, owner

    def hear_later(self, topic: str, owner: str, generation: int, delay_s: float) -> None:
        if self._process.is_alive:
            context = self._process.context.copy()
            self._loop.call_later(delay_s, self._hear, topic, owner, generation, context=context)

    def _hear(self, topic: str, owner: str, generation: int) -> None:
        known, was = self._owners.get(topic, (-1, ""))
        if generation <= known:
            return  # News of an earlier move that come late are none.
        self._owners[topic] = generation, owner
        if was == self._name:
            for lost in list(self._listeners):
                lost({TopicName.parse(topic)}, None)

    def _owner(self, topic: TopicName) -> str | None:
        found = self._owners.get(str(topic))
        return None if found is None else found[1]

    async def owner_of(self, topic: TopicName, *, is_authoritative: bool = False) -> Owner:
        del is_authoritative  # The operator alone chooses.
        owner = self._owner(topic)
        if owner is None:
            raise ServiceNotReadyError(f"no broker serves {topic}")
        if owner == self._name:
            return Owner(self._address, is_here=True)
        address = BrokerAddress(f"{owner}:0", f"http://{owner}:0", {PULSAR: f"pulsar://{owner}:{PORT}"})
        return Owner(address, is_here=False, is_candidate=True)  # Which may know better.

    def owns(self, topic: TopicName) -> bool:
        return self._owner(topic) == self._name

    async def take_up(self, topic: TopicName) -> None:
        """Does nothing: the operator alone chooses."""

    def listen(self, lost: Lost) -> Callable[[], None]:
        self._listeners[lost] = None

        def stop() -> None:
            self._listeners.pop(lost, None)

        return stop

    async def start(self, topics: Topics) -> None:
        """Does nothing: the operator alone chooses."""

    async def give_up(self) -> None:
        """Does nothing: the operator alone moves topics."""

    async def aclose(self) -> None:
        """Does nothing: a view that is not used any more is only not told."""

    async def owner_of_bundle(self, bundle: NamespaceBundle, *, is_authoritative: bool = False) -> Owner:
        del is_authoritative
        raise self._not_in_bundles(bundle)

    async def find_owner(self, bundle: NamespaceBundle) -> Owner | None:
        raise self._not_in_bundles(bundle)

    async def record_of(self, bundle: NamespaceBundle) -> OwnerRecord | None:
        raise self._not_in_bundles(bundle)

    def acquired(self, bundle: NamespaceBundle) -> Acquired | None:
        raise self._not_in_bundles(bundle)

    async def unload(self, bundle: NamespaceBundle, destination: str | None = None) -> None:
        del destination
        raise self._not_in_bundles(bundle)

    async def split(self, bundle: NamespaceBundle, at: int | None = None) -> None:
        del at
        raise self._not_in_bundles(bundle)

    def _not_in_bundles(self, bundle: NamespaceBundle) -> NotAllowedError:
        return NotAllowedError(f"{bundle}: the operator moves topics one by one")


# --- nodes and the cluster --------------------------------------------------------------------------------------------


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
    http_port: int = 0
    """0: nobody listens there."""
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
                    http_address=f"{self.config.pulsar.reached_at}:{self.http_port}",
                    ownership=self.make_ownership,
                )
                self.client, self.broker = client, broker
                self.watch.note(f"{self.name} serves")
                self.watch.tell("on_broker_open", self.name, front_end)
                try:
                    async with self.beside(self.name, broker):
                        await self.wait_end(broker)
                finally:
                    self.on_gone()
                    if self.is_leaving:
                        await self.end_work()  # Operators are sent away before the broker is closed.
                    await broker.aclose()
        finally:
            await store.aclose()

    def make_ownership(self, context: OwnershipContext) -> Ownership:
        return self.board.join(self.name, context.address)

    async def wait_end(self, broker: Broker) -> None:
        """Until it was told to stop."""
        del broker
        await self.stopping.wait()

    def served(self, topic: str) -> PersistentTopic | None:
        """The topic of this name, if the broker has loaded it."""
        return self.broker.service.topics.find_persistent(TopicName.parse(topic)) if self.broker is not None else None

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
            self.brokers[name] = self.make_broker(name)
            self.add_node(self.brokers[name])
        names = list(self.brokers)
        for number, topic in enumerate(self.topic_options.topic_names):
            self.board.owners[topic] = names[number % len(names)]

    def make_broker(self, name: str) -> BrokerNode:
        config = self.topic_options.broker_config(name)
        return BrokerNode(name, config, metadata=self.metadata, board=self.board, beside=self.beside, watch=self.watch)

    def agree(self) -> None:
        """Every broker knows who owns what."""
        self.board.tell_everybody()

    def served(self, topic: str) -> PersistentTopic | None:
        """The topic at the broker that shall serve it, if that one has loaded it."""
        return self.owner_of(topic).served(topic)

    def owner_of(self, topic: str) -> BrokerNode:
        """The broker that shall serve the topic."""
        return self.brokers[self.board.owners[topic]]

    def add_app(self, name: str, run: Work, *, options: ClientOptions | None = None) -> AppNode:
        options = options or self.topic_options.client_options()
        node = AppNode(name, Config(), run=run, service_url=self.topic_options.service_url, options=options)
        self.apps[name] = node
        self.add_node(node)
        return node
