"""What the checks of this part share: Apache's classes in a Java process, and a real ZooKeeper for both sides."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from interop.java_program import JavaProgram
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.metadata.bookkeeper.cookies import CookieStore
from magnetar.metadata.bookkeeper.id_generator import LedgerIdGenerator
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.open import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes.zookeeper import ZooKeeperServer


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster's place, seen from both sides."""

    apache: JavaProgram
    store: MetadataStore
    paths: BookKeeperPaths
    runtime: SystemRuntime

    @property
    def ledgers(self) -> LedgerMetadataStore:
        return LedgerMetadataStore(self.store, self.paths, self.runtime.entropy)

    @property
    def cookies(self) -> CookieStore:
        return CookieStore(self.store, self.paths)

    @property
    def ids(self) -> LedgerIdGenerator:
        return LedgerIdGenerator(self.store, self.paths)


@dataclass(slots=True)
class Metadata:
    apache: JavaProgram
    store: MetadataStore
    server: ZooKeeperServer
    runtime: SystemRuntime = field(default_factory=SystemRuntime)
    _clusters: int = 0

    async def new_place(self, layout: str = "hierarchical") -> Cluster:
        """A root where nothing is yet; Apache's side is connected to it from now on."""
        self._clusters += 1
        root = f"/cluster-{self._clusters}"
        await self.apache.ask("connect", zookeeper=self.server.address, root=root, layout=layout)
        return Cluster(self.apache, self.store, BookKeeperPaths(root), self.runtime)


@pytest.fixture(scope="package")
async def metadata() -> AsyncIterator[Metadata]:
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-interop-") as temporary,
        JavaProgram("ApacheMetadata", Path(temporary)) as apache,
        ZooKeeperServer(Path(temporary) / "zookeeper") as server,
    ):
        config = Config(metadata=MetadataConfig(url=server.url))
        async with await open_store(config, SystemRuntime()) as store:
            yield Metadata(apache, store, server)
