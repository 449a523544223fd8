"""Resources in Apache's paths, with Apache's JSON."""

from __future__ import annotations

import asyncio
import json

import pytest

from magnetar.broker.resources.bundles import Bundles
from magnetar.broker.resources.namespaces import new_cluster, new_policies, new_tenant
from magnetar.broker.resources.producer_names import ProducerNames
from magnetar.broker.resources.resources import Resources
from magnetar.config.broker import BrokerConfig
from magnetar.errors import (
    InvalidNameError,
    InvalidPolicyError,
    ResourceExistsError,
    ResourceInUseError,
    ResourceLimitError,
    ResourceMissingError,
)
from magnetar.metadata.store import MetadataStore
from magnetar.names import DEFAULT_NAMESPACE, Domain, NamespaceName, TopicName
from tests.unit.broker import golden
from tests.unit.broker.worlds import memory_store, resources_world

NAMESPACE = NamespaceName("public", "default")
TOPIC = TopicName.parse("public/default/a topic")


async def value_of(store: MetadataStore, path: str) -> bytes:
    node = await store.get(path)
    assert node is not None, path
    return node.value


# --- what Apache writes -----------------------------------------------------------------------------------------------


def test_new_documents_are_those_that_apache_writes() -> None:
    assert new_policies(["standalone"], Bundles.equal(4)) == golden.document("policies default")
    assert list(new_policies(["standalone"], Bundles.equal(4))) == list(golden.document("policies default"))
    assert new_tenant(["standalone"]) == golden.document("tenant")
    urls = {"service_url": "http://h:8080", "broker_service_url": "pulsar://h:6650"}
    assert new_cluster(**urls) == golden.document("cluster")
    assert Bundles.equal(3).to_json() == golden.document("policies full")["bundles"]


async def test_nodes_are_byte_for_byte_those_of_apache() -> None:
    async with resources_world() as resources:
        await resources.partitioned_topics.create(TOPIC, 3)
        await resources.partitioned_topics.create(TopicName.parse("b"), 3, {"a": "b"})
        stored = {
            "tenant": "/admin/policies/public",
            "policies default": "/admin/policies/public/default",
            "partitioned": "/admin/partitioned-topics/public/default/persistent/a+topic",
            "partitioned properties": "/admin/partitioned-topics/public/default/persistent/b",
        }
        for name, path in stored.items():
            assert (await value_of(resources.store, path)).decode() == golden.text(name)


async def test_every_field_of_apaches_policies_survives_a_change() -> None:
    async with resources_world() as resources:
        path = "/admin/policies/public/default"
        await resources.store.put(path, golden.text("policies full").encode())
        await resources.namespaces.update(NAMESPACE, lambda policies: policies | {"max_producers_per_topic": 3})
        expected = golden.document("policies full") | {"max_producers_per_topic": 3}
        assert json.loads(await value_of(resources.store, path)) == expected


# --- bootstrap --------------------------------------------------------------------------------------------------------


async def test_new_store_has_what_a_broker_needs_after_bootstrap() -> None:
    async with resources_world(BrokerConfig(cluster="c1")) as resources:
        assert await resources.clusters.names() == ["c1"]
        assert await resources.tenants.names() == ["public", "pulsar"]
        assert await resources.namespaces.names("pulsar") == [NamespaceName("pulsar", "system")]
        assert (await resources.namespaces.policies(DEFAULT_NAMESPACE))["replication_clusters"] == ["c1"]
        assert await value_of(resources.store, "/bookies") == b"{}"


async def test_second_bootstrap_changes_nothing_and_adds_its_cluster_where_it_is_not_listed() -> None:
    async with memory_store() as store:
        first = Resources(store, BrokerConfig(cluster="c1"))
        await first.bootstrap()
        await first.namespaces.update(DEFAULT_NAMESPACE, lambda policies: policies | {"x": 1})
        await first.bootstrap()
        node = await store.get("/admin/policies/public/default")
        assert node is not None
        assert node.version == 1
        second = Resources(store, BrokerConfig(cluster="c2"))
        await second.bootstrap()
        assert (await second.tenants.get("public"))["allowedClusters"] == ["c1", "c2"]
        policies = await second.namespaces.policies(DEFAULT_NAMESPACE)
        assert (policies["replication_clusters"], policies["x"]) == (["c1", "c2"], 1)
        await first.aclose()
        await second.aclose()


async def test_brokers_that_bootstrap_at_once_agree() -> None:
    async with memory_store() as store:
        brokers = [Resources(store, BrokerConfig(cluster=f"c{number}")) for number in range(4)]
        await asyncio.gather(*(broker.bootstrap() for broker in brokers))
        clusters = ["c0", "c1", "c2", "c3"]
        assert await brokers[0].clusters.names() == clusters
        assert (await brokers[0].tenants.get("pulsar"))["allowedClusters"] == clusters
        for broker in brokers:
            await broker.aclose()


