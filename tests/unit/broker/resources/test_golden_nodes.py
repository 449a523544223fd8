"""Nodes that Pulsar 4.2.4 wrote (tests/golden/PulsarNodes.java): ours have the same paths and bytes."""

from __future__ import annotations

import json
import re

import pytest

from magnetar.broker.cluster.isolation import IsolationPolicy
from magnetar.broker.resources import paths
from magnetar.broker.resources.bundles import Bundles
from magnetar.broker.resources.namespaces import new_cluster, new_policies
from magnetar.broker.resources.producer_names import ProducerNames
from magnetar.ids import BookieId
from magnetar.metadata.store import MetadataStore
from magnetar.names import NamespaceName, TopicName
from magnetar.quorum.candidates import parse_bookies_node
from magnetar.schemas.storage import schema_path
from tests.unit.broker import golden
from tests.unit.broker.worlds import memory_store, resources_world

NAMESPACE = NamespaceName("public", "default")
TOPICS = list(golden.nodes()["topics"])


async def value_of(store: MetadataStore, path: str) -> bytes:
    node = await store.get(path)
    assert node is not None, path
    return node.value


async def test_resources_are_stored_where_pulsar_stores_them_in_the_same_bytes() -> None:
    async with resources_world() as resources:
        urls = {"service_url": "http://h:8080", "broker_service_url": "pulsar://h:6650"}
        await resources.clusters.update("standalone", lambda _: new_cluster(**urls))
        partitioned = [TopicName.parse(topic) for topic in TOPICS[:2]]
        for topic in partitioned:
            await resources.partitioned_topics.create(topic, 3)
        wanted = [
            paths.cluster("standalone"),
            paths.tenant("public"),
            paths.namespace(NAMESPACE),
            *(paths.partitioned_topic(topic) for topic in partitioned),
        ]
        for path in wanted:
            assert await value_of(resources.store, path) == golden.node(path)


async def test_local_policies_are_the_bytes_of_pulsar_and_their_bundles_are_read() -> None:
    stored = golden.node(paths.local_policies(NAMESPACE))
    assert Bundles.from_json(json.loads(stored)["bundles"]) == Bundles.equal(2)
    async with resources_world() as resources:
        name = NamespaceName("public", "halves")
        await resources.namespaces.create(name, new_policies(["standalone"], Bundles.equal(2)))
        assert await resources.namespaces.bundles(name) == Bundles.equal(2)
        assert await value_of(resources.store, paths.local_policies(name)) == stored


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_has_the_paths_and_the_hash_that_pulsar_gives_it(topic: str) -> None:
    expected = golden.nodes()["topics"][topic]
    name = TopicName.parse(topic)
    assert name.encoded == expected["encoded"]
    assert name.log_name == expected["managed ledger"]
    assert name.log_path in golden.nodes()["nodes"]
    assert schema_path(name.schema_name) == expected["schema"]
    assert name.bundle_hash == expected["hash"]


def test_racks_that_pulsar_wrote_are_read() -> None:
    table = parse_bookies_node(golden.node(paths.BOOKIES))
    assert table.location_of(BookieId("10.0.0.1:3181")) == "/region-a/rack-1"
    assert table.location_of(BookieId("b-2")) == "/rack-2"


def test_an_isolation_policy_that_pulsar_wrote_is_read() -> None:
    document = json.loads(golden.node(f"{paths.cluster('standalone')}/namespaceIsolationPolicies"))
    policy = IsolationPolicy.from_json(document["team-a"])
    assert policy.is_for("public/default")
    assert policy.is_primary("broker-1:8080")
    assert policy.is_secondary("broker-3:8080")
    assert policy.primaries_min == 2


async def test_names_of_producers_are_counted_by_the_same_nodes() -> None:
    (apaches,) = golden.nodes()["ephemeral"]
    async with memory_store() as store:
        names = await ProducerNames.open(store, "standalone")
        assert [names.next(), names.next()] == golden.nodes()["producer names"]
        (made,) = await store.children(paths.PRODUCER_NAMES)
        node = await store.get(f"{paths.PRODUCER_NAMES}/{made}")
        assert node is not None
        assert (node.value, node.owner != 0) == (b"", True)
        # Each store has its own form of the number, and ours is ZooKeeper's.
        assert re.sub(r"\d+$", "", f"{paths.PRODUCER_NAMES}/{made}") == re.sub(r"\d+$", "", apaches)
