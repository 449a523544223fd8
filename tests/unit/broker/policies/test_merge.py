"""Which level counts, policy by policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from magnetar.broker.policies.registry import (
    SYSTEM_COMPACTION_BYTES,
    EffectivePolicies,
    NamespacePolicies,
    merge_policies,
    namespace_policies,
)
from magnetar.broker.policies.rows import Documents
from magnetar.broker.policies.values import (
    BacklogQuota,
    DelayedDelivery,
    DeleteMode,
    DispatchRate,
    InactiveTopics,
    Persistence,
    PublishRate,
    QuotaPolicy,
    Retention,
    SubscribeRate,
)
from magnetar.config.broker import BrokerConfig
from magnetar.config.defaults import SchemasConfig, TopicDefaultsConfig
from magnetar.config.root import Config
from magnetar.errors import MalformedMetadataError
from magnetar.names import NamespaceName
from magnetar.schemas.compatibility import CompatibilityStrategy
from tests.unit.broker import golden

NAMESPACE = NamespaceName("public", "default")


def merged(
    namespace: dict[str, Any] | None = None,
    topic: dict[str, Any] | None = None,
    topic_global: dict[str, Any] | None = None,
    config: Config | None = None,
    *,
    is_system: bool = False,
) -> EffectivePolicies:
    return merge_policies(Documents(topic, topic_global, namespace), config or Config(), is_system=is_system)


def test_topic_that_sets_nothing_gets_what_pulsar_gives_it() -> None:
    found = merged(golden.document("policies default"))
    assert replace(found, replication_clusters=()) == merged()
    assert found.retention == Retention(0, 0)
    assert found.backlog_quotas.storage == BacklogQuota(-1, -1, QuotaPolicy.HOLD_PRODUCERS)
    assert found.inactive == InactiveTopics(True, DeleteMode.NO_SUBSCRIPTIONS, 60)
    assert (found.unacked_per_consumer_max, found.unacked_per_subscription_max) == (50_000, 200_000)
    assert (found.message_ttl_s, found.producers_max, found.compaction_threshold_bytes) == (0, 0, 0)
    assert (found.publish_rate, found.dispatch_rate, found.subscribe_rate, found.persistence) == (None,) * 4
    assert found.schema_compatibility is CompatibilityStrategy.FULL
    assert found.subscription_types == ("Exclusive", "Shared", "Failover", "Key_Shared")
    assert (found.delayed.is_enabled, found.deduplication, found.schema_auto_update) == (True, False, True)


def test_everything_that_apache_wrote_for_a_namespace_counts() -> None:
    found = merged(golden.document("policies full"))
    assert found.backlog_quotas.storage == BacklogQuota(1000, 20, QuotaPolicy.SKIP_OLDEST)
    assert found.backlog_quotas.age.limit_s == -1
    assert found.retention == Retention(10, 20)
    assert found.persistence == Persistence(3, 2, 2, 0.5)
    assert found.dispatch_rate == DispatchRate(5, -1)
    assert found.subscribe_rate == SubscribeRate(3, 4)
    assert found.publish_rate == PublishRate(7, 8)
    assert (found.message_ttl_s, found.deduplication) == (5, True)
    assert found.delayed == DelayedDelivery(True, 100, 9)
    assert found.inactive == InactiveTopics(True, DeleteMode.NO_SUBSCRIPTIONS, 60)
    assert not found.auto_create_subscriptions
    assert found.schema_compatibility is CompatibilityStrategy.FORWARD
    assert (found.subscription_types, found.entry_filters) == (("Shared",), "x")
    assert found.replication_clusters == ("standalone",)


def test_everything_that_apache_wrote_for_a_topic_counts() -> None:
    found = merged(golden.document("policies full"), golden.document("topic policies full"))
    rate = DispatchRate(10, 20, 2, is_relative=True)
    assert found.backlog_quotas.storage == BacklogQuota(1000, 20, QuotaPolicy.REFUSE_PRODUCERS)
    assert found.subscription_types == ("Shared", "Key_Shared")
    assert found.persistence == Persistence(3, 2, 2, 1.5)
    assert found.retention == Retention(60, 1024)
    assert (found.message_ttl_s, found.subscription_expiry_minutes, found.deduplication) == (3600, 7, True)
    assert (found.producers_max, found.consumers_max, found.consumers_per_subscription_max) == (1, 2, 3)
    assert (found.unacked_per_consumer_max, found.unacked_per_subscription_max, found.subscriptions_max) == (4, 5, 77)
    assert found.delayed == DelayedDelivery(False, 6, 8)
    assert found.inactive == InactiveTopics(True, DeleteMode.CAUGHT_UP, 99)
    assert (found.dispatch_rate, found.subscription_dispatch_rate, found.replicator_dispatch_rate) == (rate,) * 3
    assert (found.compaction_threshold_bytes, found.message_bytes_max) == (123456789012, 66)
    assert (found.publish_rate, found.subscribe_rate) == (PublishRate(11, 22), SubscribeRate(33, 44))
    assert found.deduplication_snapshot_s == 55
    assert found.schema_compatibility is CompatibilityStrategy.BACKWARD_TRANSITIVE
    assert (found.entry_filters, found.auto_create_subscriptions, found.pause_on_ack_state) == ("a,b", True, True)
    assert found.schema_validation_enforced
    assert found.dispatch_rate_of("sub") == rate


def test_first_level_that_is_set_counts() -> None:
    config = Config(defaults=TopicDefaultsConfig(message_ttl_s=1))
    namespace, shared, own = {"message_ttl_in_seconds": 2}, {"messageTTLInSeconds": 3}, {"messageTTLInSeconds": 4}
    assert merged(config=config).message_ttl_s == 1
    assert merged(namespace, config=config).message_ttl_s == 2
    assert merged(namespace, topic_global=shared, config=config).message_ttl_s == 3
    assert merged(namespace, own, shared, config).message_ttl_s == 4


def test_policy_that_is_null_or_below_zero_is_not_set_and_zero_is() -> None:
    namespace = {"message_ttl_in_seconds": 2, "max_producers_per_topic": 3}
    assert merged(namespace, {"messageTTLInSeconds": None}).message_ttl_s == 2
    assert merged(namespace, {"messageTTLInSeconds": -1}).message_ttl_s == 2
    assert merged(namespace, {"messageTTLInSeconds": 0}).message_ttl_s == 0
    assert merged({"max_producers_per_topic": -1}).producers_max == 0


def test_rate_that_limits_nothing_is_not_set() -> None:
    none = {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": 0}
    some = {"standalone": {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}}
    assert merged({"publishMaxMessageRate": some}, {"publishRate": none}).publish_rate == PublishRate(5, -1)
    config = Config(defaults=TopicDefaultsConfig(publish_bytes_per_s=9))
    assert merged(topic={"publishRate": none}, config=config).publish_rate == PublishRate(0, 9)


def test_rates_of_other_clusters_do_not_count() -> None:
    rates = {"publishMaxMessageRate": {"elsewhere": {"publishThrottlingRateInMsg": 5}}}
    assert merged(rates).publish_rate is None
    assert merged(rates, config=Config(broker=BrokerConfig(cluster="elsewhere"))).publish_rate == PublishRate(5, -1)


def test_dispatch_rate_in_the_older_field_counts_if_the_newer_is_not_set() -> None:
    older = {"clusterDispatchRate": {"standalone": {"dispatchThrottlingRateInMsg": 1}}}
    newer = {"topicDispatchRate": {"standalone": {"dispatchThrottlingRateInMsg": 2}}}
    assert merged(older).dispatch_rate == DispatchRate(1, -1)
    assert merged(older | newer).dispatch_rate == DispatchRate(2, -1)


def test_subscription_has_its_own_rate_or_the_one_of_all() -> None:
    def of(**rates: int) -> dict[str, Any]:
        return {
            "subscriptionPolicies": {n: {"dispatchRate": {"dispatchThrottlingRateInMsg": r}} for n, r in rates.items()}
        }

    everyone = {"subscriptionDispatchRate": {"dispatchThrottlingRateInMsg": 9}}
    found = merged(None, of(a=1) | everyone, of(a=2, b=3))
    assert [found.dispatch_rate_of(name) for name in "abc"] == [DispatchRate(n, -1) for n in (1, 3, 9)]


def test_quota_of_one_kind_does_not_hide_the_other() -> None:
    by_size = {"destination_storage": {"limit": 10, "policy": "producer_exception"}}
    by_age = {"message_age": {"limitSize": -1, "limitTime": 5, "policy": "consumer_backlog_eviction"}}
    found = merged({"backlog_quota_map": by_size}, {"backLogQuotaMap": by_age})
    assert found.backlog_quotas.storage == BacklogQuota(10, -1, QuotaPolicy.REFUSE_PRODUCERS)
    assert found.backlog_quotas.age == BacklogQuota(-1, 5, QuotaPolicy.SKIP_OLDEST)


def test_topics_of_brokers_keep_everything_and_take_no_limit() -> None:
    found = merged(golden.document("policies full"), golden.document("topic policies full"), is_system=True)
    assert found.retention == Retention(-1, -1)
    assert (found.message_ttl_s, found.producers_max, found.consumers_max, found.subscriptions_max) == (0, 0, 0, 0)
    assert (found.backlog_quotas.storage.limit_bytes, found.backlog_quotas.age.limit_s) == (-1, -1)
    assert (found.publish_rate, found.dispatch_rate, found.dispatch_rate_of("sub")) == (None, None, None)
    assert not found.inactive.is_deleted
    assert not found.deduplication
    assert found.schema_compatibility is CompatibilityStrategy.ALWAYS_COMPATIBLE
    assert merged(is_system=True).compaction_threshold_bytes == SYSTEM_COMPACTION_BYTES


def test_schema_validation_of_the_broker_is_not_switched_off_by_a_namespace_that_never_set_it() -> None:
    config = Config(schemas=SchemasConfig(validation_enforced=True))
    assert merged(golden.document("policies default"), config=config).schema_validation_enforced
    assert not merged(topic={"schemaValidationEnforced": False}, config=config).schema_validation_enforced


@pytest.mark.parametrize(
    "namespace",
    [
        {"message_ttl_in_seconds": "5"},
        {"retention_policies": 5},
        {"retention_policies": {"retentionTimeInMinutes": True}},
        {"deduplicationEnabled": "yes"},
        {"subscription_types_enabled": "Shared"},
        {"backlog_quota_map": {"message_age": {"policy": "pray"}}},
        {"persistence": {"managedLedgerMaxMarkDeleteRate": "x"}},
        {"schema_compatibility_strategy": "SOMETIMES"},
        {"entryFilters": {"entryFilterNames": 5}},
    ],
)
def test_policy_of_a_wrong_type_is_an_error_that_names_it(namespace: dict[str, Any]) -> None:
    with pytest.raises(MalformedMetadataError, match=r"\S"):
        merged(namespace)


# --- what is asked of namespaces --------------------------------------------------------------------------------------


def of_namespace(document: dict[str, Any], broker: BrokerConfig) -> NamespacePolicies:
    return namespace_policies(document, Config(broker=broker))


def test_topics_are_made_as_the_namespace_says_or_else_the_setting() -> None:
    def made(document: dict[str, Any], broker: BrokerConfig) -> tuple[bool, int]:
        found = of_namespace(document, broker).auto_topic_creation
        return found.is_allowed, found.partitions

    plain, partitioned = BrokerConfig(), BrokerConfig(auto_create_topics_type="partitioned", auto_create_partitions=4)
    assert made({}, plain) == (True, 0)
    assert made({}, partitioned) == (True, 4)
    assert made(golden.document("policies full"), plain) == (True, 3)
    forbidden = {"autoTopicCreationOverride": {"allowAutoTopicCreation": False}}
    assert made(forbidden, partitioned) == (False, 0)
    without_count = {"autoTopicCreationOverride": {"allowAutoTopicCreation": True, "topicType": "partitioned"}}
    assert made(without_count, BrokerConfig(auto_create_partitions=6)) == (True, 6)


def test_limit_on_topics_is_the_namespaces_or_else_the_setting() -> None:
    config = BrokerConfig(topics_per_namespace_max=7)
    assert of_namespace({}, config).topics_max == 7
    assert of_namespace({"max_topics_per_namespace": 3}, config).topics_max == 3
    assert of_namespace({"max_topics_per_namespace": 0}, config).topics_max == 0
    assert of_namespace({"max_topics_per_namespace": -1}, config).topics_max == 7


# --- strategies of schemas --------------------------------------------------------------------------------------------


def test_strategy_is_the_newer_fields_or_else_the_older_ones() -> None:
    new, old = "schema_compatibility_strategy", "schema_auto_update_compatibility_strategy"
    default = merged().schema_compatibility
    assert merged({}).schema_compatibility is default
    assert merged({new: "UNDEFINED"}).schema_compatibility is default
    assert merged({new: "FORWARD", old: "Backward"}).schema_compatibility is CompatibilityStrategy.FORWARD
    older = merged({new: "UNDEFINED", old: "BackwardTransitive"})
    assert older.schema_compatibility is CompatibilityStrategy.BACKWARD_TRANSITIVE
    assert merged({old: "AutoUpdateDisabled"}).schema_compatibility is CompatibilityStrategy.ALWAYS_INCOMPATIBLE
    assert merged({old: "Odd"}).schema_compatibility is CompatibilityStrategy.ALWAYS_INCOMPATIBLE
    with pytest.raises(MalformedMetadataError, match="known are"):
        merged({new: "SOMETIMES"})
