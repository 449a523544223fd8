"""A registry on a store in memory, with ledgers in a dict."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from magnetar.config.defaults import SchemasConfig
from magnetar.errors import NoSuchLedgerError
from magnetar.metadata.cache import MetadataCache
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.system import SystemEntropy
from magnetar.schemas.registry import SchemaRegistry
from magnetar.schemas.storage import SchemaStorage
from tests.unit.broker.worlds import memory_store


class LedgersInMemory:
    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.deleted: list[int] = []
        self._next = 10

    async def write(self, schema_name: str, entry: bytes) -> tuple[int, int]:
        self._next += 1
        self.entries[self._next] = entry
        return self._next, 0

    async def read(self, ledger: int, entry: int) -> bytes:
        if ledger not in self.entries or entry != 0:
            raise NoSuchLedgerError(f"ledger {ledger} does not exist")
        return self.entries[ledger]

    async def delete(self, ledger: int) -> None:
        if ledger not in self.entries:
            raise NoSuchLedgerError(f"ledger {ledger} does not exist")
        del self.entries[ledger]
        self.deleted.append(ledger)


@dataclass
class SchemaWorld:
    store: MetadataStore
    ledgers: LedgersInMemory
    registry: SchemaRegistry


def registry_on(
    store: MetadataStore, ledgers: LedgersInMemory, cache: MetadataCache, config: SchemasConfig | None = None
) -> SchemaRegistry:
    return SchemaRegistry(SchemaStorage(store, cache, ledgers), config or SchemasConfig(), SystemEntropy())


@asynccontextmanager
async def schema_world(config: SchemasConfig | None = None) -> AsyncIterator[SchemaWorld]:
    async with memory_store() as store:
        cache, ledgers = MetadataCache(store, entries_max=1_000), LedgersInMemory()
        yield SchemaWorld(store, ledgers, registry_on(store, ledgers, cache, config))
        await cache.aclose()
