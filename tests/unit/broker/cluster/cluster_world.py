"""Brokers of one cluster on a metadata store in memory, each with a session of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from magnetar.broker.cluster.leader import Leadership
from magnetar.broker.cluster.load_report import BrokerReport
from magnetar.broker.cluster.members import Members
from magnetar.broker.ownership import BrokerAddress
from magnetar.config.metadata import MetadataConfig
from magnetar.metadata.local import LocalStore
from magnetar.metadata.memory import MemoryServer
from magnetar.runtime.system import SystemEntropy

TIMEOUT_S = 5.0
SESSION_S = 10.0


def address(name: str) -> BrokerAddress:
    return BrokerAddress(f"{name}:8080", f"http://{name}:8080", {"pulsar": f"pulsar://{name}:6650"}, {"pulsar": {}})


class ClusterWorld:
    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self._closing: list[LocalStore] = []

    def connect(self) -> LocalStore:
        """A new process's session; it ends with the world."""
        store = self.server.connect()
        self._closing.append(store)
        return store

    def members(self, name: str, store: LocalStore | None = None) -> Members:
        own = BrokerReport(address=address(name), updated_ms=1)
        return Members(store or self.connect(), own, Random(1), timeout_s=TIMEOUT_S)

    def leadership(self, name: str, store: LocalStore | None = None) -> Leadership:
        return Leadership(store or self.connect(), address(name), Random(1), timeout_s=TIMEOUT_S)

    async def aclose(self) -> None:
        for store in self._closing:
            await store.aclose()
        await self.server.aclose()


@asynccontextmanager
async def cluster_world() -> AsyncIterator[ClusterWorld]:
    config = MetadataConfig(url="memory:", session_timeout_ms=round(SESSION_S * 1000))
    world = ClusterWorld(MemoryServer(SystemEntropy(), config))
    try:
        yield world
    finally:
        await world.aclose()
