"""Statistics, metrics, health, and what a broker says about itself."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.admin.stats.topics import MergedStats
from magnetar.config.pulsar import PulsarConfig
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from tests.unit.admin.admin_world import TOPIC, V2, admin_world
from tests.unit.broker import golden

pytestmark = pytest.mark.virtual_time


async def test_statistics_count_what_came_and_went() -> None:
    async with admin_world() as world:
        talker = await world.talker()
        await talker.subscribe("t", "s", kind=CommandSubscribe.Shared)
        talker.flow(10)
        await talker.producer("t", producer_name="maker")
        ids = []
        for number in range(3):
            await talker.published(1, number, b"x")
            ids.append((await talker.message())[0])
        talker.ack(ids[0])
        talker.ack(ids[2], request_id=1)
        await talker.answer(BaseCommand.ACK_RESPONSE)
        stats = (await world.get(f"{TOPIC}/stats?getEarliestTimeInBacklog=true")).json
        subscription = stats["subscriptions"]["s"]
        assert (stats["msgInCounter"], stats["msgOutCounter"]) == (3, 3)
        assert [each["producerName"] for each in stats["publishers"]] == ["maker"]
        assert (subscription["msgBacklog"], subscription["unackedMessages"], subscription["type"]) == (1, 1, "Shared")
        assert subscription["earliestMsgPublishTimeInBacklog"] == 1
        assert subscription["nonContiguousDeletedMessagesRanges"] == 1
        assert subscription["consumers"][0]["availablePermits"] == 7
        cursor = (await world.get(f"{TOPIC}/internalStats?metadata=true")).json["cursors"]["s"]
        ledger = ids[0].ledgerId
        assert cursor["markDeletePosition"] == f"{ledger}:0"
        assert cursor["individuallyDeletedMessages"] == f"[({ledger}:1..{ledger}:2]]"
        bare = (await world.get(f"{TOPIC}/stats?excludePublishers=true&excludeConsumers=true")).json
        assert (bare["publishers"], bare["subscriptions"]["s"]["consumers"]) == ([], [])


async def test_rates_are_those_of_the_last_window() -> None:
    async with admin_world() as world:
        talker = await world.talker()
        await talker.producer("t")
        await talker.published(1, 0, b"x")
        rates = world.context.rates
        await asyncio.sleep(1)
        await rates.look()
        before = (await world.get(f"{TOPIC}/stats")).json
        assert before["msgRateIn"] > 0  # Since it came.
        await asyncio.sleep(1)
        await rates.look()
        assert (await world.get(f"{TOPIC}/stats")).json["msgRateIn"] == 0.0
        await talker.published(1, 1, b"x")
        await asyncio.sleep(1)
        await rates.look()
        assert (await world.get(f"{TOPIC}/stats")).json["msgRateIn"] > 0


def test_statistics_of_partitions_are_added_up() -> None:
    one = {
        "msgInCounter": 1,
        "lastPublishTimeStamp": 5,
        "backlogQuotaLimitSize": -1,
        "publishers": [{"producerName": "p", "msgRateIn": 1.0, "address": "a"}],
        "subscriptions": {"s": {"msgBacklog": 2, "isDurable": True, "consumers": []}},
        "ownerBroker": "here",
    }
    sums = MergedStats()
    sums.add(one)
    sums.add(one | {"lastPublishTimeStamp": 9})
    merged = sums.stats()
    assert one["publishers"] == [{"producerName": "p", "msgRateIn": 1.0, "address": "a"}]
    assert merged["msgInCounter"] == 2
    assert (merged["lastPublishTimeStamp"], merged["backlogQuotaLimitSize"]) == (9, -1)
    assert merged["publishers"] == [{"producerName": "p", "msgRateIn": 2.0}]
    assert merged["subscriptions"]["s"] == {"msgBacklog": 4, "isDurable": True, "consumers": []}
    assert "ownerBroker" not in merged


async def test_metrics_have_pulsars_names_and_ours() -> None:
    async with admin_world() as world:
        world.context.metrics.counter("magnetar_test_events_total", "Of a test.").inc()
        await world.done("PUT", f"{TOPIC}/subscription/s")
        await world.publish(3)
        answer = await world.get("/metrics/")
        lines = answer.body.decode().splitlines()
        labels = 'cluster="standalone",namespace="public/default",topic="persistent://public/default/t"'
        assert f"pulsar_in_messages_total{{{labels}}} 3" in lines
        assert f'pulsar_subscription_back_log{{{labels},subscription="s"}} 3' in lines
        assert 'pulsar_broker_topics_count{cluster="standalone"} 1' in lines
        assert "# TYPE pulsar_in_messages_total counter" in lines
        assert any(line.startswith("magnetar_test_events_total") for line in lines)
        assert len({line for line in lines if line.startswith("# TYPE")}) == sum(
            line.startswith("# TYPE") for line in lines
        )


async def test_a_health_check_stores_a_message_and_reads_it_back() -> None:
    async with admin_world() as world:
        assert (await world.get(f"{V2}/brokers/health")).body == b"ok"
        assert (await world.get(f"{V2}/brokers/ready")).body == b"ok"
        healthcheck = next(topic for topic in world.context.broker.service.topics.loaded())
        assert healthcheck.publisher.messages_in == 1
        assert (await world.get("/health")).json == {"healthy": True, "broker": "serving"}


async def test_settings_are_shown_by_our_names_and_by_pulsars() -> None:
    async with admin_world(pulsar=PulsarConfig(port=0)) as world:
        shown = (await world.get(f"{V2}/brokers/configuration/runtime")).json
        assert shown["broker.cluster"] == shown["clusterName"] == "standalone"
        assert shown["broker.auto_create_topics"] == shown["allowAutoTopicCreation"] == "true"
        assert (await world.get(f"{V2}/brokers/configuration/values")).json == {}


async def test_bookies_and_their_racks_are_known() -> None:
    async with admin_world() as world:
        bookies = (await world.get(f"{V2}/bookies/all")).json["bookies"]
        assert len(bookies) == 1
        rack = f"{V2}/bookies/racks-info/{bookies[0]['bookieId']}"
        assert (await world.get(rack)).status == 404
        await world.done("POST", f"{rack}?group=g", {"rack": "/r1", "hostname": "h"})
        assert (await world.get(rack)).json == {"rack": "/r1", "hostname": "h"}
        await world.done("POST", rack, {"rack": "/r2"})
        assert list((await world.get(f"{V2}/bookies/racks-info")).json) == ["default"]
        await world.done("DELETE", rack)
        assert (await world.get(f"{V2}/bookies/racks-info")).json == {}


async def test_racks_are_stored_in_the_bytes_of_pulsar() -> None:
    async with admin_world() as world:
        one = {"rack": "/region-a/rack-1", "hostname": "one"}
        await world.done("POST", f"{V2}/bookies/racks-info/10.0.0.1:3181?group=default", one)
        await world.done("POST", f"{V2}/bookies/racks-info/b-2?group=fast", {"rack": "rack-2"})
        node = await world.context.broker.service.resources.store.get("/bookies")
        assert node is not None
        assert node.value == golden.node("/bookies")


async def test_broker_statistics_have_all_topics_by_namespace_bundle_and_domain() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        found = (await world.get(f"{V2}/broker-stats/topics")).json
        of_bundle = next(iter(found["public/default"].values()))
        assert list(of_bundle["persistent"]) == ["persistent://public/default/t"]
        broker = world.context.broker.service.address.broker_id
        owned = (await world.get(f"{V2}/brokers/standalone/{broker.replace(':', '%3A')}/ownedNamespaces")).json
        assert len(owned) == 4
        assert (await world.get(f"{V2}/broker-stats/load-report")).json["numTopics"] == 1
        assert (await world.get(f"{V2}/broker-stats/metrics")).json[1]["metrics"]["brk_active_connections"] == 0
