"""The cluster of one seed: that of topics, with brokers that agree on the owners of bundles by themselves.

Broker:    what `magnetar broker` runs: ownership by nodes, the load manager, the admin interface at its HTTP port. It
           ends when its broker says that it must, and starts again after a moment, as under a supervisor.
Load:      the load manager is told what each topic weighs, whether or not clients use it; CPU and memory count nothing.
           All else about it is production's: reports, averages, rounds, requests to other brokers.
Read next: watch.py, invariants.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import magnetar.admin.http.app  # noqa: F401 - brokers import it when the first client connects, inside of a seed
from magnetar.admin.server import AdminServer
from magnetar.broker.broker import Broker
from magnetar.broker.cluster.commands import AdminCommands
from magnetar.broker.cluster.load_manager import LoadManager
from magnetar.broker.cluster.load_report import BundleStats, Usage
from magnetar.broker.cluster.ownership import Assigner, BundleOwnership, _Held
from magnetar.broker.ownership import Acquired, Ownership, OwnershipContext, Successor
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.broker.topics.registry import Topics
from magnetar.config.process import HttpConfig
from magnetar.metadata.store import SessionState
from magnetar.names import TopicName
from magnetar.runtime.metrics import Health, Metrics
from magnetar.runtime.slices import Slices
from magnetar.runtime.web_guard import WebGuard
from magnetar.sim.bundles.options import BundleOptions
from magnetar.sim.bundles.watch import BundleWatch
from magnetar.sim.machine import SimRuntime
from magnetar.sim.topics.cluster import BrokerNode, TopicCluster
from magnetar.sim.world import World

HTTP_PORT: Final = 8080
_ANY: Final = "0.0.0.0"  # noqa: S104 - a host of the simulated network


# --- one broker's part ------------------------------------------------------------------------------------------------


class WatchedOwnership(BundleOwnership):
    """Tells of what it takes itself for, and of what it ends."""

    def __init__(self, context: OwnershipContext, manager: LoadManager, broker: str, watch: BundleWatch) -> None:
        assigner: Assigner = manager
        super().__init__(context, assigner, manager)
        self._broker = broker
        self._watch = watch

    def _hold(self, bundle: NamespaceBundle, session_id: int, acquired: Acquired) -> None:
        self._watch.counters[f"bundles acquired: {acquired}"] += 1
        super()._hold(bundle, session_id, acquired)
        self._watch.tell("on_claimed", self._broker, bundle, session_id)

    async def _is_ours(self, held: _Held) -> bool:
        before = held.session_id
        is_done = await super()._is_ours(held)
        if is_done and self._held.get(held.bundle) is held:
            if held.session_id != before:
                self._watch.counters["bundles owned again"] += 1
            self._watch.tell("on_claimed", self._broker, held.bundle, held.session_id)
        return is_done

    def _lose(self, held: _Held, why: str) -> None:
        self._watch.note(f"{self._broker} loses {held.bundle.bundle}: {why}")
        self._watch.counters["bundles lost"] += 1
        super()._lose(held, why)
        self._tell_given_up(held.bundle)

    async def _unload_topics(self, bundle: NamespaceBundle, successor: Successor) -> None:
        self._watch.counters["bundles unloaded"] += 1
        self._tell_given_up(bundle)
        await super()._unload_topics(bundle, successor)

    def _tell_given_up(self, bundle: NamespaceBundle) -> None:
        held = self._held.get(bundle)
        self._watch.tell("on_given_up", self._broker, bundle, is_served=held is not None and held.is_serving)


class SteadyTraffic:
    """What the bundles of a broker would carry, if all their topics were always in use."""

    def __init__(self, options: BundleOptions, topics: Topics, slices: Slices) -> None:
        del topics, slices
        names = map(TopicName.parse, options.world.topic_names)
        self._weights = dict(zip(names, options.weights, strict=False))

    async def measure(self, bundles: Iterable[NamespaceBundle]) -> Mapping[NamespaceBundle, BundleStats]:
        return {bundle: self._measure(bundle) for bundle in bundles}

    def _measure(self, bundle: NamespaceBundle) -> BundleStats:
        inside = [weight for topic, weight in self._weights.items() if topic in bundle]
        return BundleStats(float(sum(inside)), 0.0, float(sum(inside)), 0.0, len(inside), len(inside), len(inside))


@dataclass(slots=True, kw_only=True)
class BundleBroker(BrokerNode):
    options: BundleOptions
    bundle_watch: BundleWatch
    admin: AdminServer | None = None
    ownership: WatchedOwnership | None = None
    manager: LoadManager | None = None

    async def main(self, runtime: SimRuntime) -> None:
        guard = WebGuard(HttpConfig(), _ANY)
        self.admin = AdminServer(Metrics(), lambda: Health(True, {}), guard, runtime)
        await self.admin.start(_ANY, HTTP_PORT)
        try:
            await BrokerNode.main(self, runtime)
        finally:
            await self.admin.aclose()

    def make_ownership(self, context: OwnershipContext) -> Ownership:
        entropy = context.runtime.entropy
        self.manager = LoadManager(
            context.resources,
            context.config,
            entropy,
            context.address,
            AdminCommands(entropy.random),
            Usage,
            partial(SteadyTraffic, self.options),
        )
        self.ownership = WatchedOwnership(context, self.manager, self.name, self.bundle_watch)
        return self.ownership

    async def wait_end(self, broker: Broker) -> None:
        failed = asyncio.ensure_future(broker.wait_failed())
        stopped = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                self.bundle_watch.counters["brokers that stopped by themselves"] += 1
                raise failed.result()
        finally:
            for task in (failed, stopped):
                task.cancel()
            await asyncio.gather(failed, stopped, return_exceptions=True)

    def on_gone(self) -> None:
        self.ownership = self.manager = None
        BrokerNode.on_gone(self)


# --- the cluster ------------------------------------------------------------------------------------------------------


class BundleCluster(TopicCluster):
    watch: BundleWatch

    def __init__(self, world: World, options: BundleOptions, watch: BundleWatch) -> None:
        super().__init__(world, options.world, watch)
        self.bundle_options = options
        self.beside = self._administered
        self.bundle_brokers: dict[str, BundleBroker] = {}

    def make_broker(self, name: str) -> BrokerNode:
        node = self.bundle_brokers[name] = BundleBroker(
            name,
            self.bundle_options.broker_config(name),
            metadata=self.metadata,
            board=self.board,
            beside=self.beside,
            watch=self.watch,
            http_port=HTTP_PORT,
            options=self.bundle_options,
            bundle_watch=self.watch,
        )
        return node

    @asynccontextmanager
    async def _administered(self, name: str, broker: Broker) -> AsyncIterator[None]:
        admin = self.bundle_brokers[name].admin
        assert admin is not None
        admin.attach(broker)
        try:
            yield
        finally:
            await admin.aclose()  # Before the broker: requests need it.

    @property
    def http_urls(self) -> str:
        return "http://" + ",".join(f"{name}:{HTTP_PORT}" for name in self.bundle_brokers)

    def agree(self) -> None:
        """Brokers agree by themselves."""

    def owner_of(self, topic: str) -> BrokerNode:
        generation = self.watch.owner_of(topic)
        return self.brokers[generation.owner if generation is not None else next(iter(self.brokers))]

    # --- sessions -----------------------------------------------------------------------------------------------------

    def expire(self, name: str) -> None:
        """The sessions of the process end, as if it had been silent for too long; it hears of that soon."""
        for store in self.metadata.stores_of(self.world.process(name)):
            work = self.metadata.expire(store)
            self.world.loop.create_task(work, name=f"expire {name}", context=self.world.loop.root.context)

    def expire_leaving_nodes(self, name: str, seconds: float) -> None:
        """As `expire`, but the nodes of the sessions vanish only after some time."""
        loop, metadata = self.world.loop, self.metadata
        for store in metadata.stores_of(self.world.process(name)):
            if store.session.state.is_usable:
                end = partial(metadata.end_later, metadata.renew(store))
                loop.call_later(seconds, end, context=loop.root.context)

    def cut_for(self, name: str, seconds: float) -> None:
        """The process cannot reach the metadata for a while. It hears of the end of its session when it can again."""
        stores = [store for store in self.metadata.stores_of(self.world.process(name)) if store.session.state.is_usable]
        for store in stores:
            self.metadata.cut(store)

        def mend() -> None:
            for store in stores:
                is_alive = store.process is None or store.process.is_alive
                if is_alive and store.session.state is SessionState.DISCONNECTED:
                    self.metadata.mend(store)

        self.world.loop.call_later(seconds, mend, context=self.world.loop.root.context)
