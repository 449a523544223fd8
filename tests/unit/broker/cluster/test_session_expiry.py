"""A broker whose session was lost, or whose node was deleted, keeps what no other broker has taken."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.broker.cluster.owner_node import OwnerNode, owner_path
from magnetar.config.broker import BrokerConfig
from magnetar.errors import ServiceNotReadyError
from magnetar.metadata.store import CreateMode, SessionState
from magnetar.names import TopicName
from magnetar.testing.waiting import until
from tests.unit.broker.cluster.ownership_world import (
    TOPIC,
    OwnershipNode,
    OwnershipWorld,
    address_of,
    id_of,
    ownership_world,
)

pytestmark = pytest.mark.virtual_time


async def cut_until_expired(world: OwnershipWorld, node: OwnershipNode) -> None:
    """Its nodes have vanished, and it does not know that yet."""
    await world.harness.interrupt(node.store)
    await asyncio.sleep(node.store.session.timeout_ms / 1000 + 1.0)


async def test_a_broker_that_is_disconnected_for_less_than_its_session_serves_on() -> None:
    async with ownership_world("a") as world:
        a = world["a"]
        bundle = await a.acquire()
        await world.harness.interrupt(a.store)
        await asyncio.sleep(a.store.session.timeout_ms / 2000)
        assert a.owns()
        await world.harness.restore(a.store)
        await asyncio.sleep(1.0)
        assert a.owns()
        assert not a.lost
        assert set(a.ownership.owned()) == {bundle}


async def test_after_an_expired_session_the_bundles_are_owned_again_and_no_topic_is_unloaded() -> None:
    async with ownership_world("a") as world:
        a = world["a"]
        topics = [TopicName.parse(f"persistent://public/default/{number}") for number in range(20)]
        for topic in topics:
            await a.acquire(topic)
        before = a.ownership.owned()
        await cut_until_expired(world, a)
        await world.harness.restore(a.store)
        assert not a.owns(), "it is not known yet whether another broker has taken it"
        with pytest.raises(ServiceNotReadyError, match="checked"):
            await a.owner_of()
        await until(lambda: a.ownership.owned() == before, "all is owned again, since the same time")
        assert not a.lost
        for bundle in before:
            node = await a.store.get(owner_path(bundle))
            assert node is not None
            assert node.owner == a.store.session.id


async def test_a_bundle_that_another_broker_took_meanwhile_is_lost_at_once() -> None:
    async with ownership_world("a", "b") as world:
        a, b = world["a"], world["b"]
        bundle = await a.acquire()
        await cut_until_expired(world, a)
        await b.acquire()
        await world.harness.restore(a.store)
        await until(lambda: a.lost == [bundle], "its topics are unloaded", seconds=1.0)
        assert not a.owns()
        assert (await a.owner_of()).address.broker_id == id_of("b")


async def test_a_node_of_the_former_session_is_waited_for() -> None:
    async with ownership_world("a", "b") as world:
        a = world["a"]
        bundle = await a.acquire()
        former = await world.harness.connect()
        path = owner_path(bundle)
        await a.store.delete(path)
        await former.create(path, OwnerNode(address_of("a")).encode(), mode=CreateMode.EPHEMERAL)
        await world.harness.expire(a.store)
        await asyncio.sleep(1.0)
        assert not a.owns()
        assert not a.lost
        with pytest.raises(ServiceNotReadyError):
            await a.owner_of()
        await former.aclose()
        await until(a.owns, "the node was made again when it had vanished")
        assert not a.lost


async def test_a_bundle_whose_node_another_process_with_our_addresses_has_replaced_is_served_no_more() -> None:
    async with ownership_world("a") as world:
        a = world["a"]
        bundle = await a.acquire()
        twin = await world.harness.connect()
        path = owner_path(bundle)
        await twin.delete(path)
        await twin.create(path, OwnerNode(address_of("a")).encode(), mode=CreateMode.EPHEMERAL)
        await until(lambda: not a.owns(), "it is known", seconds=1.0)
        with pytest.raises(ServiceNotReadyError, match="checked"):
            await a.owner_of()
        await twin.aclose()
        await until(a.owns, "the node was made again when it had vanished")


async def test_a_session_that_expires_while_bundles_are_owned_again_begins_it_anew() -> None:
    async with ownership_world("a") as world:
        a = world["a"]
        bundle = await a.acquire()
        former = await world.harness.connect()
        await a.store.delete(owner_path(bundle))
        await former.create(owner_path(bundle), OwnerNode(address_of("a")).encode(), mode=CreateMode.EPHEMERAL)
        for _ in range(3):
            await world.harness.expire(a.store)
            await asyncio.sleep(0.5)
        await former.aclose()
        await until(a.owns, "it is owned in the newest session")
        node = await a.store.get(owner_path(bundle))
        assert node is not None
        assert node.owner == a.store.session.id
        assert not a.lost


async def test_a_former_session_that_does_not_end_stops_the_broker_in_the_end() -> None:
    async with ownership_world("a") as world:
        a = world["a"]
        bundle = await a.acquire()
        former = await world.harness.connect()
        await a.store.delete(owner_path(bundle))
        await former.create(owner_path(bundle), OwnerNode(address_of("a")).encode(), mode=CreateMode.EPHEMERAL)
        await world.harness.expire(a.store)
        async with asyncio.timeout(3_600):
            error = await a.ownership.wait_failed()
        assert "former session" in str(error)
        assert a.lost == [bundle]
        await former.aclose()


async def test_a_broker_that_gets_no_new_session_stops() -> None:
    async with ownership_world("a") as world:
        a = world["a"]
        bundle = await a.acquire()
        a.store.session.move(SessionState.EXPIRED)
        async with asyncio.timeout(3_600):
            error = await a.ownership.wait_failed()
        assert "no new session" in str(error)
        assert a.lost == [bundle]


async def test_a_broker_that_was_disconnected_before_its_session_expired_stops_without_a_new_one() -> None:
    async with ownership_world("a") as world:
        a = world["a"]
        bundle = await a.acquire()
        await asyncio.sleep(1.0)  # It has looked at the node.
        await world.harness.interrupt(a.store)
        await asyncio.sleep(a.store.session.timeout_ms / 2000)  # It waits for the connection, to look again.
        assert a.store.session.state is SessionState.DISCONNECTED
        a.store.session.move(SessionState.EXPIRED)
        async with asyncio.timeout(3_600):
            error = await a.ownership.wait_failed()
        assert "no new session" in str(error)
        assert a.lost == [bundle]


async def test_with_the_policy_shutdown_all_bundles_are_given_up_and_the_broker_stops() -> None:
    async with ownership_world("a", config=BrokerConfig(session_expired_policy="shutdown")) as world:
        a = world["a"]
        bundle = await a.acquire()
        await world.harness.expire(a.store)
        error = await a.ownership.wait_failed()
        assert "session_expired_policy is shutdown" in str(error)
        assert a.lost == [bundle]
        assert not a.owns()
        with pytest.raises(ServiceNotReadyError, match="stopping"):
            await a.owner_of(is_authoritative=True)


async def test_an_unexpected_value_in_a_node_stops_the_broker_that_owns_bundles_again() -> None:
    async with ownership_world("a", "b") as world:
        a, b = world["a"], world["b"]
        bundle = await a.acquire()
        await cut_until_expired(world, a)
        await b.store.create(owner_path(bundle), b"not JSON", mode=CreateMode.EPHEMERAL)
        await world.harness.restore(a.store)
        assert "not JSON" in str(await a.ownership.wait_failed())
        assert a.lost == [bundle]


async def test_an_unload_during_which_the_session_expires_comes_to_its_end() -> None:
    async with ownership_world("a", "b") as world:
        a, b = world["a"], world["b"]
        bundle = await a.acquire()
        a.may_close.clear()
        unloading = asyncio.create_task(a.ownership.unload(bundle))
        await until(lambda: a.lost, "the topics are being closed")
        await world.harness.expire(a.store)
        await b.acquire()
        a.may_close.set()
        await unloading
        assert a.lost == [bundle]
        assert b.owns(), "the node of the other broker was left alone"
        assert await b.store.get(owner_path(bundle)) is not None


# --- nodes that are deleted under a live session ----------------------------------------------------------------------


async def test_a_node_that_another_client_deletes_is_made_again() -> None:
    async with ownership_world("a", "b") as world:
        a, b = world["a"], world["b"]
        bundle = await a.acquire()
        for _ in range(3):
            await asyncio.sleep(0.1)
            await b.store.delete(owner_path(bundle))

            async def exists() -> bool:
                return await b.store.get(owner_path(bundle)) is not None

            await until(exists, "the node exists again")
        assert a.owns()
        assert not a.lost


async def test_a_node_that_another_broker_replaces_is_a_lost_bundle() -> None:
    async with ownership_world("a", "b") as world:
        a, b = world["a"], world["b"]
        bundle = await a.acquire()
        await asyncio.sleep(0.1)
        await world.harness.interrupt(a.store)
        await b.store.delete(owner_path(bundle))
        await b.acquire()
        await world.harness.restore(a.store)
        await until(lambda: a.lost == [bundle], "its topics are unloaded")
        assert not a.owns()


async def test_the_bundles_of_a_deleted_namespace_are_lost_and_not_made_again() -> None:
    async with ownership_world("a", "b") as world:
        a, b = world["a"], world["b"]
        bundle = await a.acquire()
        await b.resources.namespaces.mark_deleted(TOPIC.namespace)
        await b.resources.namespaces.delete(TOPIC.namespace)
        await until(lambda: a.lost == [bundle], "its topics are unloaded")
        assert await b.store.get(owner_path(bundle)) is None
