"""What the ownership of bundles needs of every kind of metadata store: transactions, sessions and watches as they are.

A test module brings the `harness` fixture. The branches are tested in tests/unit/broker/cluster, on virtual time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from magnetar.broker.cluster.owner_node import owner_path
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.metadata.store import MetadataStore
from magnetar.testing.waiting import until
from tests.contracts.metadata_harness import StoreHarness
from tests.unit.broker.cluster.ownership_world import TOPIC, OwnershipWorld, id_of, ownership_world


async def has_owner(store: MetadataStore, bundle: NamespaceBundle) -> bool:
    await store.sync()
    return await store.get(owner_path(bundle)) is not None


class BundleOwnershipContract:
    @pytest_asyncio.fixture
    async def world(self, harness: StoreHarness) -> AsyncIterator[OwnershipWorld]:
        async with ownership_world("a", "b", harness=harness) as world:
            yield world

    async def test_a_bundle_is_acquired_split_and_passed_on(self, world: OwnershipWorld) -> None:
        a, b = world["a"], world["b"]
        whole = await a.acquire()
        await a.ownership.split(whole)
        assert a.owns()
        half = await a.ownership.bundle_of(TOPIC)
        assert half != whole
        assert len(a.ownership.owned()) == 2
        assert not await has_owner(b.store, whole)
        assert not a.lost

        async def b_knows() -> bool:
            return await b.ownership.bundle_of(TOPIC) == half

        await until(b_knows, "the other broker knows the halves")
        assert (await b.owner_of()).address.broker_id == id_of("a")
        await a.ownership.unload(half)
        assert not await has_owner(b.store, half)
        assert await b.acquire() == half

    async def test_halves_are_merged_and_the_whole_is_owned_at_once(self, world: OwnershipWorld) -> None:
        a, b = world["a"], world["b"]
        whole = await a.acquire()
        await a.ownership.split(whole)
        first, second = sorted(a.ownership.owned(), key=lambda each: each.bundle.first)
        await a.ownership.merge(first)
        assert a.owns()
        assert list(a.ownership.owned()) == [whole]
        assert not a.lost
        assert await has_owner(b.store, whole)
        assert not await has_owner(b.store, first)
        assert not await has_owner(b.store, second)

        async def b_knows() -> bool:
            return await b.ownership.bundle_of(TOPIC) == whole

        await until(b_knows, "the other broker knows the whole")
        assert (await b.owner_of()).address.broker_id == id_of("a")

    @pytest.mark.parametrize("done", [True, False])
    async def test_changes_whose_answers_are_lost_are_finished(self, world: OwnershipWorld, done: bool) -> None:
        a = world["a"]
        bundle = await a.ownership.bundle_of(TOPIC)
        await _losing_transactions(world, a.store, done)
        await a.acquire()
        await _losing_transactions(world, a.store, done)
        await a.ownership.split(bundle)
        await _losing_transactions(world, a.store, done)
        await a.ownership.merge(min(a.ownership.owned(), key=lambda each: each.bundle.first))
        await a.ownership.split(bundle)
        half = await a.ownership.bundle_of(TOPIC)
        assert a.owns()
        await a.ownership.unload(half)
        await _losing_transactions(world, a.store, done)
        assert await a.acquire() == half

    async def test_an_expired_session_keeps_what_no_other_broker_took(self, world: OwnershipWorld) -> None:
        a = world["a"]
        bundle = await a.acquire()
        await world.harness.expire(a.store)
        await until(a.owns, "it is owned again")
        assert await has_owner(world["b"].store, bundle)
        assert not a.lost

    async def test_an_expired_session_loses_what_another_broker_took(self, world: OwnershipWorld) -> None:
        a, b = world["a"], world["b"]
        bundle = await a.acquire()
        await world.harness.interrupt(a.store)
        assert a.owns(), "its session may live"

        async def vanished() -> bool:
            return not await has_owner(b.store, bundle)

        await until(vanished, "the session has ended")
        await b.acquire()
        await world.harness.restore(a.store)
        await until(lambda: a.lost == [bundle], "its topics are unloaded")
        assert not a.owns()
        assert (await a.owner_of()).address.broker_id == id_of("b")

    async def test_a_deleted_node_is_made_again(self, world: OwnershipWorld) -> None:
        a, b = world["a"], world["b"]
        bundle = await a.acquire()
        await b.store.delete(owner_path(bundle))

        async def exists() -> bool:
            return await has_owner(b.store, bundle)

        await until(exists, "the node exists again")
        assert a.owns()
        assert not a.lost


async def _losing_transactions(world: OwnershipWorld, store: MetadataStore, done: bool) -> None:
    """The answer of the next transaction is lost."""
    original = store.transact

    async def losing(operations: object) -> object:
        store.transact = original  # type: ignore[method-assign]
        await world.harness.lose_next_answer(store, done=done)
        return await original(operations)  # type: ignore[arg-type]

    store.transact = losing  # type: ignore[assignment, method-assign]
