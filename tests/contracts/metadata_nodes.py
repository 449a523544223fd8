"""The metadata contract: nodes, sequences, transactions, and clients that race."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import (
    BadVersionError,
    InvalidPathError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    TransactionFailedError,
    ValueTooLargeError,
)
from magnetar.metadata.store import Check, Create, CreateMode, Delete, MetadataStore, Put
from tests.contracts.metadata_harness import CONTRACT_CONFIG, Recorder, StoreContract, value_of

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


class NodesContract(StoreContract):
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


class SequencesContract(StoreContract):
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


class TransactionsContract(StoreContract):
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


class RacesContract(StoreContract):
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
