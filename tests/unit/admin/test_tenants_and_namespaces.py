"""Tenants, namespaces and clusters."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.config.broker import BrokerConfig
from tests.unit.admin.admin_world import V2, admin_world

pytestmark = pytest.mark.virtual_time


async def test_tenants_are_created_changed_and_deleted() -> None:
    async with admin_world() as world:
        await world.done("PUT", f"{V2}/tenants/acme", {"allowedClusters": ["standalone"], "adminRoles": ["boss"]})
        assert (await world.get(f"{V2}/tenants")).json == ["acme", "public", "pulsar"]
        await world.done("POST", f"{V2}/tenants/acme", {"allowedClusters": ["standalone"]})
        assert (await world.get(f"{V2}/tenants/acme")).json == {"adminRoles": [], "allowedClusters": ["standalone"]}
        await world.done("DELETE", f"{V2}/tenants/acme")
        assert (await world.get(f"{V2}/tenants/acme")).status == 404


REFUSED: list[tuple[Any, ...]] = [
    ("PUT", "tenants/acme", {}, 412),
    ("PUT", "tenants/acme", {"allowedClusters": ["nowhere"]}, 412),
    ("PUT", "tenants/public", {"allowedClusters": ["standalone"]}, 409),
    ("PUT", "tenants/a%20b", {"allowedClusters": ["standalone"]}, 412),
    ("DELETE", "tenants/public", None, 409),
    ("DELETE", "tenants/nobody", None, 404),
    ("GET", "namespaces/nobody", None, 404),
    ("GET", "namespaces/public/nothing", None, 404),
    ("PUT", "namespaces/nobody/n", {}, 404),
    ("PUT", "namespaces/public/default", {}, 409),
    ("PUT", "namespaces/public/n", [1], 400),
    ("PUT", "namespaces/public/n", {"bundles": {"numBundles": -1}}, 412),
    ("DELETE", "namespaces/public/nothing", None, 404),
    ("DELETE", "namespaces/public/default?force=true", None, 405),
    ("DELETE", "tenants/public?force=true", None, 405),
    ("GET", "clusters/nowhere", None, 404),
    ("PUT", "clusters/standalone", {}, 409),
    ("DELETE", "clusters/standalone", None, 412),
    ("POST", "clusters/standalone/peers", ["standalone"], 412),
    ("GET", "brokers/nowhere", None, 404),
    ("GET", "nothing", None, 404),
    ("POST", "clusters", None, 405),
]


async def test_what_cannot_be_done_has_pulsars_status_and_a_reason() -> None:
    async with admin_world() as world:
        for method, path, body, status in REFUSED:
            answer = await world.call(method, f"{V2}/{path}", body)
            assert answer.status == status, (path, answer.body)
            assert answer.reason


async def test_a_namespace_is_made_with_policies_and_deleted_when_it_is_empty() -> None:
    async with admin_world() as world:
        name = f"{V2}/namespaces/public/n"
        await world.done("PUT", name, {"message_ttl_in_seconds": 7, "bundles": {"numBundles": 2}})
        policies = (await world.get(name)).json
        assert policies["message_ttl_in_seconds"] == 7
        assert policies["replication_clusters"] == ["standalone"]
        assert policies["bundles"]["numBundles"] == (await world.get(f"{name}/bundles")).json["numBundles"] == 2
        await world.done("PUT", f"{V2}/persistent/public/n/t")
        assert (await world.get(f"{name}/topics")).json == ["persistent://public/n/t"]
        assert (await world.call("DELETE", name)).status == 409
        await world.done("DELETE", f"{V2}/persistent/public/n/t")
        await world.done("DELETE", name)
        assert (await world.get(f"{V2}/namespaces/public")).json == ["public/default"]


async def test_a_namespace_is_deleted_with_its_topics_where_that_is_allowed() -> None:
    async with admin_world(broker=BrokerConfig(force_delete_namespace=True, force_delete_tenant=True)) as world:
        for namespace in ("public/n", "public/m"):
            await world.done("PUT", f"{V2}/namespaces/{namespace}")
            await world.done("PUT", f"{V2}/persistent/{namespace}/t")
        await world.done("PUT", f"{V2}/persistent/public/n/many/partitions", 2)
        await world.done("DELETE", f"{V2}/namespaces/public/n?force=true")
        assert (await world.get(f"{V2}/persistent/public/n")).status == 404
        await world.done("DELETE", f"{V2}/tenants/public?force=true")
        assert (await world.get(f"{V2}/tenants")).json == ["pulsar"]


async def test_properties_of_a_namespace_come_and_go() -> None:
    async with admin_world() as world:
        name = f"{V2}/namespaces/public/default"
        await world.done("PUT", f"{name}/properties", {"a": "1", "b": "2"})
        await world.done("PUT", f"{name}/property/c/x%2Fy")
        assert (await world.get(f"{name}/property/c")).body == b"x/y"
        await world.done("DELETE", f"{name}/property/a")
        assert (await world.get(f"{name}/properties")).json == {"b": "2", "c": "x/y"}
        await world.done("DELETE", f"{name}/properties")
        assert (await world.get(f"{name}/properties")).json == {}


async def test_a_namespace_is_unloaded_and_its_backlogs_are_cleared() -> None:
    async with admin_world() as world:
        for topic in ("t", "u"):
            await world.done("PUT", f"{V2}/persistent/public/default/{topic}/subscription/s")
            await world.publish(3, topic)
        name = f"{V2}/namespaces/public/default"
        await world.done("PUT", f"{name}/unload")
        assert world.context.broker.service.topics.loaded() == []
        await world.done("POST", f"{name}/clearBacklog/s")
        stats = (await world.get(f"{V2}/persistent/public/default/u/stats")).json
        assert stats["subscriptions"]["s"]["msgBacklog"] == 0
        await world.done("POST", f"{name}/unsubscribe/s")
        assert (await world.get(f"{V2}/persistent/public/default/t/subscriptions")).json == []


async def test_clusters_are_known_changed_and_forgotten() -> None:
    async with admin_world() as world:
        await world.done("PUT", f"{V2}/clusters/far", {"serviceUrl": "http://far:8080"})
        await world.done("POST", f"{V2}/clusters/far", {"brokerServiceUrl": "pulsar://far:6650"})
        await world.done("POST", f"{V2}/clusters/far/peers", ["standalone"])
        found = (await world.get(f"{V2}/clusters/far")).json
        assert (found["serviceUrl"], found["brokerServiceUrl"]) == ("http://far:8080", "pulsar://far:6650")
        assert (await world.get(f"{V2}/clusters/far/peers")).json == ["standalone"]
        await world.done("DELETE", f"{V2}/clusters/far")
        assert (await world.get(f"{V2}/clusters")).json == ["standalone"]


async def test_a_new_namespace_takes_the_policies_that_there_are_and_leaves_out_others() -> None:
    async with admin_world() as world:
        path = f"{V2}/namespaces/public/made"
        sent = {
            "max_producers_per_topic": 3,
            "retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 10, "from a newer client": 1},
            "properties": {"team": "blue"},
            "message_ttl_in_seconds": None,
            "no_such_policy": {"x": 1},
        }
        await world.done("PUT", path, sent)
        found = (await world.get(path)).json
        assert found["max_producers_per_topic"] == 3
        assert found["retention_policies"]["retentionSizeInMB"] == 10
        assert found["properties"] == {"team": "blue"}
        assert not {"no_such_policy", "message_ttl_in_seconds"} & set(found)


@pytest.mark.parametrize(
    "policies",
    [
        {"max_producers_per_topic": "3"},
        {"deduplicationEnabled": "yes"},
        {"retention_policies": []},
        {"retention_policies": {"retentionTimeInMinutes": "5", "retentionSizeInMB": 10}},
        {"subscription_types_enabled": "Shared"},
        {"resource_group_name": 5},
        {"properties": "x"},
        {"topicDispatchRate": {"standalone": 5}},
        {"autoTopicCreationOverride": {"allowAutoTopicCreation": 1}},
    ],
)
async def test_a_policy_of_the_wrong_type_is_refused_and_no_namespace_is_made(policies: dict[str, Any]) -> None:
    async with admin_world() as world:
        answer = await world.call("PUT", f"{V2}/namespaces/public/made", policies)
        assert (answer.status, bool(answer.reason)) == (400, True)
        assert (await world.get(f"{V2}/namespaces/public/made")).status == 404
