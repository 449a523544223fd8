"""A cluster whose brokers have load managers, and own bundles with a load that the test sets. Lookups and commands are
calls; the metadata store is real.

async with load_world(3, per_bundle={…}) as world:
    await world.own_all()
    await in_time(is_even, "the loads are even")
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from magnetar.broker.cluster.load_manager import LoadManager
from magnetar.broker.cluster.load_report import Amount, BundleStats, Usage
from magnetar.broker.ownership import BrokerAddress
from magnetar.broker.resources.bundles import Bundles, NamespaceBundle
from magnetar.broker.resources.resources import Resources
from magnetar.broker.topics.registry import Topics
from magnetar.config.balance import BalanceConfig
from magnetar.config.broker import BrokerConfig
from magnetar.config.root import Config
from magnetar.errors import BrokerUnavailableError
from magnetar.metadata.local import LocalStore
from magnetar.names import NamespaceName
from magnetar.runtime.system import SystemEntropy
from tests.unit.broker.cluster.cluster_world import ClusterWorld, address, cluster_world

NAMESPACE = NamespaceName.parse("public/default")
BALANCE = BalanceConfig(round_interval_s=30, difference_min=10, rest_minutes=2)


_WAIT_S = 1_800


async def in_time(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Looks once a second for half an hour, which a round of the leader is a small part of."""
    for _ in range(_WAIT_S):
        if await condition():
            return
        await asyncio.sleep(1)
    raise AssertionError(f"waited {_WAIT_S} s in vain: {what}")


