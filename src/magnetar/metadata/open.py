"""Opens the store that a URL names.

Format:    memory:                        nothing is kept; a tree of this process alone
           sqlite:PATH                    one file, one process, durable: the embedded default
           zk://h1:2181,h2:2181/chroot    ZooKeeper, any number of servers; a missing chroot is made
"""

from __future__ import annotations

from dataclasses import replace

from magnetar.config.root import Config
from magnetar.errors import ConfigError
from magnetar.metadata.local import LocalServer, LocalStore
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.runtime import Runtime

FORMS = "memory:, sqlite:PATH or zk://host:2181,host:2181/chroot"


async def open_store(config: Config, runtime: Runtime, metrics: Metrics | None = None) -> MetadataStore:
    """Connects a new session. Raises ConfigError for an invalid URL, MetadataError when the store cannot be reached."""
    store = await _open(config, runtime)
    if metrics is not None:
        store.observe(metrics)
    return store


async def open_configuration_store(config: Config, runtime: Runtime) -> MetadataStore | None:
    """Connects to the store that several clusters share; None if this cluster keeps its configuration by itself."""
    metadata = config.metadata
    if metadata.configuration_url in ("", metadata.url):
        return None
    try:
        return await _open(replace(config, metadata=replace(metadata, url=metadata.configuration_url)), runtime)
    except ConfigError as error:
        raise ConfigError(str(error).replace("metadata.url", "metadata.configuration_url")) from None


async def _open(config: Config, runtime: Runtime) -> MetadataStore:
    scheme, colon, rest = config.metadata.url.partition(":")
    if not colon:
        raise ConfigError(f"metadata.url {config.metadata.url!r} is not a store; use {FORMS}")
    match scheme:
        case "memory" if not rest:
            return _own(MemoryServer(runtime.entropy, config.metadata))
        case "sqlite" if rest:
            from magnetar.metadata.sqlite import open_sqlite_server  # Imported only when it is used.

            return _own(await open_sqlite_server(rest, runtime, config.metadata, config.sqlite))
        case "zk":
            from magnetar.metadata.zookeeper.store import connect_zookeeper  # kazoo is an extra.

            return await connect_zookeeper(config.metadata, config.zookeeper, runtime)
    raise ConfigError(f"metadata.url {config.metadata.url!r} is not a store; use {FORMS}")


def _own(server: LocalServer) -> MetadataStore:
    store = OwningStore(server, server.config)
    server.adopt(store)
    return store


class OwningStore(LocalStore):
    """The only session of its server; closing it closes the server."""

    async def aclose(self) -> None:
        await self._server.aclose()
