"""Merging: from the documents of a topic and its namespace, and the settings, to what counts for the topic.

System:    topics that brokers use for themselves take no limit, never expire, are never deleted for being unused, and
           keep everything: what `__change_events` forgets, nobody knows any more.
Read next: layers.py (which level counts), effective.py (the outcome), docs/policies.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from magnetar.broker.policies.effective import NO_RATES, EffectivePolicies
from magnetar.broker.policies.fields import Json, flag, nested, optional_number, text
from magnetar.broker.policies.layers import Layers
from magnetar.broker.policies.values import (
    BacklogQuota,
    DeleteMode,
    DispatchRate,
    InactiveTopics,
    Persistence,
    PublishRate,
    QuotaPolicy,
    Retention,
    SubscribeRate,
)
from magnetar.broker.schemas.strategy import CompatibilityStrategy, namespace_strategy
from magnetar.config.root import Config

SYSTEM_COMPACTION_BYTES = 2**20
"""A system topic is compacted at this, if nobody says otherwise."""

_NO_QUOTA = BacklogQuota(-1, -1, QuotaPolicy.HOLD_PRODUCERS)


@dataclass(frozen=True, slots=True)
class Documents:
    """What is merged; None where there is none."""

    topic: Json | None = None
    topic_global: Json | None = None
    namespace: Json | None = None


def merge_policies(documents: Documents, config: Config, *, is_system: bool) -> EffectivePolicies:
    layers = Layers(documents.topic, documents.topic_global, documents.namespace, config.broker.cluster)
    policies = _merged(layers, config)
    return _for_brokers_themselves(policies) if is_system else policies


def _merged(layers: Layers, config: Config) -> EffectivePolicies:
    broker, defaults, dispatch, schemas = config.broker, config.defaults, config.dispatch, config.schemas
    count, on = layers.count, layers.flag
    return EffectivePolicies(
        retention=layers.value("retentionPolicies", "retention_policies", Retention.from_json)
        or Retention(defaults.retention_minutes, defaults.retention_mb),
        message_ttl_s=count("messageTTLInSeconds", "message_ttl_in_seconds", defaults.message_ttl_s),
        storage_quota=_quota(layers, "destination_storage", config),
        age_quota=_quota(layers, "message_age", config),
        subscription_expiry_minutes=count(
            "subscriptionExpirationTimeInMinutes",
            "subscription_expiration_time_minutes",
            defaults.subscription_expiry_minutes,
        ),
        compaction_threshold_bytes=count(
            "compactionThreshold", "compaction_threshold", defaults.compaction_threshold_bytes
        ),
        deduplication=on("deduplicationEnabled", "deduplicationEnabled", broker.deduplication),
        deduplication_snapshot_s=count(
            "deduplicationSnapshotIntervalSeconds",
            "deduplicationSnapshotIntervalSeconds",
            broker.deduplication_snapshot_s,
        ),
        producers_max=count("maxProducerPerTopic", "max_producers_per_topic", defaults.producers_per_topic_max),
        consumers_max=count("maxConsumerPerTopic", "max_consumers_per_topic", defaults.consumers_per_topic_max),
        consumers_per_subscription_max=count(
            "maxConsumersPerSubscription", "max_consumers_per_subscription", dispatch.consumers_per_subscription_max
        ),
        subscriptions_max=count(
            "maxSubscriptionsPerTopic", "max_subscriptions_per_topic", defaults.subscriptions_per_topic_max
        ),
        unacked_per_consumer_max=count(
            "maxUnackedMessagesOnConsumer",
            "max_unacked_messages_per_consumer",
            dispatch.unacked_messages_per_consumer_max,
        ),
        unacked_per_subscription_max=count(
            "maxUnackedMessagesOnSubscription",
            "max_unacked_messages_per_subscription",
            dispatch.unacked_messages_per_subscription_max,
        ),
        subscription_types=layers.names(
            "subscriptionTypesEnabled", "subscription_types_enabled", defaults.allowed_subscription_types
        ),
        publish_rate=_publish_rate(layers, config),
        dispatch_rate=_dispatch_rate(layers, config),
        subscription_dispatch_rate=_subscription_dispatch_rate(layers, config),
        subscription_dispatch_rates=_rates_of_subscriptions(layers),
        replicator_dispatch_rate=layers.rate(
            "replicatorDispatchRate", ("replicatorDispatchRate",), DispatchRate.from_json
        ),
        subscribe_rate=_subscribe_rate(layers, config),
        delayed_delivery=_delayed_delivery(layers, dispatch.delayed_delivery),
        delayed_tick_ms=_of_delayed(layers, "delayedDeliveryTickTimeMillis", "tickTime", dispatch.delayed_tick_ms),
        delayed_max_ms=_of_delayed(
            layers, "delayedDeliveryMaxDelayInMillis", "maxDeliveryDelayInMillis", defaults.delayed_delivery_max_ms
        ),
        inactive=layers.value("inactiveTopicPolicies", "inactive_topic_policies", InactiveTopics.from_json)
        or InactiveTopics(
            broker.inactive_topics_delete, DeleteMode(broker.inactive_topics_delete_mode), broker.inactive_topics_s
        ),
        persistence=layers.value("persistence", "persistence", Persistence.from_json),
        message_bytes_max=layers.topic_count("maxMessageSize"),
        schema_compatibility=_schema_compatibility(layers, CompatibilityStrategy(schemas.compatibility)),
        schema_auto_update=_or(flag(layers.namespace, "is_allow_auto_update_schema"), schemas.auto_update),
        schema_validation_enforced=_schema_validation(layers, schemas.validation_enforced),
        auto_create_subscriptions=_auto_create_subscriptions(layers, broker.auto_create_subscriptions),
        encryption_required=flag(layers.namespace, "encryption_required") or False,
        replication_clusters=layers.names("replicationClusters", "replication_clusters", ()),
        entry_filters=layers.value("entryFilters", "entryFilters", lambda found: text(found, "entryFilterNames")) or "",
        pause_on_ack_state=on(
            "dispatcherPauseOnAckStatePersistentEnabled", "dispatcherPauseOnAckStatePersistentEnabled", False
        ),
    )


def _for_brokers_themselves(policies: EffectivePolicies) -> EffectivePolicies:
    return replace(
        policies,
        retention=Retention(-1, -1),
        message_ttl_s=0,
        storage_quota=_NO_QUOTA,
        age_quota=_NO_QUOTA,
        subscription_expiry_minutes=0,
        compaction_threshold_bytes=policies.compaction_threshold_bytes or SYSTEM_COMPACTION_BYTES,
        deduplication=False,
        producers_max=0,
        consumers_max=0,
        consumers_per_subscription_max=0,
        subscriptions_max=0,
        publish_rate=None,
        dispatch_rate=None,
        subscription_dispatch_rate=None,
        subscription_dispatch_rates=NO_RATES,
        subscribe_rate=None,
        inactive=replace(policies.inactive, is_deleted=False),
        schema_compatibility=CompatibilityStrategy.ALWAYS_COMPATIBLE,
        schema_auto_update=True,
        schema_validation_enforced=False,
        encryption_required=False,
    )


# --- single policies that need more than a look at each level ---------------------------------------------------------


def _or(found: bool | None, default: bool) -> bool:
    return default if found is None else found


def _quota(layers: Layers, kind: str, config: Config) -> BacklogQuota:
    defaults = config.defaults
    return layers.entry("backLogQuotaMap", "backlog_quota_map", kind, BacklogQuota.from_json) or BacklogQuota(
        defaults.backlog_quota_bytes, defaults.backlog_quota_s, QuotaPolicy(defaults.backlog_quota_policy)
    )


def _publish_rate(layers: Layers, config: Config) -> PublishRate | None:
    rate = PublishRate(config.defaults.publish_messages_per_s, config.defaults.publish_bytes_per_s)
    default = rate if rate.is_limiting else None
    return layers.rate("publishRate", ("publishMaxMessageRate",), PublishRate.from_json) or default


def _dispatch_rate(layers: Layers, config: Config) -> DispatchRate | None:
    rate = DispatchRate(config.defaults.dispatch_messages_per_s, config.defaults.dispatch_bytes_per_s)
    default = rate if rate.is_limiting else None
    return layers.rate("dispatchRate", ("topicDispatchRate", "clusterDispatchRate"), DispatchRate.from_json) or default


def _subscription_dispatch_rate(layers: Layers, config: Config) -> DispatchRate | None:
    defaults = config.defaults
    rate = DispatchRate(defaults.subscription_dispatch_messages_per_s, defaults.subscription_dispatch_bytes_per_s)
    default = rate if rate.is_limiting else None
    return layers.rate("subscriptionDispatchRate", ("subscriptionDispatchRate",), DispatchRate.from_json) or default


def _rates_of_subscriptions(layers: Layers) -> Mapping[str, DispatchRate]:
    rates: dict[str, DispatchRate] = {}
    for document in reversed(layers.topics):  # The topic's own last: they count before its global ones.
        subscriptions = nested(document, "subscriptionPolicies") or {}
        for name in subscriptions:
            of_subscription = nested(subscriptions, name) or {}
            rate = nested(of_subscription, "dispatchRate")
            if rate is not None and (found := DispatchRate.from_json(rate)) is not None:
                rates[name] = found
    return rates or NO_RATES


def _subscribe_rate(layers: Layers, config: Config) -> SubscribeRate | None:
    rate = SubscribeRate(config.defaults.subscribes_per_consumer, config.defaults.subscribe_period_s)
    default = rate if rate.is_limiting else None
    return layers.rate("subscribeRate", ("clusterSubscribeRate",), SubscribeRate.from_json) or default


def _delayed_delivery(layers: Layers, default: bool) -> bool:
    candidates = [flag(document, "delayedDeliveryEnabled") for document in layers.topics]
    candidates.append(flag(nested(layers.namespace, "delayed_delivery_policies") or {}, "active"))
    return next((found for found in candidates if found is not None), default)


def _of_delayed(layers: Layers, topic_field: str, namespace_field: str, default: int) -> int:
    found = layers.topic_count(topic_field)
    if found is None:
        found = optional_number(nested(layers.namespace, "delayed_delivery_policies") or {}, namespace_field)
    return default if found is None else found


def _schema_compatibility(layers: Layers, default: CompatibilityStrategy) -> CompatibilityStrategy:
    name = layers.text("schemaCompatibilityStrategy")
    of_topic = None if name in (None, "UNDEFINED") else CompatibilityStrategy.parse(str(name))
    return of_topic or namespace_strategy(layers.namespace) or default


def _schema_validation(layers: Layers, default: bool) -> bool:
    """A namespace's "false" is what every namespace has: it does not switch off what the broker's setting says."""
    found = next(
        (value for each in layers.topics if (value := flag(each, "schemaValidationEnforced")) is not None), None
    )
    of_namespace = flag(layers.namespace, "schema_validation_enforced") or False
    return found if found is not None else of_namespace or default


def _auto_create_subscriptions(layers: Layers, default: bool) -> bool:
    return _or(
        layers.value(
            "autoSubscriptionCreationOverride",
            "autoSubscriptionCreationOverride",
            lambda found: flag(found, "allowAutoSubscriptionCreation"),
        ),
        default,
    )
