"""A metadata store in memory, and resources on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from magnetar.broker.resources.resources import Resources
from magnetar.config.broker import BrokerConfig
from magnetar.config.metadata import MetadataConfig
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.system import SystemEntropy

TIMEOUT_S = 5.0


@asynccontextmanager
async def memory_store() -> AsyncIterator[MetadataStore]:
    server = MemoryServer(SystemEntropy(), MetadataConfig(url="memory:"))
    async with server.connect() as store:
        yield store
    await server.aclose()


@asynccontextmanager
async def resources_world(config: BrokerConfig | None = None) -> AsyncIterator[Resources]:
    async with memory_store() as store:
        resources = Resources(store, config or BrokerConfig())
        await resources.bootstrap()
        yield resources
        await resources.aclose()
