"""Brokers whose connection to ZooKeeper goes through a proxy, so that a test can end their sessions while they run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import HOST, BrokerProcess
from magnetar.testing.processes.tcp_proxy import TcpProxy

_TIMEOUT_S = 10.0


class ProxyThread:
    """A proxy on a loop of its own, for tests that wait in blocking calls."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._proxy = TcpProxy(HOST, port)
        self._run(self._proxy.start())
        self.address = self._proxy.address

    def cut(self) -> None:
        """Drops the connections, and accepts no others until `mend`."""
        self._loop.call_soon_threadsafe(self._proxy.cut)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.mend)

    def close(self) -> None:
        self._run(self._proxy.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_TIMEOUT_S)


class DistantBroker(BrokerProcess):
    def __init__(self, directory: Path, proxy: ProxyThread, settings: Sequence[str]) -> None:
        super().__init__(directory, f"zk://{proxy.address}", *settings)
        self.proxy = proxy
        self.log = directory.with_suffix(".log")


@contextmanager
def distant_brokers(
    cluster: ProcessCluster, directory: Path, settings_of: dict[str, Sequence[str]]
) -> Iterator[list[DistantBroker]]:
    """Adds brokers to a cluster that has not been started yet, with these names and settings."""
    port = int(cluster.metadata.rpartition(":")[2])
    proxies = [ProxyThread(port) for _ in settings_of]
    try:
        made = [
            DistantBroker(directory / name, proxy, settings)
            for (name, settings), proxy in zip(settings_of.items(), proxies, strict=True)
        ]
        cluster.brokers += made
        yield made
    finally:
        for proxy in proxies:
            proxy.close()
