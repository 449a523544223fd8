"""Brokers of one cluster that are nothing but their ownership, on one metadata store in memory.

async with ownership_world("a", "b") as world:
    world.chooses = "b"
    assert (await world["a"].owner_of(TOPIC)).address.broker_id == "b:8080"
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

from magnetar.broker.cluster.ownership import BundleOwnership
from magnetar.broker.front_end import PULSAR
from magnetar.broker.ownership import BrokerAddress, Owner, OwnershipContext, Successor, TopicSet
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.broker.resources.resources import Resources
from magnetar.broker.topics.registry import Topics
from magnetar.config.broker import BrokerConfig
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import ServiceNotReadyError
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import MetadataStore
from magnetar.names import TopicName
from magnetar.runtime.system import SystemRuntime
from tests.contracts.local_harness import LocalHarness
from tests.contracts.metadata_harness import CONTRACT_CONFIG, StoreHarness

TOPIC = TopicName.parse("persistent://public/default/t")
TIMEOUT_S = 5.0
_CONFIG = dataclasses.replace(CONTRACT_CONFIG, session_timeout_ms=1_000)


def id_of(name: str) -> str:
    return f"{name}:8080"


def address_of(name: str) -> BrokerAddress:
    return BrokerAddress(id_of(name), f"http://{name}:8080", {PULSAR: f"pulsar://{name}:6650"})


class OwnershipWorld:
    """Is also the assigner of each broker, by `Assigned`. The first broker leads."""

    def __init__(self, config: BrokerConfig, harness: StoreHarness) -> None:
        self.config = config
        self.runtime = SystemRuntime()
        self.harness = harness
        self.nodes: dict[str, OwnershipNode] = {}
        self.leader: str | None = None
        self.chooses = ""
        """The broker that is chosen for every bundle; empty: the one that is asked."""

    def __getitem__(self, name: str) -> OwnershipNode:
        return self.nodes[name]

    async def start(self, name: str) -> OwnershipNode:
        node = self.nodes[name] = OwnershipNode(self, name, await self.harness.connect(_CONFIG))
        await node.resources.bootstrap()
        self.leader = self.leader or id_of(name)
        return node

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()


class OwnershipNode:
    """One broker."""

    def __init__(self, world: OwnershipWorld, name: str, store: MetadataStore) -> None:
        self.world = world
        self.name = name
        self.store = store
        self.resources = Resources(self.store, world.config)
        self.lost: list[TopicSet] = []
        self.may_close = asyncio.Event()
        """Whether topics that are unloaded have been closed."""
        self.may_close.set()
        self.chosen = 0
        config = Config(metadata=MetadataConfig(url="memory:"), broker=world.config)
        context = OwnershipContext(address_of(name), self.resources, config, world.runtime)
        self.ownership = BundleOwnership(context, self)
        self.ownership.listen(self._on_lost)

    def _on_lost(self, topics: TopicSet, _successor: Successor | None) -> asyncio.Task[None]:
        self.lost.append(topics)
        return asyncio.get_running_loop().create_task(self._close())

    async def _close(self) -> None:
        await self.may_close.wait()

    async def stop(self) -> None:
        await self.ownership.aclose()
        await self.resources.aclose()
        await self.store.aclose()

    # --- asking -------------------------------------------------------------------------------------------------------

    async def owner_of(self, topic: TopicName = TOPIC, *, is_authoritative: bool = False) -> Owner:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.ownership.owner_of(topic, is_authoritative=is_authoritative)

    async def acquire(self, topic: TopicName = TOPIC) -> NamespaceBundle:
        assert (await self.owner_of(topic, is_authoritative=True)).is_here
        assert self.owns(topic)
        return await self.ownership.bundle_of(topic)

    def owns(self, topic: TopicName = TOPIC) -> bool:
        return self.ownership.owns(topic)

    async def serves(self, topic: TopicName = TOPIC) -> bool:
        """Whether a lookup here answers that it is here."""
        try:
            return (await self.owner_of(topic)).is_here
        except ServiceNotReadyError:
            return False

    # --- as its own assigner ------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self.world.leader == id_of(self.name)

    async def leader(self) -> str | None:
        return self.world.leader

    async def choose(self, bundle: NamespaceBundle) -> str:
        self.chosen += 1
        return id_of(self.world.chooses or self.name)

    async def address_of(self, broker_id: str) -> BrokerAddress | None:
        name = broker_id.partition(":")[0]
        return address_of(name) if name in self.world.nodes else None

    def attach(self, host: BundleOwnership, topics: Topics) -> None:
        """Nothing is measured here."""

    async def start(self) -> None:
        """The world knows every broker that it has started."""

    async def withdraw(self) -> None:
        """The world chooses what the test wants."""

    async def aclose(self) -> None:
        """Nothing runs."""


@contextlib.asynccontextmanager
async def ownership_world(
    *names: str, config: BrokerConfig | None = None, harness: StoreHarness | None = None
) -> AsyncIterator[OwnershipWorld]:
    """On the harness's store, or on one in memory."""
    used = harness or LocalHarness(MemoryServer(SystemRuntime().entropy, CONTRACT_CONFIG))
    world = OwnershipWorld(config or BrokerConfig(), used)
    try:
        for name in names:
            await world.start(name)
        yield world
    finally:
        await world.stop()
        if harness is None:
            await used.aclose()
