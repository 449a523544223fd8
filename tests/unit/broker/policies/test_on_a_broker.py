"""Topic policies through the real `__change_events` of a broker, on a real bookie."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from magnetar.broker.broker import Broker
from magnetar.broker.names import CHANGE_EVENTS, NamespaceName
from magnetar.broker.policies.service import PolicyService
from magnetar.config.pulsar import PulsarConfig
from magnetar.config.topic import TopicConfig
from magnetar.ledger.client import LedgerClient
from magnetar.runtime.metrics import Metrics
from magnetar.testing.bookie_cluster import BookieCluster

NAMESPACE = NamespaceName("public", "default")
TOPIC = NAMESPACE.topic("t")


@asynccontextmanager
async def broker_on(cluster: BookieCluster) -> AsyncIterator[PolicyService]:
    topic = TopicConfig(ensemble_size=1, write_quorum=1, ack_quorum=1)
    config = dataclasses.replace(cluster.config, topic=topic, pulsar=PulsarConfig(port=0))
    async with LedgerClient(cluster.store, config, cluster.runtime) as client:
        broker = await Broker.open(config, cluster.runtime, cluster.store, client, Metrics())
        try:
            yield broker.service.policies
        finally:
            await broker.aclose()


async def test_topic_policies_survive_the_broker_that_wrote_them() -> None:
    async with BookieCluster(1) as cluster:
        async with broker_on(cluster) as policies:
            await policies.update_topic(TOPIC, lambda found: found | {"messageTTLInSeconds": 5})
            await policies.update_topic(TOPIC, lambda found: found | {"maxProducerPerTopic": 3})
            await policies.update_topic(TOPIC, lambda found: found | {"maxConsumerPerTopic": 4}, is_global=True)
        async with broker_on(cluster) as policies:
            await policies.load(TOPIC)
            effective = policies.effective(TOPIC)
            assert (effective.message_ttl_s, effective.producers_max, effective.consumers_max) == (5, 3, 4)
            await policies.delete_topic(TOPIC)
            assert policies.effective(TOPIC).message_ttl_s == 0
        async with broker_on(cluster) as policies:
            await policies.load(TOPIC)
            assert policies.topic_policies(TOPIC) is None
            assert policies.topic_policies(TOPIC, is_global=True) is None
        assert await cluster.store.children(f"/managed-ledgers/{NAMESPACE}/persistent") == [CHANGE_EVENTS]
