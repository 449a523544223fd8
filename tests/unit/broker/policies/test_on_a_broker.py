"""Topic policies through the real `__change_events` of a broker, on a real bookie."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.policies.events import OutgoingEvent
from magnetar.broker.service import BrokerService
from magnetar.broker.topics.change_events import ChangeEvents
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.upkeep.compaction import CompactionStatus
from magnetar.config.pulsar import PulsarConfig
from magnetar.config.topic import TopicConfig
from magnetar.errors import ServiceNotReadyError
from magnetar.ledger.client import LedgerClient
from magnetar.names import CHANGE_EVENTS, NamespaceName
from magnetar.runtime.metrics import Metrics
from magnetar.testing.cluster import BookieCluster

NAMESPACE = NamespaceName("public", "default")
TOPIC = NAMESPACE.topic("t")


@asynccontextmanager
async def broker_on(cluster: BookieCluster) -> AsyncIterator[BrokerService]:
    topic = TopicConfig(ensemble_size=1, write_quorum=1, ack_quorum=1)
    config = dataclasses.replace(cluster.config, topic=topic, pulsar=PulsarConfig(port=0))
    async with LedgerClient(cluster.store, config, cluster.runtime) as client:
        broker = await Broker.open(
            config,
            cluster.runtime,
            cluster.store,
            client,
            Metrics(),
            front_ends=[],
            http_address="127.0.0.1:8080",
        )
        try:
            yield broker.service
        finally:
            await broker.aclose()


async def events_of(service: BrokerService) -> PersistentTopic:
    topic = await service.topic(NAMESPACE.topic(CHANGE_EVENTS), create=False)
    assert isinstance(topic, PersistentTopic)
    return topic


async def compact(topic: PersistentTopic) -> None:
    topic.compaction.begin()
    await topic.compaction.wait()
    assert topic.compaction.status is CompactionStatus.SUCCESS


async def test_topic_policies_survive_the_broker_that_wrote_them() -> None:
    async with BookieCluster(1) as cluster:
        async with broker_on(cluster) as service:
            policies = service.policies
            await policies.update_topic(TOPIC, lambda found: found | {"messageTTLInSeconds": 5})
            await policies.update_topic(TOPIC, lambda found: found | {"maxProducerPerTopic": 3})
            await policies.update_topic(TOPIC, lambda found: found | {"maxConsumerPerTopic": 4}, is_global=True)
        async with broker_on(cluster) as service:
            policies = service.policies
            await policies.load(TOPIC)
            effective = policies.effective(TOPIC)
            assert (effective.message_ttl_s, effective.producers_max, effective.consumers_max) == (5, 3, 4)
            await policies.delete_topic(TOPIC)
            assert policies.effective(TOPIC).message_ttl_s == 0
        async with broker_on(cluster) as service:
            policies = service.policies
            await policies.load(TOPIC)
            assert policies.topic_policies(TOPIC) is None
            assert policies.topic_policies(TOPIC, is_global=True) is None
        assert await cluster.store.children(f"/managed-ledgers/{NAMESPACE}/persistent") == [CHANGE_EVENTS]


async def test_topic_policies_are_known_when_their_events_are_compacted_and_trimmed() -> None:
    """Brokers of Apache leave `__change_events` in this state."""
    async with BookieCluster(1) as cluster:
        async with broker_on(cluster) as service:
            await service.policies.update_topic(TOPIC, lambda found: found | {"messageTTLInSeconds": 5})
            topic = await events_of(service)
            await topic.log.roll()
            await compact(topic)
            consumed = topic.cursors.slowest_mark_delete()
            assert consumed is not None
            assert len(await topic.log.trim(consumed)) == 1
        async with broker_on(cluster) as service:
            await service.policies.update_topic(TOPIC, lambda found: found | {"maxProducerPerTopic": 3})
            effective = service.policies.effective(TOPIC)
            assert (effective.message_ttl_s, effective.producers_max) == (5, 3)


def event(key: str, payload: bytes | None) -> OutgoingEvent:
    return OutgoingEvent(key, payload, b"", ())


async def test_a_reader_whose_next_events_are_compacted_away_begins_again() -> None:
    """What is deleted is not in the compacted view: continuing after it would keep deleted policies."""
    async with BookieCluster(1) as cluster, broker_on(cluster) as service:
        events = ChangeEvents()
        events.attach(service)
        await events.publish(NAMESPACE, event("kept", b"1"))
        await events.publish(NAMESPACE, event("deleted", b"2"))
        reader = await events.open_reader(NAMESPACE)
        assert reader is not None
        assert [each.key for each in await reader.read_available()] == ["kept", "deleted"]
        await compact(await events_of(service))
        assert await reader.read_available() == []  # It was past all that was compacted.
        await events.publish(NAMESPACE, event("deleted", None))
        await compact(await events_of(service))
        with pytest.raises(ServiceNotReadyError, match="compacted"):
            await reader.read_available()
        await reader.aclose()
        again = await events.open_reader(NAMESPACE)
        assert again is not None
        assert [each.key for each in await again.read_available()] == ["kept"]
        await again.aclose()
