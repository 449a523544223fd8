from __future__ import annotations

import asyncio
import dataclasses
from contextlib import AsyncExitStack

import pytest

from magnetar.broker.cluster.load_report import BrokerReport, BundleStats
from magnetar.broker.cluster.members import BROKERS, Members
from magnetar.errors import BrokerRegisteredError, OtherLoadManagerError
from magnetar.metadata.store import CreateMode
from magnetar.testing.waiting import until
from tests.unit.broker import golden
from tests.unit.broker.cluster.cluster_world import ClusterWorld, address, cluster_world

pytestmark = pytest.mark.virtual_time


async def started(world: ClusterWorld, closing: AsyncExitStack, *names: str) -> list[Members]:
    found = []
    for name in names:
        members = world.members(name)
        await members.start()
        closing.push_async_callback(members.aclose)
        found.append(members)
    return found


async def test_every_broker_sees_those_that_come_and_those_that_leave() -> None:
    async with cluster_world() as world, AsyncExitStack() as closing:
        (one,) = await started(world, closing, "a")
        (two,) = await started(world, closing, "b")
        assert sorted(two.brokers) == ["a:8080", "b:8080"]
        await until(lambda: "b:8080" in one.brokers, "b is seen")
        assert one.address_of("b:8080") == address("b")
        await two.aclose()
        await until(lambda: "b:8080" not in one.brokers, "b is gone")
        assert one.address_of("b:8080") is None


async def test_the_node_of_a_broker_is_its_report_and_follows_what_it_publishes() -> None:
    async with cluster_world() as world, AsyncExitStack() as closing:
        one, two = await started(world, closing, "a", "b")
        report = dataclasses.replace(one.own, bundles={"t/n/0x00000000_0xffffffff": BundleStats(5.0)}, updated_ms=2)
        one.publish(report)
        await until(lambda: two.brokers.get("a:8080") == report, "the report is seen")
        node = await world.connect().get(f"{BROKERS}/a:8080")
        assert node is not None
        assert node.value == report.encode()
        assert two.silent_s("a:8080") < 0.1


async def test_a_broker_registers_again_after_its_session_has_expired() -> None:
    async with cluster_world() as world, AsyncExitStack() as closing:
        store = world.connect()
        one = world.members("a", store)
        await one.start()
        closing.push_async_callback(one.aclose)
        (two,) = await started(world, closing, "b")
        report = dataclasses.replace(one.own, updated_ms=7)
        await world.server.expire(store)
        one.publish(report)
        await until(lambda: two.brokers.get("a:8080") == report and one.is_registered, "a is back")


async def test_a_broker_that_was_killed_and_restarted_takes_its_place_at_once() -> None:
    async with cluster_world() as world, AsyncExitStack() as closing:
        killed = world.connect()
        await killed.create(
            f"{BROKERS}/a:8080", world.members("a").own.encode(), mode=CreateMode.EPHEMERAL, make_parents=True
        )
        (again,) = await started(world, closing, "a")
        node = await killed.get(f"{BROKERS}/a:8080")
        assert node is not None
        assert node.owner != killed.session.id
        assert again.is_registered


async def test_a_report_that_is_too_large_is_not_written_and_the_broker_stays_registered() -> None:
    async with cluster_world() as world, AsyncExitStack() as closing:
        one, two = await started(world, closing, "a", "b")
        before = one.own
        one.publish(dataclasses.replace(before, version="x" * 2**20))
        await asyncio.sleep(30)
        assert one.is_registered
        assert two.brokers["a:8080"] == before
        smaller = dataclasses.replace(before, updated_ms=9)
        one.publish(smaller)
        await until(lambda: two.brokers["a:8080"] == smaller, "the next report is written")


async def test_a_broker_does_not_start_under_the_id_of_another_one() -> None:
    async with cluster_world() as world:
        other = BrokerReport(address=dataclasses.replace(address("a"), urls={"pulsar": "pulsar://elsewhere:6650"}))
        path = f"{BROKERS}/a:8080"
        await world.connect().create(path, other.encode(), mode=CreateMode.EPHEMERAL, make_parents=True)
        with pytest.raises(BrokerRegisteredError, match=r"registered at /loadbalance/brokers/a:8080 .*--http-port"):
            await world.members("a").start()


async def test_a_node_that_cannot_be_read_is_no_member() -> None:
    async with cluster_world() as world, AsyncExitStack() as closing:
        await world.connect().create(f"{BROKERS}/x:8080", b"junk", make_parents=True)
        (one,) = await started(world, closing, "a")
        assert sorted(one.brokers) == ["a:8080"]


@pytest.mark.parametrize("path", ["/loadbalance/extension/leader", "/service_unit_state"])
async def test_a_broker_does_not_start_where_owners_are_kept_elsewhere(path: str) -> None:
    async with cluster_world() as world:
        await world.connect().create(path, b"{}", make_parents=True)
        with pytest.raises(OtherLoadManagerError, match=f"ExtensibleLoadManagerImpl.*{path} exists"):
            await world.members("a").start()


async def test_a_broker_does_not_start_beside_one_with_the_extensible_load_manager() -> None:
    async with cluster_world() as world:
        value = golden.cluster()["extensible broker"].encode()
        await world.connect().create(f"{BROKERS}/b1:8080", value, mode=CreateMode.EPHEMERAL, make_parents=True)
        with pytest.raises(OtherLoadManagerError, match="broker b1:8080 has it"):
            await world.members("a").start()
