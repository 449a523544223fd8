from __future__ import annotations

import asyncio

import pytest

from magnetar.broker.cluster.load_report import BundleStats
from magnetar.broker.cluster.traffic import TopicTraffic, usage_of
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.names import NamespaceName
from magnetar.runtime.metrics import ProcessUsage
from tests.unit.broker.pulsar.broker_world import broker_world

NAMESPACE = NamespaceName.parse("public/default")


@pytest.mark.virtual_time
async def test_the_traffic_of_topics_is_measured_by_bundle_and_since_the_last_time() -> None:
    async with broker_world() as world:
        service = world.broker.service
        bundles = await service.resources.namespaces.bundles(NAMESPACE)
        owned = [NamespaceBundle(NAMESPACE, each) for each in bundles.all()]
        mine = NamespaceBundle(NAMESPACE, bundles.of(NAMESPACE.topic("t")))
        traffic = TopicTraffic(service.topics, service.slices)
        began_s = asyncio.get_running_loop().time()
        talker = await world.talker()
        await talker.subscribe("t", "s")
        talker.flow(2)
        await talker.producer("t")
        for number in range(3):
            await talker.published(1, number, b"m-%d" % number)
        await asyncio.sleep(began_s + 2 - asyncio.get_running_loop().time())
        first = await traffic.measure(owned)
        assert set(first) == set(owned)
        assert all(first[other] == BundleStats() for other in owned if other != mine)
        assert (first[mine].topics, first[mine].producers, first[mine].consumers) == (1, 1, 1)
        assert (first[mine].messages_in, first[mine].messages_out) == (pytest.approx(1.5), pytest.approx(1.0))
        assert min(first[mine].bytes_in, first[mine].bytes_out) > first[mine].messages_in
        await talker.published(1, 3, b"m-3")
        await asyncio.sleep(began_s + 6 - asyncio.get_running_loop().time())
        assert (await traffic.measure(owned))[mine].messages_in == pytest.approx(0.25)
        await asyncio.sleep(1)
        third = await traffic.measure(owned)
        assert third[mine].messages_in == third[mine].bytes_in == 0.0
        assert await traffic.measure([]) == {}


def test_the_usage_of_a_process_is_a_share_of_a_core_and_of_the_machines_memory() -> None:
    process = ProcessUsage()
    sum(number * number for number in range(200_000))
    usage = usage_of(process)
    assert 0.0 < usage.cpu.share <= 1.1
    assert 0.0 < usage.memory.share < 1.0
    assert usage.busiest == usage.cpu.share
