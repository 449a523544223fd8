"""Whole brokers of one cluster in this process, on the same bookie and metadata, each with a session of its own.

async with brokers_world("a", "b") as world:
    world.chooses = "b"
    await world.own("a", "t")
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

from magnetar.broker.cluster.ownership import BundleOwnership
from magnetar.broker.ownership import BrokerAddress, OwnershipContext
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.broker.topics.registry import Topics
from magnetar.client.http import HttpAnswer, HttpClient
from magnetar.config.broker import BrokerConfig
from magnetar.config.pulsar import PulsarConfig
from magnetar.config.topic import TopicConfig
from magnetar.metadata.local import LocalStore
from magnetar.names import TopicName
from magnetar.testing.cluster import BookieCluster, small_config
from tests.clusters import new_cluster
from tests.unit.admin.admin_world import AdminWorld
from tests.unit.broker.pulsar.broker_world import BrokerWorld


class Members:
    """Which brokers are alive, which one leads, and which one it chooses: every broker knows at once."""

    def __init__(self) -> None:
        self.leader = ""
        self.chooses = ""
        self.addresses: dict[str, BrokerAddress] = {}


class Member:
    """The assigner of one broker."""

    def __init__(self, members: Members, address: BrokerAddress) -> None:
        self._members = members
        self._address = address

    @property
    def is_leader(self) -> bool:
        return self._members.leader == self._address.broker_id

    async def leader(self) -> str | None:
        return self._members.leader

    async def choose(self, bundle: NamespaceBundle) -> str:
        return self._members.chooses or self._address.broker_id

    async def address_of(self, broker_id: str) -> BrokerAddress | None:
        return self._members.addresses.get(broker_id)

    def attach(self, host: BundleOwnership, topics: Topics) -> None:
        """Nothing is measured here."""

    async def start(self) -> None:
        self._members.addresses[self._address.broker_id] = self._address
        self._members.leader = self._members.leader or self._address.broker_id

    async def withdraw(self) -> None:
        self._members.addresses.pop(self._address.broker_id, None)
        if self.is_leader:
            self._members.leader = next(iter(self._members.addresses), "")

    async def aclose(self) -> None:
        await self.withdraw()


class BrokersWorld:
    make_broker: type[BrokerWorld] = BrokerWorld

    def __init__(self, cluster: BookieCluster) -> None:
        self.cluster = cluster
        self.members = Members()
        self.stores: dict[str, LocalStore] = {}
        self.brokers: dict[str, BrokerWorld] = {}
        self.admins: dict[str, AdminWorld] = {}

    async def start(self, name: str) -> None:
        store = self.stores[name] = self.cluster.server.connect()
        broker = self.brokers[name] = self.make_broker(
            self.cluster,
            dataclasses.replace(self.cluster.config),
            store=store,
            http_address=f"{name}:8080",
            ownership=self._ownership,
        )
        await broker.start()
        self.admins[name] = AdminWorld(broker)

    def _ownership(self, context: OwnershipContext) -> BundleOwnership:
        return BundleOwnership(context, Member(self.members, context.address))

    async def stop(self, name: str) -> None:
        await self.brokers.pop(name).stop()
        await self.stores.pop(name).aclose()

    def ownership(self, name: str) -> BundleOwnership:
        found = self.brokers[name].broker.service.ownership
        assert isinstance(found, BundleOwnership)
        return found

    async def own(self, name: str, topic: str) -> NamespaceBundle:
        """Makes the broker the owner of the topic's bundle, as one that was chosen."""
        parsed = TopicName.parse(topic)
        assert (await self.ownership(name).owner_of(parsed, is_authoritative=True)).is_here
        return await self.ownership(name).bundle_of(parsed)

    def url_of(self, name: str) -> str:
        return f"pulsar://127.0.0.1:{self.brokers[name].front_end.port}"

    async def ask(
        self, client: HttpClient, method: str, path: str, query: dict[str, Any], body: bytes = b"", **_: object
    ) -> HttpAnswer:
        """Takes the place of `HttpClient.request`: the request goes to the broker of the client's address."""
        admin = self.admins[client.addresses[0].host]
        query_text = "&".join(f"{name}={value}" for name, value in query.items())
        answer = await admin.call(method, f"{path}?{query_text}", raw=body)
        return HttpAnswer(answer.status, answer.headers, answer.body)


@contextlib.asynccontextmanager
async def brokers_world(
    *names: str, kind: type[BrokersWorld] = BrokersWorld, **sections: Any
) -> AsyncIterator[BrokersWorld]:
    """The first broker leads. A section that is given replaces the one here."""
    config = small_config(
        **{
            "pulsar": PulsarConfig(port=0),
            "topic": TopicConfig(ensemble_size=1, write_quorum=1, ack_quorum=1),
            "broker": BrokerConfig(),
            **sections,
        }
    )
    async with new_cluster(1, config=config) as cluster:
        world = kind(cluster)
        try:
            for name in names:
                await world.start(name)
            yield world
        finally:
            for name in list(world.brokers):
                await world.stop(name)