async def test_bootstrap_of_a_new_store_is_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_store() as store:
        resources = Resources(store, BrokerConfig())
        monkeypatch.setattr(store, "create", None)
        monkeypatch.setattr(store, "put", None)
        await resources.bootstrap()
        assert await resources.clusters.names() == ["standalone"]
        await resources.aclose()


# --- two stores -------------------------------------------------------------------------------------------------------


async def test_configuration_that_clusters_share_is_kept_apart_from_what_is_local_to_each() -> None:
    async with memory_store() as shared, memory_store() as one, memory_store() as two:
        clusters = [Resources(local, BrokerConfig(cluster=name), shared) for name, local in (("c1", one), ("c2", two))]
        for resources in clusters:
            await resources.bootstrap()
            await resources.namespaces.local_policies(NAMESPACE)
        await clusters[0].partitioned_topics.create(TOPIC, 2)
        await clusters[0].namespaces.update(NAMESPACE, lambda policies: policies | {"x": 1})
        assert await clusters[1].clusters.names() == ["c1", "c2"]
        assert (await clusters[1].namespaces.policies(NAMESPACE))["x"] == 1
        found = await clusters[1].partitioned_topics.get_fresh(TOPIC)
        assert found is not None
        assert found.partitions == 2
        assert await shared.children("/") == ["admin"]
        assert sorted(await shared.children("/admin")) == ["clusters", "partitioned-topics", "policies"]
        for local in (one, two):
            assert await local.children("/admin") == ["local-policies"]
            assert await value_of(local, "/bookies") == b"{}"
        for resources in clusters:
            await resources.aclose()


async def test_a_deleted_namespace_leaves_nothing_in_either_of_two_stores() -> None:
    async with memory_store() as shared, memory_store() as local:
        resources = Resources(local, BrokerConfig(), shared)
        await resources.bootstrap()
        await resources.tenants.create("t", new_tenant(["standalone"]))
        name = NamespaceName("t", "n")
        await resources.namespaces.create(name, new_policies(["standalone"], Bundles.equal(1)))
        await resources.namespaces.local_policies(name)
        await resources.partitioned_topics.create(name.topic("p"), 2)
        await resources.topics.create_if_absent(name.topic("p-partition-0"))
        await resources.namespaces.delete(name)
        await resources.tenants.delete("t")
        paths = ("/admin/policies/t", "/admin/local-policies/t", "/admin/partitioned-topics/t", "/managed-ledgers/t")
        assert [path for store in (shared, local) for path in paths if await store.get(path) is not None] == []
        await resources.aclose()


# --- tenants and clusters ---------------------------------------------------------------------------------------------


async def test_tenant_with_namespaces_is_not_deleted() -> None:
    async with resources_world() as resources:
        await resources.tenants.create("t", new_tenant(["standalone"], ["b", "a"]))
        assert (await resources.tenants.get("t"))["adminRoles"] == ["a", "b"]
        await resources.namespaces.create(NamespaceName("t", "n"), new_policies(["standalone"], Bundles.equal(1)))
        with pytest.raises(ResourceInUseError, match="'n'"):
            await resources.tenants.delete("t")
        await resources.namespaces.delete(NamespaceName("t", "n"))
        await resources.tenants.delete("t")
        with pytest.raises(ResourceMissingError):
            await resources.tenants.get("t")


async def test_names_that_are_taken_missing_or_none_are_told_apart() -> None:
    async with resources_world() as resources:
        with pytest.raises(ResourceExistsError):
            await resources.tenants.create("public", new_tenant([]))
        with pytest.raises(ResourceExistsError):
            await resources.clusters.create("standalone", new_cluster())
        with pytest.raises(ResourceExistsError):
            await resources.namespaces.create(NAMESPACE, {})
        with pytest.raises(ResourceMissingError):
            await resources.tenants.update("x", lambda found: found)
        with pytest.raises(ResourceMissingError):
            await resources.clusters.get("x")
        with pytest.raises(ResourceMissingError, match="tenant 'x'"):
            await resources.namespaces.create(NamespaceName("x", "y"), {})
        with pytest.raises(ResourceMissingError):
            await resources.namespaces.policies(NamespaceName("public", "y"))
        with pytest.raises(InvalidNameError):
            await resources.tenants.create("a/b", new_tenant([]))


async def test_limits_on_tenants_and_namespaces_are_kept() -> None:
    async with resources_world(BrokerConfig(tenants_max=2, namespaces_per_tenant_max=1)) as resources:
        with pytest.raises(ResourceLimitError, match="tenants_max"):
            await resources.tenants.create("t", new_tenant([]))
        with pytest.raises(ResourceLimitError, match="namespaces_per_tenant_max"):
            await resources.namespaces.create(NamespaceName("public", "more"), {})


# --- namespaces -------------------------------------------------------------------------------------------------------


