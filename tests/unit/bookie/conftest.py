"""A cluster in memory, and machines whose processes can be killed between any two steps."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from magnetar.config.metadata import MetadataConfig
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.memory import MemoryServer
from magnetar.runtime.system import SystemEntropy

METADATA = MetadataConfig(url="memory:", session_timeout_ms=400, operation_timeout_ms=5_000)
PATHS = BookKeeperPaths()


@pytest.fixture
async def server() -> AsyncIterator[MemoryServer]:
    """With a cluster in it."""
    entropy = SystemEntropy()
    server = MemoryServer(entropy, METADATA)
    async with server.connect() as store:
        await init_cluster(store, PATHS, entropy)
    yield server
    await server.aclose()
