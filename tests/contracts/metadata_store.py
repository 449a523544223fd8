"""The contract of the metadata store: one list of behaviours that memory, SQLite and ZooKeeper all show.

A test module subclasses `MetadataStoreContract` and overrides the `harness` fixture. Each test's name is the behaviour.
The cache above any store, watches, and following a node are included.

Read next: metadata_harness.py
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from magnetar.errors import NoNodeError
from magnetar.metadata.cache import MetadataCache
from magnetar.metadata.follow import follow_children, follow_value
from magnetar.metadata.store import Create, CreateMode, Delete, MetadataStore, Node
from magnetar.testing.waiting import until
from tests.contracts.metadata_harness import Recorder, StoreContract, StoreHarness
from tests.contracts.metadata_nodes import (
    NodesContract,
    RacesContract,
    SequencesContract,
    TransactionsContract,
)
from tests.contracts.metadata_sessions import SessionsContract


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


class WatchesContract(StoreContract):
    async def test_a_value_watch_hears_of_a_change_once(self, store: MetadataStore, other: MetadataStore) -> None:
        recorder = Recorder()
        await store.create("/a")
        await store.get("/a", watch=recorder.on_event)
        await other.put("/a", b"1")
        await other.put("/a", b"2")
        await until(lambda: recorder.events, "the watcher was called")
        await store.sync()
        assert [(event.kind.value, event.path) for event in recorder.events] == [("changed", "/a")]

    async def test_a_read_that_expects_nothing_has_the_same_answer_and_the_same_watch(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        recorder = Recorder()
        assert await store.get("/rare", watch=recorder.on_event, expects_nothing=True) is None
        await other.create("/rare", b"1")
        await until(lambda: recorder.events, "the watcher was called")
        await store.sync()
        found = await store.get("/rare", watch=recorder.on_event, expects_nothing=True)
        assert found is not None
        assert found.value == b"1"
        await other.put("/rare", b"2")
        await until(lambda: len(recorder.events) == 2, "the watcher was called again")
        assert recorder.kinds == ["created", "changed"]

    async def test_a_value_watch_on_a_missing_node_hears_of_its_creation(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        recorder = Recorder()
        assert await store.get("/later", watch=recorder.on_event) is None
        await other.create("/later")
        await until(lambda: recorder.events, "the watcher was called")
        assert recorder.kinds == ["created"]

    async def test_a_value_watch_hears_of_the_deletion_and_then_of_nothing(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        recorder = Recorder()
        await store.create("/a")
        await store.get("/a", watch=recorder.on_event)
        await other.delete("/a")
        await until(lambda: recorder.events, "the watcher was called")
        await other.create("/a")
        await store.sync()
        assert recorder.kinds == ["deleted"]

    async def test_a_children_watch_hears_of_names_that_come_and_go(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        await store.create("/p")
        for change in (other.create("/p/c"), other.delete("/p/c")):
            recorder = Recorder()
            await store.children("/p", watch=recorder.on_event)
            await change
            await until(functools.partial(recorder.events.__len__), "the watcher was called")
            assert [(event.kind.value, event.path) for event in recorder.events] == [("children", "/p")]

    async def test_a_children_watch_does_not_hear_of_values(self, store: MetadataStore, other: MetadataStore) -> None:
        recorder = Recorder()
        await store.create("/p/c", make_parents=True)
        await store.children("/p", watch=recorder.on_event)
        await other.put("/p/c", b"new")
        await other.put("/p", b"new")
        await store.sync()
        assert recorder.events == []
        await other.create("/p/d")
        await until(lambda: recorder.events, "the watcher was called")
        assert recorder.kinds == ["children"]

    async def test_a_children_watch_hears_of_the_deletion_of_its_node(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        recorder = Recorder()
        await store.create("/p")
        await store.children("/p", watch=recorder.on_event)
        await other.delete("/p")
        await until(lambda: recorder.events, "the watcher was called")
        assert recorder.kinds == ["deleted"]

    async def test_a_refused_read_arms_nothing(self, store: MetadataStore, other: MetadataStore) -> None:
        recorder = Recorder()
        with pytest.raises(NoNodeError):
            await store.children("/p", watch=recorder.on_event)
        await other.create("/p")
        await other.create("/p/c")
        await store.sync()
        assert recorder.events == []

    async def test_every_watcher_of_every_session_is_called(self, store: MetadataStore, other: MetadataStore) -> None:
        recorders = [Recorder() for _ in range(4)]
        await store.create("/a")
        for recorder, reader in zip(recorders, (store, store, other, other), strict=True):
            await reader.get("/a", watch=recorder.on_event)
        await store.put("/a", b"1")
        await until(lambda: all(recorder.events for recorder in recorders), "every watcher was called")
        assert [recorder.kinds for recorder in recorders] == [["changed"]] * 4

    async def test_one_watcher_given_to_two_reads_hears_once_of_each_path(self, store: MetadataStore) -> None:
        recorder = Recorder()
        await store.create("/a")
        await store.create("/b")
        await store.get("/a", watch=recorder.on_event)
        await store.get("/b", watch=recorder.on_event)
        await store.put("/a", b"1")
        await store.put("/b", b"1")
        await until(lambda: len(recorder.events) == 2, "both paths were heard of")
        assert sorted(event.path for event in recorder.events) == ["/a", "/b"]

    async def test_a_watch_on_an_ephemeral_node_hears_when_its_session_ends(
        self, harness: StoreHarness, store: MetadataStore
    ) -> None:
        recorder = Recorder()
        async with await harness.connect() as owner:
            await owner.create("/e", mode=CreateMode.EPHEMERAL)
            await store.sync()
            assert await store.get("/e", watch=recorder.on_event) is not None
        await until(lambda: recorder.events, "the watcher was called")
        assert recorder.kinds == ["deleted"]

    async def test_following_a_value_never_misses_the_last_one(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        await store.create("/a", b"0")
        seen: list[int] = []

        async def follow() -> None:
            async with aclosing(follow_value(store, "/a")) as nodes:
                async for node in nodes:
                    assert node is not None
                    seen.append(int(node.value))
                    if seen[-1] == 300:
                        return

        async def write() -> None:
            for n in range(1, 301):
                await other.put("/a", str(n).encode())

        async with asyncio.timeout(30):
            await asyncio.gather(follow(), write())
        assert seen == sorted(set(seen))

    async def test_following_a_value_sees_absence_creation_and_deletion(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        async with asyncio.timeout(20), aclosing(follow_value(store, "/a")) as nodes:
            assert await anext(nodes) is None
            await other.create("/a", b"1")
            made: Node | None = await anext(nodes)
            assert made is not None
            assert made.value == b"1"
            await other.delete("/a")
            assert await anext(nodes) is None

    async def test_following_children_sees_the_node_itself_come_and_go(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        async with asyncio.timeout(20), aclosing(follow_children(store, "/p")) as lists:
            assert await anext(lists) is None
            await other.transact([Create("/p"), Create("/p/a")])
            assert await anext(lists) == ["a"]
            await other.create("/p/b")
            assert await anext(lists) == ["a", "b"]
            await other.transact([Delete("/p/a"), Delete("/p/b"), Delete("/p")])
            assert await anext(lists) is None


class MetadataStoreContract(
    NodesContract,
    SequencesContract,
    TransactionsContract,
    RacesContract,
    WatchesContract,
    SessionsContract,
    CacheContract,
):
    """Everything above; what a new kind of store subclasses."""