async def test_deleted_namespace_leaves_no_node() -> None:
    async with resources_world() as resources:
        name = NamespaceName("public", "gone")
        await resources.namespaces.create(name, new_policies(["standalone"], Bundles.equal(2)))
        await resources.namespaces.bundles(name)
        await resources.topics.create_if_absent(name.topic("t"))
        await resources.partitioned_topics.create(name.topic("p"), 2)
        await resources.namespaces.mark_deleted(name)
        assert (await resources.namespaces.policies(name))["deleted"] is True
        await resources.namespaces.delete(name)
        for root in ("/admin/policies", "/admin/local-policies", "/managed-ledgers", "/admin/partitioned-topics"):
            assert await resources.store.get(f"{root}/{name}") is None
        assert not await resources.namespaces.exists(name)


async def test_bundles_come_from_the_policies_until_local_policies_have_their_own() -> None:
    async with resources_world() as resources:
        before = await resources.namespaces.bundles(NAMESPACE)
        assert before == Bundles.equal(4)
        stored = json.loads(await value_of(resources.store, "/admin/local-policies/public/default"))
        assert stored == golden.document("local policies") | {"bundles": Bundles.equal(4).to_json()}
        after = before.split(before.all()[0], 0x20000000)
        await resources.namespaces.update_local(NAMESPACE, lambda local: local | {"bundles": after.to_json()})
        assert await resources.namespaces.bundles(NAMESPACE) == after
        assert Bundles.from_json((await resources.namespaces.policies(NAMESPACE))["bundles"]) == before


async def test_local_policies_of_apache_keep_their_other_fields() -> None:
    async with resources_world() as resources:
        path = "/admin/local-policies/public/default"
        await resources.store.create(path, golden.text("local policies full").encode(), make_parents=True)
        before = await resources.namespaces.bundles(NAMESPACE)
        after = before.split(before.all()[1], 0xC0000000)
        await resources.namespaces.update_local(NAMESPACE, lambda local: local | {"bundles": after.to_json()})
        expected = golden.document("local policies full") | {"bundles": after.to_json()}
        assert json.loads(await value_of(resources.store, path)) == expected


# --- partitioned topics and topics ------------------------------------------------------------------------------------


async def test_partitions_only_grow() -> None:
    async with resources_world() as resources:
        topics = resources.partitioned_topics
        await topics.create(TOPIC, 2, {"k": "v"})
        await topics.grow(TOPIC, 4)
        await topics.grow(TOPIC, 4)
        with pytest.raises(InvalidPolicyError, match="has 4"):
            await topics.grow(TOPIC, 3)
        found = await topics.get_fresh(TOPIC)
        assert found is not None
        assert (found.partitions, found.properties, found.is_being_deleted) == (4, {"k": "v"}, False)


async def test_partitioned_topics_are_listed_marked_and_deleted() -> None:
    async with resources_world() as resources:
        topics = resources.partitioned_topics
        await topics.create(TOPIC, 2)
        await topics.create(TopicName.parse("non-persistent://public/default/n"), 1)
        assert await topics.names(NAMESPACE) == [TOPIC]
        assert [name.local for name in await topics.names(NAMESPACE, Domain.NON_PERSISTENT)] == ["n"]
        await topics.mark_deleted(TOPIC)
        found = await topics.get(TOPIC)
        assert found is not None
        assert found.is_being_deleted
        await topics.delete(TOPIC)
        assert await topics.get(TOPIC) is None
        with pytest.raises(ResourceMissingError):
            await topics.delete(TOPIC)
        with pytest.raises(ResourceMissingError):
            await topics.grow(TOPIC, 3)


async def test_partition_limits_and_nonsense_are_refused() -> None:
    async with resources_world(BrokerConfig(partitions_max=3)) as resources:
        topics = resources.partitioned_topics
        with pytest.raises(ResourceLimitError, match="partitions_max"):
            await topics.create(TOPIC, 4)
        with pytest.raises(InvalidPolicyError, match="at least one"):
            await topics.create(TOPIC, 0)
        with pytest.raises(InvalidPolicyError, match="partition itself"):
            await topics.create(TOPIC.with_partition(0), 2)
        await topics.create(TOPIC, 3)
        with pytest.raises(ResourceExistsError):
            await topics.create(TOPIC, 3)


async def test_topics_of_a_namespace_are_listed_decoded() -> None:
    async with resources_world() as resources:
        assert await resources.topics.names(NAMESPACE) == []
        assert await resources.topics.create_if_absent(TOPIC)
        assert not await resources.topics.create_if_absent(TOPIC)
        assert await resources.topics.names(NAMESPACE) == [TOPIC]
        assert await resources.topics.exists(TOPIC)
        assert not await resources.topics.exists(TOPIC.with_partition(0))


# --- names of producers -----------------------------------------------------------------------------------------------


async def test_producer_names_are_given_once_by_all_brokers_of_a_store() -> None:
    async with memory_store() as store:
        brokers = [await ProducerNames.open(store, "c") for _ in range(3)]
        given = [broker.next() for broker in brokers for _ in range(3)]
        assert len(set(given)) == 9
        assert given[:3] == ["c-0-0", "c-0-1", "c-0-2"]
        assert [name.split("-")[1] for name in given[::3]] == ["0", "1", "2"]
