"""Ledger ids from BookKeeper's generator nodes: unique, also over lost connections and beyond 31 bits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from magnetar.errors import LedgerIdsExhaustedError, MalformedMetadataError, OutcomeUnknownError
from magnetar.metadata.bookkeeper.id_generator import LedgerIdGenerator
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.local import Fate
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import Create, CreateMode, MetadataStore, Operation, OperationResult, Transact

INT_MAX = 2**31 - 1
FIRST_LONG = 2**32


class Counted:
    """A store whose sequential numbers begin elsewhere, as after two thousand million ledgers."""

    def __init__(self, store: MetadataStore, offsets: dict[str, int]) -> None:
        self._store = store
        self._offsets = offsets
        self.transact = store.transact
        self.get = store.get
        self.children = store.children

    async def create(
        self, path: str, value: bytes = b"", *, mode: CreateMode = CreateMode.PERSISTENT, make_parents: bool = False
    ) -> str:
        made = await self._store.create(path, value, mode=mode, make_parents=make_parents)
        if not mode.is_sequential:
            return made
        await self._store.delete(made)
        number = int(made[-10:]) + self._offsets.get(path, 0)
        if number > INT_MAX:
            number -= 2**32  # ZooKeeper's counter has a sign.
        shown = f"{path}{number:010d}"
        await self._store.create(shown)
        return shown


def generator(store: object, paths: BookKeeperPaths) -> LedgerIdGenerator:
    return LedgerIdGenerator(store, paths)  # type: ignore[arg-type]


async def test_ids_count_from_zero_and_leave_no_node_behind(store: MetadataStore, paths: BookKeeperPaths) -> None:
    ids = generator(store, paths)
    assert [await ids.next_id() for _ in range(3)] == [0, 1, 2]
    await ids.aclose()
    assert await store.children("/ledgers/idgen") == []
    assert await store.get("/ledgers/idgen-long") is None  # If it existed, all clients would move to long ids.


async def test_generators_side_by_side_never_give_out_an_id_twice(server: MemoryServer, paths: BookKeeperPaths) -> None:
    generators = [generator(server.connect(), paths) for _ in range(5)]
    found = await asyncio.gather(*(ids.next_id() for ids in generators for _ in range(20)))
    assert sorted(found) == list(range(100))


async def test_an_id_whose_answer_was_lost_is_burnt_and_the_next_is_given_out(
    breaking: Callable[..., MetadataStore], paths: BookKeeperPaths
) -> None:
    store = breaking(Create, Fate.DELIVERED, Fate.DELIVERED, Fate.DELIVERED, Fate.DELIVERED, Fate.ANSWER_LOST)
    ids = generator(store, paths)
    assert await ids.next_id() == 0  # With the directories that the first one makes.
    assert await ids.next_id() == 2


async def test_an_id_is_good_although_its_node_could_not_be_deleted(
    breaking: Callable[..., MetadataStore], paths: BookKeeperPaths
) -> None:
    store = breaking(Transact, Fate.REQUEST_LOST)
    ids = generator(store, paths)
    first = await ids.next_id()
    await ids.aclose()
    assert [first, await ids.next_id()] == [0, 1]


async def test_an_id_is_there_before_its_node_is_deleted_and_many_nodes_go_at_once(
    store: MetadataStore, paths: BookKeeperPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_delete, calls = asyncio.Event(), 0
    transact = store.transact

    async def later(operations: Sequence[Operation]) -> list[OperationResult]:
        nonlocal calls
        calls += 1
        await may_delete.wait()
        return await transact(operations)

    monkeypatch.setattr(store, "transact", later)
    ids = generator(store, paths)
    assert [await ids.next_id() for _ in range(20)] == list(range(20))
    may_delete.set()
    await ids.aclose()
    assert calls == 2  # The first by itself, and those that came meanwhile.
    assert await store.children("/ledgers/idgen") == []


async def test_connections_lost_again_and_again_end_in_an_unknown_outcome(
    breaking: Callable[..., MetadataStore], paths: BookKeeperPaths
) -> None:
    with pytest.raises(OutcomeUnknownError):
        await generator(breaking(Create, *[Fate.ANSWER_LOST] * 50), paths).next_id()


async def test_used_up_short_ids_are_followed_by_long_ones(store: MetadataStore, paths: BookKeeperPaths) -> None:
    ids = generator(Counted(store, {"/ledgers/idgen/ID-": INT_MAX - 2}), paths)
    assert [await ids.next_id() for _ in range(4)] == [INT_MAX - 2, INT_MAX - 1, FIRST_LONG, FIRST_LONG + 1]
    assert await store.children("/ledgers/idgen-long") == ["HOB-0000000001"]


async def test_a_counter_that_wrapped_around_counts_as_used_up(store: MetadataStore, paths: BookKeeperPaths) -> None:
    ids = generator(Counted(store, {"/ledgers/idgen/ID-": INT_MAX + 5}), paths)
    assert await ids.next_id() == FIRST_LONG


async def test_a_cluster_that_has_moved_on_gets_long_ids_at_once(store: MetadataStore, paths: BookKeeperPaths) -> None:
    await store.create("/ledgers/idgen-long/HOB-0000000003", make_parents=True)
    await store.create("/ledgers/idgen-long/HOB-0000000012")
    ids = generator(store, paths)
    assert [await ids.next_id(), await ids.next_id()] == [12 << 32, (12 << 32) + 1]
    assert await store.get("/ledgers/idgen") is None


async def test_a_used_up_directory_of_low_bits_is_followed_by_the_next(
    store: MetadataStore, paths: BookKeeperPaths
) -> None:
    await store.create("/ledgers/idgen-long/HOB-0000000001", make_parents=True)
    ids = generator(Counted(store, {"/ledgers/idgen-long/HOB-0000000001/ID-": INT_MAX - 1}), paths)
    assert [await ids.next_id() for _ in range(3)] == [(1 << 32) + INT_MAX - 1, 2 << 32, (2 << 32) + 1]


async def test_a_directory_that_was_removed_is_never_counted_from_zero_again(
    store: MetadataStore, paths: BookKeeperPaths
) -> None:
    await store.create("/ledgers/idgen-long/HOB-0000000001", make_parents=True)
    ids = generator(store, paths)
    assert await ids.next_id() == FIRST_LONG
    await store.create("/ledgers/idgen-long/HOB-0000000004")  # Another client is far ahead, and tidied up.
    await store.delete("/ledgers/idgen-long/HOB-0000000001")
    assert await ids.next_id() == 4 << 32
    assert await store.get("/ledgers/idgen-long/HOB-0000000001") is None


async def test_the_last_directory_of_all_ends_in_a_named_error(store: MetadataStore, paths: BookKeeperPaths) -> None:
    last = f"/ledgers/idgen-long/HOB-{INT_MAX:010d}"
    await store.create(last, make_parents=True)
    with pytest.raises(LedgerIdsExhaustedError):
        await generator(Counted(store, {f"{last}/ID-": INT_MAX}), paths).next_id()


async def test_strange_names_beside_the_directories_are_passed_over(
    store: MetadataStore, paths: BookKeeperPaths
) -> None:
    for name in ("HOB-0000000002", "HOB-x", "other", "HOB-9"):
        await store.create(f"/ledgers/idgen-long/{name}", make_parents=True)
    assert await generator(store, paths).next_id() == 2 << 32


async def test_a_directory_beyond_63_bits_is_refused(store: MetadataStore, paths: BookKeeperPaths) -> None:
    await store.create("/ledgers/idgen-long/HOB-9999999999", make_parents=True)
    with pytest.raises(MalformedMetadataError):
        await generator(store, paths).next_id()
