"""The contract of the metadata store: one list of behaviours that memory, SQLite and ZooKeeper all show.

A test module subclasses `MetadataStoreContract` and brings a `harness` fixture. Each test's name is the behaviour.
Read next: metadata_harness.py
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import pytest
import pytest_asyncio

from magnetar.errors import (
    BadVersionError,
    InvalidPathError,
    MetadataError,
    MetadataUnavailableError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OutcomeUnknownError,
    StoreClosedError,
    TransactionFailedError,
    ValueTooLargeError,
)
from magnetar.metadata.cache import MetadataCache
from magnetar.metadata.follow import follow_children, follow_value
from magnetar.metadata.session import SessionState
from magnetar.metadata.store import Check, Create, CreateMode, Delete, MetadataStore, Node, Put
from magnetar.testing.contracts.metadata_harness import CONTRACT_CONFIG, Recorder, StoreHarness
from magnetar.testing.waiting import until

BAD_PATHS = [
    "",
    "a",
    "/a/",
    "//",
    "/a//b",
    "/a/./b",
    "/a/../b",
    "/..",
    "/nul\0",
    "/bell\x07",
    "/surrogate\ud800",
    "/clef𝄞",
]


async def value_of(store: MetadataStore, path: str) -> bytes:
    node = await store.get(path)
    assert node is not None, f"{path} does not exist"
    return node.value


class _Contract:
    @pytest_asyncio.fixture
    async def store(self, harness: StoreHarness) -> AsyncIterator[MetadataStore]:
        async with await harness.connect() as store:
            yield store

    @pytest_asyncio.fixture
    async def other(self, harness: StoreHarness) -> AsyncIterator[MetadataStore]:
        async with await harness.connect() as store:
            yield store


class NodesContract(_Contract):
    async def test_a_created_node_is_read_back_with_version_zero(self, store: MetadataStore) -> None:
        assert await store.create("/a", b"one") == "/a"
        node = await store.get("/a")
        assert node is not None
        assert (node.value, node.version, node.owner) == (b"one", 0, 0)
        assert node.created_ms == node.modified_ms > 1_600_000_000_000

    async def test_a_missing_node_is_none(self, store: MetadataStore) -> None:
        assert await store.get("/missing") is None
        assert await store.get("/missing/below") is None

    async def test_the_root_is_there(self, store: MetadataStore) -> None:
        assert await store.get("/") is not None
        with pytest.raises(NodeExistsError):
            await store.create("/")
        with pytest.raises(InvalidPathError):
            await store.delete("/")

    async def test_an_empty_value_and_every_byte_survive(self, store: MetadataStore) -> None:
        await store.create("/empty")
        await store.create("/bytes", bytes(range(256)))
        assert await value_of(store, "/empty") == b""
        assert await value_of(store, "/bytes") == bytes(range(256))

    async def test_names_may_hold_letters_of_many_scripts(self, store: MetadataStore) -> None:
        await store.create("/tópico %2F ünï ☃ 日本", b"x")
        assert "tópico %2F ünï ☃ 日本" in await store.children("/")

    async def test_put_raises_the_version_by_one_and_keeps_the_time_of_creation(self, store: MetadataStore) -> None:
        await store.create("/a", b"one")
        created = await store.get("/a")
        assert [await store.put("/a", b"two", 0), await store.put("/a", b"three", 1)] == [1, 2]
        node = await store.get("/a")
        assert node is not None
        assert created is not None
        assert (node.value, node.version, node.created_ms) == (b"three", 2, created.created_ms)

    async def test_put_with_an_old_version_changes_nothing(self, store: MetadataStore) -> None:
        await store.create("/a", b"one")
        await store.put("/a", b"two")
        with pytest.raises(BadVersionError):
            await store.put("/a", b"late", 0)
        assert await value_of(store, "/a") == b"two"

    async def test_put_without_a_node_is_refused(self, store: MetadataStore) -> None:
        with pytest.raises(NoNodeError):
            await store.put("/missing", b"x")

    async def test_creating_what_exists_is_refused_and_changes_nothing(self, store: MetadataStore) -> None:
        await store.create("/a", b"first")
        with pytest.raises(NodeExistsError):
            await store.create("/a", b"second")
        assert await value_of(store, "/a") == b"first"

    async def test_creating_below_a_missing_parent_is_refused(self, store: MetadataStore) -> None:
        with pytest.raises(NoNodeError):
            await store.create("/missing/child")

    async def test_missing_parents_are_made_when_asked(self, store: MetadataStore, other: MetadataStore) -> None:
        paths = [f"/deep/er/still/{n}" for n in range(20)]
        made = await asyncio.gather(*((store, other)[n % 2].create(p, make_parents=True) for n, p in enumerate(paths)))
        assert list(made) == paths
        assert await value_of(store, "/deep/er") == b""

    async def test_delete_removes_only_at_the_expected_version(self, store: MetadataStore) -> None:
        await store.create("/a")
        await store.put("/a", b"changed")
        with pytest.raises(BadVersionError):
            await store.delete("/a", 0)
        await store.delete("/a", 1)
        assert await store.get("/a") is None
        with pytest.raises(NoNodeError):
            await store.delete("/a")

    async def test_a_node_with_children_is_not_deleted(self, store: MetadataStore) -> None:
        await store.create("/a/b", make_parents=True)
        with pytest.raises(NotEmptyError):
            await store.delete("/a")
        await store.delete("/a/b")
        await store.delete("/a")
        assert await store.get("/a") is None

    async def test_a_node_made_again_starts_at_version_zero(self, store: MetadataStore) -> None:
        await store.create("/a")
        await store.put("/a", b"x")
        await store.delete("/a")
        await store.create("/a")
        node = await store.get("/a")
        assert node is not None
        assert node.version == 0

    async def test_children_are_sorted_names_of_one_level(self, store: MetadataStore) -> None:
        for path in ("/p", "/p/b", "/p/a", "/p/c", "/p/a/x", "/p2"):
            await store.create(path)
        assert await store.children("/p") == ["a", "b", "c"]
        assert await store.children("/p/b") == []
        assert {"p", "p2"} <= set(await store.children("/"))

    async def test_children_of_a_missing_node_are_an_error(self, store: MetadataStore) -> None:
        with pytest.raises(NoNodeError):
            await store.children("/missing")

    @pytest.mark.parametrize("path", BAD_PATHS)
    async def test_a_path_that_is_not_one_is_refused(self, store: MetadataStore, path: str) -> None:
        with pytest.raises(InvalidPathError):
            await store.create(path)
        with pytest.raises(InvalidPathError):
            await store.get(path)

    async def test_a_value_over_the_limit_is_refused_and_the_session_lives_on(self, store: MetadataStore) -> None:
        limit = CONTRACT_CONFIG.value_bytes_max
        recorder = Recorder()
        store.session.listen(recorder.on_state)
        with pytest.raises(ValueTooLargeError, match="value_bytes_max"):
            await store.create("/large", bytes(limit + 1))
        with pytest.raises(ValueTooLargeError):
            await store.transact([Create("/l1", bytes(limit // 2 + 1)), Create("/l2", bytes(limit // 2 + 1))])
        await store.create("/large", b"\xa5" * limit)
        assert await value_of(store, "/large") == b"\xa5" * limit
        assert recorder.states == []

    async def test_sync_returns_and_later_reads_see_what_others_did(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        await other.create("/a", b"seen")
        await store.sync()
        assert await value_of(store, "/a") == b"seen"


class SequencesContract(_Contract):
    async def test_sequential_nodes_get_ten_digits_that_only_grow(self, store: MetadataStore) -> None:
        await store.create("/q")
        made = [await store.create("/q/ID-", mode=CreateMode.PERSISTENT_SEQUENTIAL) for _ in range(3)]
        assert made == sorted(made)
        assert len(set(made)) == 3
        assert all(len(path) == len("/q/ID-") + 10 and path[-10:].isdigit() for path in made)

    async def test_a_number_is_not_given_again_after_its_node_is_deleted(self, store: MetadataStore) -> None:
        await store.create("/q")
        numbers = []
        for _ in range(3):
            path = await store.create("/q/ID-", mode=CreateMode.EPHEMERAL_SEQUENTIAL)
            await store.delete(path)
            numbers.append(path)
        assert numbers == sorted(set(numbers))

    async def test_concurrent_sessions_never_get_one_number_twice(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        await store.create("/q")
        made = await asyncio.gather(
            *((store, other)[n % 2].create("/q/n", mode=CreateMode.PERSISTENT_SEQUENTIAL) for n in range(60))
        )
        assert len(set(made)) == 60
        assert await store.children("/q") == sorted(path.removeprefix("/q/") for path in made)


class TransactionsContract(_Contract):
    async def test_a_transaction_does_everything_and_returns_each_result(self, store: MetadataStore) -> None:
        await store.create("/a", b"old")
        await store.create("/gone")
        results = await store.transact(
            [
                Check("/a", 0),
                Put("/a", b"new", 0),
                Create("/b", b"made"),
                Create("/b/n", mode=CreateMode.PERSISTENT_SEQUENTIAL),
                Delete("/gone"),
            ]
        )
        assert results[:3] == [None, 1, "/b"]
        assert results[4] is None
        assert isinstance(results[3], str)
        assert results[3].startswith("/b/n0")
        assert [await value_of(store, "/a"), await store.get("/gone")] == [b"new", None]

    @pytest.mark.parametrize(
        ("failing", "cause"),
        [
            (Check("/a", 7), BadVersionError),
            (Put("/missing", b""), NoNodeError),
            (Create("/a"), NodeExistsError),
            (Create("/x/y/z"), NoNodeError),
            (Delete("/a", 9), BadVersionError),
            (Delete("/p"), NotEmptyError),
        ],
        ids=lambda value: repr(value) if isinstance(value, Check | Put | Create | Delete) else value.__name__,
    )
    async def test_a_transaction_that_fails_does_nothing_and_says_which_and_why(
        self, store: MetadataStore, failing: Check | Put | Create | Delete, cause: type[MetadataError]
    ) -> None:
        await store.create("/a", b"kept")
        await store.create("/p/c", make_parents=True)
        with pytest.raises(TransactionFailedError) as caught:
            await store.transact([Put("/a", b"lost"), Create("/n", b""), failing, Delete("/p/c")])
        assert caught.value.index == 2
        assert isinstance(caught.value.cause, cause)
        assert [await value_of(store, "/a"), await store.get("/n")] == [b"kept", None]
        assert await store.children("/p") == ["c"]

    async def test_an_empty_transaction_is_nothing(self, store: MetadataStore) -> None:
        assert await store.transact([]) == []

    async def test_a_transaction_sees_its_own_earlier_operations(self, store: MetadataStore) -> None:
        await store.transact([Create("/t"), Create("/t/u", b"1"), Put("/t/u", b"2", 0), Check("/t/u", 1)])
        assert await value_of(store, "/t/u") == b"2"


class RacesContract(_Contract):
    async def test_of_two_sessions_that_create_one_node_exactly_one_wins(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        for round_ in range(10):
            outcomes = await asyncio.gather(
                store.create(f"/n{round_}", b"store"), other.create(f"/n{round_}", b"other"), return_exceptions=True
            )
            assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NodeExistsError", "str"]
            winner = b"store" if outcomes[0] == f"/n{round_}" else b"other"
            assert await value_of(store, f"/n{round_}") == winner

    async def test_compare_and_set_loses_no_update(self, store: MetadataStore, other: MetadataStore) -> None:
        await store.create("/counter", b"0")

        async def increment(with_store: MetadataStore) -> None:
            while True:
                node = await with_store.get("/counter")
                assert node is not None
                try:
                    await with_store.put("/counter", str(int(node.value) + 1).encode(), node.version)
                except BadVersionError:
                    continue
                return

        await asyncio.gather(*(increment((store, other)[n % 2]) for n in range(20)))
        node = await store.get("/counter")
        assert node is not None
        assert (node.value, node.version) == (b"20", 20)

    async def test_operations_of_one_session_are_done_in_the_order_they_were_made(self, store: MetadataStore) -> None:
        await store.create("/a")
        results = await asyncio.gather(*(store.put("/a", str(n).encode()) for n in range(100)))
        assert list(results) == list(range(1, 101))
        assert await value_of(store, "/a") == b"99"


class WatchesContract(_Contract):
    async def test_a_value_watch_hears_of_a_change_once(self, store: MetadataStore, other: MetadataStore) -> None:
        recorder = Recorder()
        await store.create("/a")
        await store.get("/a", watch=recorder.on_event)
        await other.put("/a", b"1")
        await other.put("/a", b"2")
        await until(lambda: recorder.events, "the watcher was called")
        await store.sync()
        assert [(event.kind.value, event.path) for event in recorder.events] == [("changed", "/a")]

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


class SessionsContract(_Contract):
    async def test_an_ephemeral_node_names_its_session_and_others_see_it(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        await store.create("/e", b"mine", mode=CreateMode.EPHEMERAL)
        await other.sync()
        node = await other.get("/e")
        assert node is not None
        assert node.owner == store.session.id != other.session.id

    async def test_an_ephemeral_node_goes_when_its_session_is_closed(
        self, harness: StoreHarness, store: MetadataStore
    ) -> None:
        async with await harness.connect() as owner:
            await owner.create("/kept")
            await owner.create("/e", mode=CreateMode.EPHEMERAL)
            await owner.create("/s-", mode=CreateMode.EPHEMERAL_SEQUENTIAL)
        await store.sync()
        assert await store.get("/e") is None
        names = await store.children("/")
        assert "kept" in names
        assert not [name for name in names if name.startswith("s-")]

    async def test_an_ephemeral_node_cannot_have_children(self, store: MetadataStore) -> None:
        await store.create("/e", mode=CreateMode.EPHEMERAL)
        with pytest.raises(NoChildrenForEphemeralsError):
            await store.create("/e/child")

    async def test_a_short_outage_keeps_the_session_and_its_ephemeral_nodes(
        self, harness: StoreHarness, store: MetadataStore
    ) -> None:
        recorder = Recorder()
        store.session.listen(recorder.on_state)
        await store.create("/e", mode=CreateMode.EPHEMERAL)
        session_id = store.session.id
        await harness.interrupt(store)
        assert store.session.state is SessionState.DISCONNECTED
        await harness.restore(store)
        assert recorder.states == [SessionState.DISCONNECTED, SessionState.CONNECTED]
        assert (store.session.id, store.session.generation) == (session_id, 0)
        node = await store.get("/e")
        assert node is not None
        assert node.owner == session_id

    async def test_an_operation_made_during_an_outage_waits_and_is_done(
        self, harness: StoreHarness, store: MetadataStore
    ) -> None:
        await harness.interrupt(store)
        waiting = asyncio.ensure_future(store.create("/a", b"waited"))
        await harness.restore(store)
        async with asyncio.timeout(20):
            assert await waiting == "/a"
        assert await value_of(store, "/a") == b"waited"

    async def test_an_operation_that_outlasts_its_timeout_in_an_outage_was_not_done(
        self, harness: StoreHarness, other: MetadataStore
    ) -> None:
        config = dataclasses.replace(CONTRACT_CONFIG, operation_timeout_ms=200)
        async with await harness.connect(config) as store:
            await harness.interrupt(store)
            with pytest.raises(MetadataUnavailableError):
                await store.create("/never")
            await harness.restore(store)
            await other.sync()
            assert await other.get("/never") is None

    async def test_watches_are_interrupted_by_an_outage_so_that_nobody_waits_for_lost_news(
        self, harness: StoreHarness, store: MetadataStore, other: MetadataStore
    ) -> None:
        value, children = Recorder(), Recorder()
        await store.create("/a")
        await store.get("/a", watch=value.on_event)
        await store.children("/a", watch=children.on_event)
        await harness.interrupt(store)
        await until(lambda: value.events and children.events, "both watchers were told")
        await other.put("/a", b"missed")
        await harness.restore(store)
        assert (value.kinds, children.kinds) == (["interrupted"], ["interrupted"])

    async def test_following_goes_on_over_an_outage_and_sees_what_was_missed(
        self, harness: StoreHarness, store: MetadataStore, other: MetadataStore
    ) -> None:
        await store.create("/a", b"before")
        async with asyncio.timeout(30), aclosing(follow_value(store, "/a")) as nodes:
            first = await anext(nodes)
            await harness.interrupt(store)
            await other.put("/a", b"after")
            await harness.restore(store)
            second = await anext(nodes)
        assert [node.value for node in (first, second) if node is not None] == [b"before", b"after"]

    async def test_expiry_ends_the_ephemeral_nodes_and_gives_a_new_session(
        self, harness: StoreHarness, store: MetadataStore, other: MetadataStore
    ) -> None:
        recorder = Recorder()
        await store.create("/e", mode=CreateMode.EPHEMERAL)
        await store.create("/kept", b"kept")
        old = store.session.id
        store.session.listen(recorder.on_state)
        await harness.expire(store)
        assert recorder.states[-2:] == [SessionState.EXPIRED, SessionState.REESTABLISHED]
        assert store.session.id != old
        assert store.session.generation == 1
        assert await store.get("/e") is None
        assert await value_of(store, "/kept") == b"kept"
        await store.create("/e", mode=CreateMode.EPHEMERAL)
        await other.sync()
        node = await other.get("/e")
        assert node is not None
        assert node.owner == store.session.id

    async def test_expiry_interrupts_every_watch(self, harness: StoreHarness, store: MetadataStore) -> None:
        recorder = Recorder()
        await store.create("/a")
        await store.get("/a", watch=recorder.on_event)
        await harness.expire(store)
        await until(lambda: recorder.events, "the watcher was told")
        assert recorder.kinds == ["interrupted"]

    async def test_following_goes_on_over_an_expiry(
        self, harness: StoreHarness, store: MetadataStore, other: MetadataStore
    ) -> None:
        await store.create("/p")
        async with asyncio.timeout(30), aclosing(follow_children(store, "/p")) as lists:
            assert await anext(lists) == []
            await harness.expire(store)
            await other.create("/p/a")
            assert await anext(lists) == ["a"]

    async def test_a_listener_that_left_hears_nothing_more(self, harness: StoreHarness, store: MetadataStore) -> None:
        staying, leaving = Recorder(), Recorder()
        store.session.listen(staying.on_state)
        leave = store.session.listen(leaving.on_state)
        leave()
        await harness.expire(store)
        assert staying.states
        assert leaving.states == []

    @pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
    @pytest.mark.parametrize("operation", ["create", "put", "delete", "transact"])
    async def test_a_write_whose_answer_is_lost_is_reported_as_unknown(
        self, harness: StoreHarness, store: MetadataStore, other: MetadataStore, operation: str, done: bool
    ) -> None:
        await store.create("/a", b"old")
        writes: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: store.create("/n"),
            "put": lambda: store.put("/a", b"new"),
            "delete": lambda: store.delete("/a"),
            "transact": lambda: store.transact([Put("/a", b"new"), Create("/n")]),
        }
        await harness.lose_next_answer(store, done=done)
        with pytest.raises(OutcomeUnknownError) as caught:
            await writes[operation]()
        assert caught.value.outcome_unknown
        assert not caught.value.retryable
        await harness.restore(store)
        await other.sync()
        node = await other.get("/a")
        changed = await other.get("/n") is not None or node is None or node.value == b"new"
        assert changed is done

    async def test_a_read_whose_answer_is_lost_is_merely_unavailable(
        self, harness: StoreHarness, store: MetadataStore
    ) -> None:
        await harness.lose_next_answer(store, done=True)
        with pytest.raises(MetadataUnavailableError) as caught:
            await store.get("/a")
        assert caught.value.retryable
        await harness.restore(store)
        assert await store.get("/a") is None

    async def test_a_closed_store_refuses_and_closing_again_is_nothing(self, harness: StoreHarness) -> None:
        store = await harness.connect()
        recorder = Recorder()
        store.session.listen(recorder.on_state)
        await store.aclose()
        await store.aclose()
        assert recorder.states == [SessionState.CLOSED]
        with pytest.raises(StoreClosedError):
            await store.get("/a")

    async def test_closing_releases_whoever_waits(self, harness: StoreHarness) -> None:
        store = await harness.connect()
        await harness.interrupt(store)
        waiting = asyncio.ensure_future(store.get("/a"))
        following = asyncio.ensure_future(anext(follow_value(store, "/a"), "ended"))
        await asyncio.sleep(0)
        await store.aclose()
        async with asyncio.timeout(10):
            with pytest.raises(StoreClosedError):
                await waiting
            assert await following == "ended"

    async def test_a_write_under_way_when_the_store_is_closed_is_done_or_unknown_never_refused(
        self, harness: StoreHarness, other: MetadataStore
    ) -> None:
        store = await harness.connect()
        writes = [asyncio.ensure_future(store.create(f"/n{n}")) for n in range(20)]
        await asyncio.sleep(0)
        await store.aclose()
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {str, OutcomeUnknownError}
        await other.sync()
        for n, outcome in enumerate(outcomes):
            assert not isinstance(outcome, str) or await other.get(f"/n{n}") is not None

    async def test_operations_beyond_the_limit_in_flight_are_refused(self, harness: StoreHarness) -> None:
        config = dataclasses.replace(CONTRACT_CONFIG, operations_in_flight_max=10)
        async with await harness.connect(config) as store:
            outcomes = await asyncio.gather(*(store.get("/a") for _ in range(12)), return_exceptions=True)
            refused = [outcome for outcome in outcomes if isinstance(outcome, MetadataUnavailableError)]
            assert len(refused) == 2
            assert await store.get("/a") is None

    async def test_a_caller_that_gives_up_disturbs_nobody(self, store: MetadataStore) -> None:
        abandoned = asyncio.ensure_future(store.create("/abandoned"))
        await asyncio.sleep(0)
        abandoned.cancel()
        await store.create("/a", b"1")
        assert await value_of(store, "/a") == b"1"


class CacheContract(_Contract):
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
