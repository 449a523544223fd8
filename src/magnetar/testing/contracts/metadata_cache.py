"""The metadata contract: the cache above any store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from magnetar.errors import (
    NoNodeError,
)
from magnetar.metadata.cache import MetadataCache
from magnetar.metadata.store import CreateMode, MetadataStore
from magnetar.testing.contracts.metadata_base import StoreContract
from magnetar.testing.contracts.metadata_harness import StoreHarness
from magnetar.testing.waiting import until


class CacheContract(StoreContract):
    @pytest_asyncio.fixture
    async def cache(self, store: MetadataStore) -> AsyncIterator[MetadataCache]:
        cache = MetadataCache(store, entries_max=3)
        yield cache
        await cache.aclose()

    async def test_a_second_read_is_served_from_the_cache(self, store: MetadataStore, cache: MetadataCache) -> None:
        await store.create("/a", b"1")
        assert await cache.get("/a") == await cache.get("/a")
        assert (cache.statistics().misses, cache.statistics().hits) == (1, 1)

    async def test_concurrent_reads_of_one_node_are_one_read(self, store: MetadataStore, cache: MetadataCache) -> None:
        await store.create("/a", b"1")
        nodes = await asyncio.gather(*(cache.get("/a") for _ in range(5)))
        assert len(set(nodes)) == 1
        assert cache.statistics().misses == 1

    async def test_what_another_changes_is_read_anew(
        self, store: MetadataStore, other: MetadataStore, cache: MetadataCache
    ) -> None:
        assert await cache.get("/a") is None
        await other.create("/a", b"1")

        async def sees(value: bytes) -> bool:
            node = await cache.get("/a")
            return node is not None and node.value == value

        await until(lambda: sees(b"1"), "the creation was seen")
        await other.put("/a", b"2")
        await until(lambda: sees(b"2"), "the change was seen")

    async def test_cached_children_follow_their_node(
        self, store: MetadataStore, other: MetadataStore, cache: MetadataCache
    ) -> None:
        await store.create("/p/a", make_parents=True)
        assert await cache.children("/p") == await cache.children("/p") == ["a"]
        await other.create("/p/b")

        async def sees_both() -> bool:
            return await cache.children("/p") == ["a", "b"]

        await until(sees_both, "the new child was seen")

    async def test_an_error_is_not_cached(self, store: MetadataStore, cache: MetadataCache) -> None:
        with pytest.raises(NoNodeError):
            await cache.children("/p")
        await store.create("/p")
        assert await cache.children("/p") == []

    async def test_expiry_empties_the_cache(
        self, harness: StoreHarness, store: MetadataStore, cache: MetadataCache
    ) -> None:
        await store.create("/e", mode=CreateMode.EPHEMERAL)
        assert await cache.get("/e") is not None
        await harness.expire(store)
        assert cache.statistics().entries == 0
        assert await cache.get("/e") is None

    async def test_an_outage_empties_the_cache_of_what_can_no_longer_be_watched(
        self, harness: StoreHarness, store: MetadataStore, other: MetadataStore, cache: MetadataCache
    ) -> None:
        await store.create("/a", b"1")
        await cache.get("/a")
        await harness.interrupt(store)
        await other.put("/a", b"2")
        await harness.restore(store)
        node = await cache.get("/a")
        assert node is not None
        assert node.value == b"2"

    async def test_the_cache_keeps_to_its_bound(self, cache: MetadataCache) -> None:
        for n in range(5):
            await cache.get(f"/n{n}")
        assert cache.statistics().entries == 3

    async def test_a_dropped_entry_is_read_again(self, store: MetadataStore, cache: MetadataCache) -> None:
        await store.create("/a", b"1")
        await cache.get("/a")
        await store.put("/a", b"2")
        cache.drop("/a")
        node = await cache.get("/a")
        assert node is not None
        assert node.value == b"2"
