"""Bundles are acquired, found, passed on and refused, among brokers that share a metadata store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from magnetar.broker.cluster.owner_node import OwnerNode, owner_path
from magnetar.broker.front_end import PULSAR
from magnetar.broker.ownership import BrokerAddress
from magnetar.errors import MalformedMetadataError, MetadataUnavailableError, ServiceNotReadyError
from magnetar.metadata.store import CreateMode, Node, Operation, OperationResult, Watcher
from magnetar.names import TopicName
from magnetar.testing.waiting import until
from tests.unit.broker import golden
from tests.unit.broker.cluster.ownership_world import TOPIC, address_of, id_of, ownership_world

pytestmark = pytest.mark.virtual_time


async def test_a_bundle_without_an_owner_is_acquired_by_the_broker_that_the_leader_chooses() -> None:
    async with ownership_world("leader", "b", "c") as world:
        world.chooses = "c"
        asked = await world["b"].owner_of()
        assert (asked.address.broker_id, asked.is_candidate, asked.is_authoritative) == (id_of("leader"), True, False)
        chosen = await world["leader"].owner_of()
        assert (chosen.address.broker_id, chosen.is_candidate, chosen.is_authoritative) == (id_of("c"), True, True)
        assert (await world["c"].owner_of(is_authoritative=True)).is_here
        assert world["c"].owns()
        known = await world["b"].owner_of()
        assert (known.address.broker_id, known.is_here, known.is_candidate) == (id_of("c"), False, False)
        assert known.address.url_for(PULSAR) == "pulsar://c:6650"
        assert not world["b"].owns()


async def test_without_a_leader_that_is_alive_a_broker_chooses_by_itself() -> None:
    async with ownership_world("a") as world:
        for leader in (None, id_of("dead")):
            world.leader = leader
            topic = TopicName.parse(f"persistent://public/default/of-{leader}")
            assert (await world["a"].owner_of(topic)).is_here


async def test_a_chosen_broker_that_has_left_is_reported_as_not_ready() -> None:
    async with ownership_world("a") as world:
        world.chooses = "gone"
        with pytest.raises(ServiceNotReadyError, match="gone:8080"):
            await world["a"].owner_of()


async def test_the_node_of_an_owner_is_ephemeral_and_names_the_broker_as_pulsar_does() -> None:
    async with ownership_world("a") as world:
        bundle = await world["a"].acquire()
        node = await world["a"].store.get(owner_path(bundle))
        assert node is not None
        assert node.owner == world["a"].store.session.id
        assert json.loads(node.value) == {
            "brokerId": "a:8080",
            "nativeUrl": "pulsar://a:6650",
            "httpUrl": "http://a:8080",
            "disabled": False,
            "advertisedListeners": {},
        }


def test_the_node_of_an_owner_has_the_fields_of_apaches() -> None:
    apaches = golden.cluster()["ownership"].encode()
    node = OwnerNode.parse("/p", apaches)
    assert node.address.url_for(PULSAR, "internal") == "pulsar://b1.internal:6650"
    assert json.loads(node.encode()) == {"brokerId": "b1:8080", **json.loads(apaches)}  # Written here without an id.


def test_the_node_of_an_owner_keeps_listeners_and_is_read_without_a_broker_id() -> None:
    listeners = {PULSAR: {"outside": "pulsar://out:1"}}
    address = BrokerAddress("a:8080", "http://a:8080", {PULSAR: "pulsar://a:6650"}, listeners)
    node = OwnerNode(address, is_disabled=True)
    assert OwnerNode.parse("/p", node.encode()) == node
    older = OwnerNode.parse("/p", b'{"nativeUrl":"pulsar://b:1","httpUrl":"http://b:8081","disabled":false}')
    assert (older.address.broker_id, older.address.url_for(PULSAR)) == ("b:8081", "pulsar://b:1")
    with pytest.raises(MalformedMetadataError):
        OwnerNode.parse("/p", b'{"disabled":false}')


async def test_many_lookups_of_one_bundle_are_one_choice_and_one_acquisition() -> None:
    async with ownership_world("a") as world:
        owners = await asyncio.gather(*(world["a"].owner_of() for _ in range(100)))
        assert all(owner.is_here for owner in owners)
        assert world["a"].chosen == 1
        assert len(world["a"].ownership.owned()) == 1


async def test_of_two_brokers_that_acquire_at_once_one_owns_and_the_other_answers_with_it() -> None:
    async with ownership_world("a", "b") as world:
        of_a, of_b = await asyncio.gather(
            world["a"].owner_of(is_authoritative=True), world["b"].owner_of(is_authoritative=True)
        )
        assert [of_a.is_here, of_b.is_here].count(True) == 1
        assert of_a.address.broker_id == of_b.address.broker_id
        assert [world["a"].owns(), world["b"].owns()] == [of_a.is_here, of_b.is_here]


async def test_an_unloaded_bundle_is_refused_until_its_topics_are_closed_and_then_has_no_owner() -> None:
    async with ownership_world("a", "b") as world:
        a, b = world["a"], world["b"]
        bundle = await a.acquire()
        a.may_close.clear()
        unloading = asyncio.create_task(a.ownership.unload(bundle))
        await until(lambda: a.lost, "the topics are being closed")
        assert not a.owns()
        assert not a.ownership.owned()
        for node in (a, b):
            with pytest.raises(ServiceNotReadyError, match="unloaded"):
                await node.owner_of()
        a.may_close.set()
        await unloading
        assert a.lost == [bundle]
        assert await a.store.get(owner_path(bundle)) is None
        assert await b.ownership.find_owner(bundle) is None
        await b.acquire()
        assert not (await a.owner_of()).is_here


async def test_unloads_of_one_bundle_at_once_are_one() -> None:
    async with ownership_world("a") as world:
        bundle = await world["a"].acquire()
        await asyncio.gather(*(world["a"].ownership.unload(bundle) for _ in range(5)))
        assert world["a"].lost == [bundle]
        with pytest.raises(ServiceNotReadyError, match="not served by this broker"):
            await world["a"].ownership.unload(bundle)


async def test_an_unload_that_could_not_begin_leaves_the_bundle_served_and_can_be_repeated() -> None:
    async with ownership_world("a") as world:
        a = world["a"]
        bundle = await a.acquire()
        async with a.ownership._lock(bundle):
            with pytest.raises(ServiceNotReadyError, match="is being changed"):
                await a.ownership.unload(bundle)
            assert a.owns()
        await a.ownership.unload(bundle)
        assert a.lost == [bundle]


async def test_a_bundle_that_could_not_be_released_is_taken_up_by_the_next_lookup() -> None:
    async with ownership_world("a") as world:
        a = world["a"]
        bundle = await a.acquire()
        await a.ownership.unload(bundle)
        left = OwnerNode(address_of("a"), is_disabled=True).encode()
        await a.store.create(owner_path(bundle), left, mode=CreateMode.EPHEMERAL)
        await a.acquire()
        found = await a.store.get(owner_path(bundle))
        assert found is not None
        assert not OwnerNode.parse("", found.value).is_disabled


async def test_a_broker_that_leaves_passes_on_all_and_takes_no_more() -> None:
    async with ownership_world("a", "b") as world:
        a = world["a"]
        topics = [TopicName.parse(f"persistent://public/default/{number}") for number in range(20)]
        for topic in topics:
            await a.acquire(topic)
        count = len(a.ownership.owned())
        assert count == world.config.namespace_bundles
        await a.ownership.give_up()
        assert len(a.lost) == count
        assert not a.ownership.owned()
        with pytest.raises(ServiceNotReadyError, match="stopping"):
            await a.owner_of(is_authoritative=True)
        await world["b"].acquire()


@pytest.mark.parametrize("is_last_moment", [False, True])
async def test_a_bundle_that_is_none_any_more_is_not_acquired(
    is_last_moment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ownership_world("a", "b") as world:
        a, b = world["a"], world["b"]
        stale = await a.acquire()
        await a.ownership.unload(stale)  # The node's parent exists now.
        middle = (stale.bundle.first + stale.bundle.last) // 2
        bundles = await b.resources.namespaces.bundles(TOPIC.namespace)
        divided = bundles.split(stale.bundle, middle).to_json()

        async def divide() -> None:
            await b.resources.namespaces.update_local(TOPIC.namespace, lambda found: found | {"bundles": divided})

        transact = a.store.transact

        async def too_late(operations: Sequence[Operation]) -> list[OperationResult]:
            await divide()
            return await transact(operations)

        if is_last_moment:
            monkeypatch.setattr(a.store, "transact", too_late)
        else:
            await divide()
        with pytest.raises(ServiceNotReadyError, match="divided"):
            await a.ownership.owner_of_bundle(stale, is_authoritative=True)
        await a.acquire()


@pytest.mark.parametrize("is_disabled", [False, True])
async def test_what_a_killed_process_with_our_id_left_is_waited_for_and_then_owned(
    is_disabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ownership_world("a", "b") as world:
        a, b = world["a"], world["b"]
        bundle = await a.ownership.bundle_of(TOPIC)
        killed = await world.harness.connect()
        left = OwnerNode(address_of("a"), is_disabled=is_disabled).encode()
        await killed.create(owner_path(bundle), left, mode=CreateMode.EPHEMERAL, make_parents=True)
        get, is_seen = a.store.get, asyncio.Event()

        async def get_and_tell(
            path: str, *, watch: Watcher | None = None, expects_nothing: bool = False
        ) -> Node | None:
            node = await get(path, watch=watch, expects_nothing=expects_nothing)
            if path == owner_path(bundle):
                is_seen.set()
            return node

        monkeypatch.setattr(a.store, "get", get_and_tell)
        taking_up = asyncio.ensure_future(a.ownership.take_up(TOPIC))
        async with asyncio.timeout(5):
            await is_seen.wait()
        await a.store.sync()
        assert not taking_up.done()
        assert not a.owns()
        await killed.aclose()
        async with asyncio.timeout(5):
            await taking_up
        assert a.owns()
        found = await a.store.get(owner_path(bundle))
        assert found is not None
        assert found.owner == a.store.session.id
        assert (await b.owner_of()).address.broker_id == id_of("a")


async def test_what_is_recorded_of_another_broker_or_of_none_is_not_taken_up() -> None:
    async with ownership_world("a", "b") as world:
        a, b = world["a"], world["b"]
        await a.ownership.take_up(TOPIC)
        assert not a.owns()
        await b.acquire()
        await a.ownership.take_up(TOPIC)
        assert b.owns()
        assert not a.owns()


async def test_a_node_that_an_unload_could_not_delete_is_deleted_when_the_metadata_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(path: str, version: int | None = None) -> None:
        raise MetadataUnavailableError(f"{path} cannot be deleted")

    async with ownership_world("a", "b") as world:
        a, b = world["a"], world["b"]
        bundle = await a.acquire()
        with monkeypatch.context() as patch:
            patch.setattr(a.store, "delete", fail)
            with pytest.raises(MetadataUnavailableError):
                await a.ownership.unload(bundle)
            with pytest.raises(ServiceNotReadyError, match="being unloaded"):
                await b.owner_of()

        async def has_no_node() -> bool:
            return await b.store.get(owner_path(bundle)) is None

        await until(has_no_node, "the node is deleted")
        assert await b.acquire() == bundle
        assert a.lost == [bundle]
