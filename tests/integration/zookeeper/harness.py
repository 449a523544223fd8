"""The contract's harness on a real server: each store has its own proxy, so that its connection can be taken away."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from kazoo.client import KazooClient

from magnetar.config.metadata import MetadataConfig, ZooKeeperConfig
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.zookeeper.store import ZooKeeperStore, connect_zookeeper
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes.tcp_proxy import TcpProxy
from magnetar.testing.processes.zookeeper import HOST, ZooKeeperServer
from magnetar.testing.waiting import until
from tests.contracts.metadata_harness import CONTRACT_CONFIG, StoreHarness

PING = b"\xff\xff\xff\xfe"


def is_ping(chunk: bytes) -> bool:
    """One whole frame that is a heart-beat or its answer, and nothing else."""
    return chunk[4:8] == PING and int.from_bytes(chunk[:4], "big") == len(chunk) - 4


class ZooKeeperHarness(StoreHarness):
    def __init__(self, server: ZooKeeperServer, chroot: str) -> None:
        self._server = server
        self._chroot = chroot
        self._proxies: dict[MetadataStore, TcpProxy] = {}

    async def connect(self, config: MetadataConfig = CONTRACT_CONFIG) -> ZooKeeperStore:
        proxy = TcpProxy(HOST, self._server.port, is_noise=is_ping)
        await proxy.start()
        config = dataclasses.replace(config, url=f"zk://{proxy.address}{self._chroot}")
        try:
            store = await connect_zookeeper(config, ZooKeeperConfig(), SystemRuntime())
        except BaseException:
            await proxy.aclose()
            raise
        self._proxies[store] = proxy
        return store

    def proxy_of(self, store: MetadataStore) -> TcpProxy:
        return self._proxies[store]

    async def interrupt(self, store: MetadataStore) -> None:
        self._proxies[store].cut()
        await until(lambda: not store.session.state.is_usable, "the store knows that its connection is gone")

    async def restore(self, store: MetadataStore) -> None:
        self._proxies[store].mend()
        await until(lambda: store.session.state.is_usable, "the store is usable again")

    async def expire(self, store: MetadataStore) -> None:
        await expire(store, self._server.address)

    async def lose_next_answer(self, store: MetadataStore, *, done: bool) -> None:
        proxy = self._proxies[store]
        lose: Callable[[], None] = proxy.lose_answer if done else proxy.lose_request
        lose()

    async def aclose(self) -> None:
        for store, proxy in self._proxies.items():
            await store.aclose()
            await proxy.aclose()


async def expire(store: MetadataStore, address: str) -> None:
    """Closes the session from a second connection that knows its id and password."""
    assert isinstance(store, ZooKeeperStore)
    generation = store.session.generation
    await asyncio.to_thread(_close_session, address, store.client.client_id)
    await until(lambda: store.session.generation > generation, "the store has a new session")


def _close_session(address: str, client_id: tuple[int, bytes]) -> None:
    thief = KazooClient(address, client_id=client_id, timeout=4)
    thief.start(timeout=20)
    thief.stop()
    thief.close()


async def connect_to(url: str, zookeeper: ZooKeeperConfig | None = None, **settings: int) -> ZooKeeperStore:
    """Straight to the servers, with the contract's timeouts unless `settings` has others."""
    config = dataclasses.replace(CONTRACT_CONFIG, url=url, **settings)
    return await connect_zookeeper(config, zookeeper or ZooKeeperConfig(), SystemRuntime())
