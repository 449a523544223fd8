"""The relayed store is held to the contract as far as it has no session: nodes, transactions, races, outages.

Limits: tests of ephemeral nodes and of the kinds of watch events are left out. Watches are always INTERRUPTED here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from magnetar.errors import AccessDeniedError
from magnetar.metadata.store import CreateMode, MetadataStore
from magnetar.testing.waiting import until
from tests.contracts.metadata_harness import Recorder, StoreContract, StoreHarness
from tests.contracts.metadata_nodes import (
    NodesContract,
    RacesContract,
    SequencesContract,
    TransactionsContract,
)
from tests.contracts.metadata_sessions import SessionsContract
from tests.contracts.metadata_store import WatchesContract
from tests.contracts.relay_harness import RelayHarness


def showing(*behaviours: Callable[..., Any]) -> Callable[[type], type]:
    """These behaviours of the contract, and not the rest of their part."""

    def decorate(cls: type) -> type:
        for behaviour in behaviours:
            setattr(cls, behaviour.__name__, behaviour)
        return cls

    return decorate


class _Relayed:
    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[RelayHarness]:
        harness = RelayHarness()
        yield harness
        await harness.aclose()


class TestRelayed(_Relayed, NodesContract, SequencesContract, TransactionsContract, RacesContract):
    async def test_a_number_is_not_given_again_after_its_node_is_deleted(self, store: MetadataStore) -> None:
        numbers = []
        for _ in range(3):
            path = await store.create(
                "/ledgers/idgen/ID-", mode=CreateMode.EPHEMERAL_SEQUENTIAL, make_parents=True
            )  # The one ephemeral node that is relayed: it belongs to the broker.
            await store.delete(path)
            numbers.append(path)
        assert numbers == sorted(set(numbers))

    async def test_ephemeral_nodes_are_refused_with_what_to_do(self, store: MetadataStore) -> None:
        for mode in (CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL):
            with pytest.raises(AccessDeniedError, match="make the node persistent"):
                await store.create("/e", mode=mode)
        assert await store.get("/e") is None


@showing(
    WatchesContract.test_following_a_value_never_misses_the_last_one,
    WatchesContract.test_following_a_value_sees_absence_creation_and_deletion,
    WatchesContract.test_following_children_sees_the_node_itself_come_and_go,
    WatchesContract.test_a_refused_read_arms_nothing,
    SessionsContract.test_following_goes_on_over_an_outage_and_sees_what_was_missed,
)
class TestRelayedFollowing(_Relayed, StoreContract):
    async def test_a_watcher_is_told_once_that_news_may_be_missed(self, store: MetadataStore) -> None:
        value, children = Recorder(), Recorder()
        await store.create("/a")
        await store.get("/a", watch=value.on_event)
        await store.children("/a", watch=children.on_event)
        await until(lambda: value.events and children.events, "both watchers were told")
        await store.put("/a", b"new")
        assert (value.kinds, children.kinds) == (["interrupted"], ["interrupted"])


@showing(
    SessionsContract.test_an_operation_made_during_an_outage_waits_and_is_done,
    SessionsContract.test_an_operation_that_outlasts_its_timeout_in_an_outage_was_not_done,
    SessionsContract.test_a_write_whose_answer_is_lost_is_reported_as_unknown,
    SessionsContract.test_a_closed_store_refuses_and_closing_again_is_nothing,
    SessionsContract.test_closing_releases_whoever_waits,
    SessionsContract.test_a_write_under_way_when_the_store_is_closed_is_done_or_unknown_never_refused,
    SessionsContract.test_operations_beyond_the_limit_in_flight_are_refused,
    SessionsContract.test_a_caller_that_gives_up_disturbs_nobody,
)
class TestRelayedOutages(_Relayed, StoreContract):
    async def test_a_read_whose_answer_is_lost_is_read_again(self, harness: StoreHarness, store: MetadataStore) -> None:
        await harness.lose_next_answer(store, done=True)
        assert await store.get("/a") is None

    async def test_what_follows_an_outage_syncs_first(self, harness: RelayHarness, store: MetadataStore) -> None:
        await harness.lose_next_answer(store, done=True)
        await store.get("/a")
        await store.get("/b")
        assert [body.get("fresh", False) for body in harness.relay_of(store).asked] == [False, True, False]

    async def test_a_change_is_sent_when_the_one_before_is_answered_and_reads_do_not_wait(
        self, harness: RelayHarness, store: MetadataStore
    ) -> None:
        relay = harness.relay_of(store)
        relay.hold = asyncio.Event()
        changes = [asyncio.ensure_future(store.create(f"/n{number}")) for number in range(2)]
        read = asyncio.ensure_future(store.get("/a"))
        await until(lambda: len(relay.asked) == 2, "a change and the read are there")
        assert sorted(body["op"] for body in relay.asked) == ["create", "get"]
        relay.hold.set()
        assert await asyncio.gather(*changes) == ["/n0", "/n1"]
        assert await read is None
