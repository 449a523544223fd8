"""A whole cluster in this process: bookies on real files, a broker and its admin interface on real ports.

    async with PulsarCluster(3) as cluster:
        ... PulsarClient(cluster.pulsar_url, cluster.runtime.entropy) ...
        await cluster.bookies.kill(0)

Metadata is in memory. Ports are of the system's choice. Nothing of it outlives the `async with`.
Read next: cluster_thread.py (the same for tests that are not asynchronous), plugin.py
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from magnetar.admin.server import AdminServer
from magnetar.bookie.http import Health
from magnetar.broker.broker import Broker
from magnetar.broker.names import Domain, NamespaceName
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.resources.bundles import Bundles
from magnetar.broker.resources.namespaces import new_policies
from magnetar.broker.subscription import Subscription
from magnetar.config.load import Assignment, load
from magnetar.config.root import Config
from magnetar.ledger.client import LedgerClient
from magnetar.runtime.metrics import Metrics
from magnetar.testing.bookie_cluster import BookieCluster

HOST: Final = "127.0.0.1"
REPLICAS_MAX: Final = 2  # Of an entry: one bookie can be lost, and with three there is one to take its place.
_SMALL: Final = (
    "metadata.url=memory:",
    "metadata.session_timeout_ms=2_000",
    "pulsar.port=0",
    "storage.write_cache_bytes_max=1_048_576",
    "storage.read_cache_bytes_max=1_048_576",
)


def cluster_config(bookies: int, settings: Iterable[str] = ()) -> Config:
    """Small, and with quorums that so many bookies can be; `settings` are SECTION.KEY=VALUE, and win."""
    replicas = min(bookies, REPLICAS_MAX)
    quorums = [f"topic.{name}={replicas}" for name in ("ensemble_size", "write_quorum", "ack_quorum")]
    return load(flags=[Assignment.parse(setting) for setting in (*_SMALL, *quorums, *settings)]).config


class PulsarCluster:
    """`async with` starts and ends it."""

    def __init__(self, bookies: int = 1, *, directory: Path | None = None, settings: Iterable[str] = ()) -> None:
        """Without a directory, a temporary one."""
        self._closing = contextlib.AsyncExitStack()
        self.config = cluster_config(bookies, settings)
        self.bookies = BookieCluster(bookies, directory=directory, config=self.config)
        self.runtime = self.bookies.runtime
        self.pulsar_url = ""
        self.admin_url = ""

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._closing.aclose()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._closing.aclose()

    async def _start(self) -> None:
        metrics = Metrics()
        bookies = await self._closing.enter_async_context(self.bookies)
        client = LedgerClient(bookies.store, self.config, self.runtime, local=bookies.local)
        await self._closing.enter_async_context(client)
        admin = AdminServer(metrics, self._health, self.runtime)
        http_port = await admin.start(HOST, 0)
        self._closing.push_async_callback(admin.aclose)
        self.broker = await Broker.open(
            self.config, self.runtime, bookies.store, client, metrics, http_port=http_port
        )  # fmt: skip
        self._closing.push_async_callback(self.broker.aclose)
        admin.attach(self.broker)
        self.pulsar_url = f"pulsar://{HOST}:{self.broker.port}"
        self.admin_url = f"http://{HOST}:{http_port}"

    def _health(self) -> Health:
        running = sum(node.is_running for node in self.bookies.nodes)
        return Health(running > 0, {"bookies": running})

    # --- namespaces ---------------------------------------------------------------------------------------------------

    async def create_namespace(self, name: str) -> None:
        broker = self.config.broker
        policies = new_policies([broker.cluster], Bundles.equal(broker.namespace_bundles))
        await self.broker.service.resources.namespaces.create(NamespaceName.parse(name), policies)

    async def delete_unused_topics(self, namespace: str) -> None:
        """All but those that somebody is still connected to: a client would only complain."""
        service = self.broker.service
        for name in await service.topics_of(NamespaceName.parse(namespace), [Domain.PERSISTENT]):
            loaded = service.topics.find(name)
            if loaded is None or not loaded.is_in_use:
                await service.delete_topic(name, force=True)

    async def subscriptions_of(self, namespace: str) -> list[tuple[str, Subscription]]:
        """Topic and subscription, of all persistent topics there."""
        service = self.broker.service
        names = await service.topics_of(NamespaceName.parse(namespace), [Domain.PERSISTENT])
        topics = [await service.topic(name, create=False) for name in names]
        return [
            (str(topic.name), subscription)
            for topic in topics
            if isinstance(topic, PersistentTopic)
            for subscription in topic.subscriptions.values()
        ]