class Host:
    """A broker's ownership and traffic."""

    def __init__(self, world: LoadWorld) -> None:
        self._world = world
        self.bundles: dict[NamespaceBundle, float] = {}
        self.usage = 0.1
        self.is_frozen = False
        """Whether it measures nothing, as a process that is stopped."""

    def owned(self) -> Mapping[NamespaceBundle, float]:
        return self.bundles

    async def unload(self, bundle: NamespaceBundle, destination: str | None = None) -> None:
        self._world.unloads.append((bundle, destination))
        del self.bundles[bundle]

    async def split(self, bundle: NamespaceBundle) -> None:
        self._world.splits.append(bundle)
        del self.bundles[bundle]
        middle = (bundle.bundle.first + bundle.bundle.last) // 2

        def decide(found: dict[str, Any]) -> dict[str, Any]:
            return found | {"bundles": Bundles.from_json(found["bundles"]).split(bundle.bundle, middle).to_json()}

        await self._world.resources.namespaces.update_local(bundle.namespace, decide)
        halves = (await self._world.resources.namespaces.bundles(bundle.namespace)).all()
        now_s = asyncio.get_running_loop().time()
        stats = self._world.stats.pop(bundle, BundleStats())
        for half in halves:
            if bundle.bundle.first <= half.first and half.last <= bundle.bundle.last:
                name = NamespaceBundle(bundle.namespace, half)
                self.bundles[name] = now_s
                self._world.stats[name] = dataclasses.replace(stats, topics=stats.topics // 2)

    async def merge(self, bundle: NamespaceBundle) -> None:
        self._world.merges.append(bundle)

        def decide(found: dict[str, Any]) -> dict[str, Any]:
            return found | {"bundles": Bundles.from_json(found["bundles"]).merge(bundle.bundle).to_json()}

        await self._world.resources.namespaces.update_local(bundle.namespace, decide)
        whole = (await self._world.resources.namespaces.bundles(bundle.namespace)).of_hash(bundle.bundle.first)
        for part in [each for each in self.bundles if each.bundle.first in whole]:
            del self.bundles[part]
        self.bundles[NamespaceBundle(bundle.namespace, whole)] = asyncio.get_running_loop().time()

    async def measure(self, bundles: Iterable[NamespaceBundle]) -> Mapping[NamespaceBundle, BundleStats]:
        if self.is_frozen:
            await asyncio.get_running_loop().create_future()
        return {bundle: self._world.stats.get(bundle, BundleStats()) for bundle in bundles}


class SimBroker:
    def __init__(self, world: LoadWorld, name: str, config: Config) -> None:
        self.name = name
        self.id = f"{name}:8080"
        self.host = Host(world)
        self.store: LocalStore = world.cluster.connect()
        self.resources = Resources(self.store, config.broker)
        self.manager = LoadManager(
            self.resources,
            config,
            SystemEntropy(),
            address(name),
            world,
            lambda: Usage(cpu=Amount(self.host.usage * 100, 100)),
            make_traffic=lambda _topics, _slices: self.host,
        )
        self.manager.attach(self.host, cast("Topics", None))

    @property
    def load(self) -> int:
        """Returns the number of bundles, for a cluster in which all cost the same."""
        return len(self.host.bundles)


class LoadWorld:
    """Is the commands of all brokers, too."""

    def __init__(self, cluster: ClusterWorld, config: Config) -> None:
        self.cluster = cluster
        self.config = config
        self.brokers: dict[str, SimBroker] = {}
        self._foreign: dict[str, Host] = {}
        self.stats: dict[NamespaceBundle, BundleStats] = {}
        self.unloads: list[tuple[NamespaceBundle, str | None]] = []
        self.splits: list[NamespaceBundle] = []
        self.merges: list[NamespaceBundle] = []
        self.resources = Resources(cluster.connect(), config.broker)
        self.is_deaf = False
        """Whether commands do not arrive."""

    async def add(self, name: str) -> SimBroker:
        broker = SimBroker(self, name, self.config)
        self.brokers[broker.id] = broker
        await broker.manager.start()
        return broker

    def add_foreign(self, name: str, bundle: NamespaceBundle) -> str:
        """Adds what takes the commands for a broker without a load manager here, which owns the bundle; returns its
        id."""
        self._foreign[f"{name}:8080"] = host = Host(self)
        host.bundles[bundle] = asyncio.get_running_loop().time()
        return f"{name}:8080"

    async def kill(self, broker: SimBroker) -> None:
        """As kill -9 does, when its session has ended."""
        del self.brokers[broker.id]
        await self.cluster.server.expire(broker.store)
        await broker.manager.aclose()
        await broker.resources.aclose()

    @property
    def leader(self) -> SimBroker:
        (found,) = [broker for broker in self.brokers.values() if broker.manager.is_leader]
        return found

    async def own(self, bundle: NamespaceBundle) -> SimBroker:
        """As a lookup does."""
        chosen = self.brokers[await self.leader.manager.choose(bundle)]
        chosen.host.bundles[bundle] = asyncio.get_running_loop().time()
        return chosen

    async def bundles(self) -> list[NamespaceBundle]:
        return [NamespaceBundle(NAMESPACE, each) for each in (await self.resources.namespaces.bundles(NAMESPACE)).all()]

    async def own_all(self) -> None:
        """Gives each bundle an owner, as far as it has none."""
        owned = {bundle for broker in self.brokers.values() for bundle in broker.host.bundles}
        for bundle in await self.bundles():
            if bundle not in owned:
                await self.own(bundle)

    # --- commands -----------------------------------------------------------------------------------------------------

    def _host(self, broker: BrokerAddress) -> Host:
        if (foreign := self._foreign.get(broker.broker_id)) is not None:
            return foreign
        found = self.brokers.get(broker.broker_id)
        if found is None or self.is_deaf:
            raise BrokerUnavailableError(f"no server answers at {broker.http_url}")
        return found.host

    async def unload(self, broker: BrokerAddress, bundle: NamespaceBundle, destination: str | None) -> None:
        await self._host(broker).unload(bundle, destination)

    async def split(self, broker: BrokerAddress, bundle: NamespaceBundle) -> None:
        await self._host(broker).split(bundle)

    async def merge(self, broker: BrokerAddress, bundle: NamespaceBundle) -> None:
        await self._host(broker).merge(bundle)


@asynccontextmanager
async def load_world(
    brokers: int, *, bundles: int = 8, balance: BalanceConfig = BALANCE, start: bool = True
) -> AsyncIterator[LoadWorld]:
    config = Config(broker=BrokerConfig(namespace_bundles=bundles), balance=balance)
    async with cluster_world() as cluster:
        world = LoadWorld(cluster, config)
        await world.resources.bootstrap()
        for number in range(brokers if start else 0):
            await world.add(f"b{number}")
        yield world
        for broker in world.brokers.values():
            await broker.manager.aclose()
            await broker.resources.aclose()
        await world.resources.aclose()
