"""The metadata contract: sessions, ephemeral nodes, outages, expiry, and unknown outcomes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from magnetar.errors import (
    MetadataUnavailableError,
    NoChildrenForEphemeralsError,
    OutcomeUnknownError,
    StoreClosedError,
)
from magnetar.metadata.follow import follow_children, follow_value
from magnetar.metadata.store import Create, CreateMode, MetadataStore, Put, SessionState
from magnetar.testing.waiting import until
from tests.contracts.metadata_harness import CONTRACT_CONFIG, Recorder, StoreContract, StoreHarness, value_of


class SessionsContract(StoreContract):
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
