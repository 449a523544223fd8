from __future__ import annotations

import pytest

from magnetar.broker.cluster.leader import LEADER, LeaderBroker
from magnetar.errors import MalformedMetadataError
from magnetar.metadata.store import CreateMode
from magnetar.testing.waiting import until
from tests.unit.broker import golden
from tests.unit.broker.cluster.cluster_world import cluster_world

pytestmark = pytest.mark.virtual_time


async def test_the_first_broker_leads_and_the_others_know_it() -> None:
    async with cluster_world() as world:
        one, two = world.leadership("a"), world.leadership("b")
        await one.start()
        assert await one.leader() == LeaderBroker("a:8080", "http://a:8080")
        await two.start()
        assert await two.leader() == LeaderBroker("a:8080", "http://a:8080")
        await until(lambda: one.is_leader, "the first one leads")
        assert not two.is_leader
        await two.aclose()
        await one.aclose()


async def test_another_broker_leads_after_the_leader_has_left() -> None:
    async with cluster_world() as world:
        one, two = world.leadership("a"), world.leadership("b")
        await one.start()
        await one.leader()
        await two.start()
        await two.leader()
        await one.aclose()
        assert not one.is_leader
        await until(lambda: two.is_leader, "the other one leads")
        await two.aclose()


async def test_another_broker_leads_after_the_session_of_the_leader_has_expired() -> None:
    async with cluster_world() as world:
        store = world.connect()
        one, two = world.leadership("a", store), world.leadership("b")
        await one.start()
        await one.leader()
        await two.start()
        await two.leader()
        await world.server.expire(store)
        await until(lambda: one.is_leader != two.is_leader, "one of them leads")
        await until(lambda: one.known == two.known, "they agree")
        await two.aclose()
        await one.aclose()


async def test_exactly_one_of_many_brokers_leads_whichever_leaves() -> None:
    async with cluster_world() as world:
        brokers = [world.leadership(f"b{number}") for number in range(6)]
        for each in brokers:
            await each.start()
        while brokers:
            await until(lambda: [each.is_leader for each in brokers].count(True) == 1, "one leads")
            leader = next(each for each in brokers if each.is_leader)
            await leader.aclose()
            brokers.remove(leader)


async def test_a_broker_that_was_killed_and_restarted_leads_again_at_once() -> None:
    async with cluster_world() as world:
        killed = world.connect()
        value = LeaderBroker("a:8080", "http://a:8080").encode()
        await killed.create(LEADER, value, mode=CreateMode.EPHEMERAL, make_parents=True)
        again = world.leadership("a")
        await again.start()
        await until(lambda: again.is_leader, "it leads again")
        await again.aclose()


async def test_the_leader_is_unknown_when_none_is_elected_in_time() -> None:
    async with cluster_world() as world:
        await world.connect().create(LEADER, b"junk", make_parents=True)
        one = world.leadership("a")
        await one.start()
        assert await one.leader() is None
        assert not one.is_leader
        await one.aclose()
        assert await one.leader() is None


def test_the_node_of_the_leader_has_the_bytes_of_apaches() -> None:
    leader = LeaderBroker("b1:8080", "http://b1:8080")
    assert leader.encode() == golden.cluster()["leader"].encode()
    assert LeaderBroker.decode(leader.encode()) == leader
    assert LeaderBroker.decode(b'{"serviceUrl":"http://b1:8080"}') == leader  # As releases before 3.0 wrote it.
    with pytest.raises(MalformedMetadataError, match="names no broker"):
        LeaderBroker.decode(b"{}")
