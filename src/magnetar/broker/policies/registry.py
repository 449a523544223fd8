"""The registry of policies: each is one row, declared once.

Purpose:   to add a policy, write a row here and use its attribute. Merging, the admin API at both levels, OpenAPI, the
           check of clients' documents and the table of docs/policies.md follow from the row.
Limits:    the fields of topics are those of Apache's TopicPolicies (events.py); a test holds that.
Read next: rows.py (what a row says, and what follows), kinds.py (the types of values), docs/policies.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from magnetar.broker.policies import kinds
from magnetar.broker.policies.rows import (
    Documents,
    FieldForEachPart,
    FieldOfClusters,
    FieldThatIsFalseUnlessSet,
    Place,
    RenamedField,
    known_fields,
    merge,
    policy,
)
from magnetar.broker.policies.values import (
    AutoTopicCreation,
    BacklogQuota,
    BacklogQuotas,
    DelayedDelivery,
    DispatchRate,
    InactiveTopics,
    Json,
    Persistence,
    PublishRate,
    QuotaPolicy,
    Retention,
    SubscribeRate,
    check_quota_and_retention,
    flag,
    names,
    nested,
    optional_number,
    text,
)
from magnetar.config.root import Config
from magnetar.schemas.compatibility import UNDEFINED, CompatibilityStrategy, strategy_of_auto_update

SYSTEM_COMPACTION_BYTES: Final = 2**20
"""A topic of the brokers is compacted at this size, if no level says otherwise."""

_NO_QUOTA: Final = BacklogQuota(-1, -1, QuotaPolicy.HOLD_PRODUCERS)
_RETENTION_FIELD: Final = "retention_policies"
_QUOTAS_FIELD: Final = "backlog_quota_map"


def _retention_fits(document: Json, retention: Json) -> None:
    for quota in (document.get(_QUOTAS_FIELD) or {}).values():
        check_quota_and_retention(BacklogQuota.from_json(quota), Retention.from_json(retention))


def _quotas_fit(document: Json, quotas: Json) -> None:
    if retention := document.get(_RETENTION_FIELD):
        for quota in quotas.values():
            check_quota_and_retention(BacklogQuota.from_json(quota), Retention.from_json(retention))


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePolicies:
    """What counts for one topic. In counts and times, 0 means that there is no limit, or never."""

    message_ttl_s: int = policy(
        kinds.COUNT,
        "the time to live of messages, in seconds",
        topic=Place("messageTTLInSeconds", "messageTTL", is_in_query=True),
        namespace=Place("message_ttl_in_seconds", "messageTTL"),
        settings=("defaults.message_ttl_s",),
        system=0,
    )
    subscription_expiry_minutes: int = policy(
        kinds.COUNT,
        "after how many minutes unused subscriptions are deleted",
        topic=Place("subscriptionExpirationTimeInMinutes", "subscriptionExpirationTime", is_in_query=True),
        namespace=Place("subscription_expiration_time_minutes", "subscriptionExpirationTime"),
        settings=("defaults.subscription_expiry_minutes",),
        system=0,
    )
    deduplication: bool = policy(
        kinds.SWITCH,
        "whether duplicates are dropped",
        topic=Place("deduplicationEnabled", "deduplicationEnabled"),
        namespace=Place("deduplicationEnabled", "deduplication"),
        settings=("broker.deduplication",),
        system=False,
    )
    deduplication_snapshot_s: int = policy(
        kinds.COUNT,
        "the seconds between snapshots of deduplication",
        topic=Place("deduplicationSnapshotIntervalSeconds", "deduplicationSnapshotInterval", shows_applied=False),
        namespace=Place(
            "deduplicationSnapshotIntervalSeconds",
            "deduplicationSnapshotInterval",
            sent_as=kinds.COUNT_OR_NULL,
            can_remove=False,
        ),
        settings=("broker.deduplication_snapshot_s",),
    )
    auto_create_subscriptions: bool = policy(
        kinds.AUTO_SUBSCRIPTION,
        "whether subscriptions are created when clients use them",
        topic=Place("autoSubscriptionCreationOverride", "autoSubscriptionCreation"),
        namespace=Place("autoSubscriptionCreationOverride", "autoSubscriptionCreation"),
        settings=("broker.auto_create_subscriptions",),
    )
    publish_rate: PublishRate | None = policy(
        kinds.PUBLISH_RATE,
        "the limit on publishing to a topic",
        topic=Place("publishRate", "publishRate", "the limit on publishing"),
        namespace=FieldOfClusters("publishMaxMessageRate", "publishRate"),
        settings=("defaults.publish_messages_per_s", "defaults.publish_bytes_per_s"),
        system=None,
    )
    dispatch_rate: DispatchRate | None = policy(
        kinds.DISPATCH_RATE,
        "the limit on delivery of a topic",
        topic=Place("dispatchRate", "dispatchRate", "the limit on delivery"),
        namespace=FieldOfClusters("topicDispatchRate", "dispatchRate", older="clusterDispatchRate"),
        settings=("defaults.dispatch_messages_per_s", "defaults.dispatch_bytes_per_s"),
        system=None,
    )
    subscription_dispatch_rate: DispatchRate | None = policy(
        kinds.DISPATCH_RATE,
        "the limit on delivery of a subscription",
        topic=Place(
            "subscriptionDispatchRate", "subscriptionDispatchRate", "the limit on delivery of each subscription"
        ),
        namespace=FieldOfClusters("subscriptionDispatchRate", "subscriptionDispatchRate"),
        settings=("defaults.subscription_dispatch_messages_per_s", "defaults.subscription_dispatch_bytes_per_s"),
        system=None,
    )
    subscription_dispatch_rates: Mapping[str, DispatchRate] = policy(
        kinds.DISPATCH_RATES_BY_SUBSCRIPTION,
        "the limit on delivery of one subscription",
        topic=Place("subscriptionPolicies", "{subscription}/dispatchRate"),
        default=kinds.NO_RATES,
        system=kinds.NO_RATES,
    )
    """By the name of the subscription; `dispatch_rate_of` says which rate counts."""
    replicator_dispatch_rate: DispatchRate | None = policy(
        kinds.DISPATCH_RATE,
        "the limit on replication to other clusters",
        topic=Place("replicatorDispatchRate", "replicatorDispatchRate"),
        namespace=FieldOfClusters("replicatorDispatchRate", "replicatorDispatchRate"),
        default=None,
    )
    subscribe_rate: SubscribeRate | None = policy(
        kinds.SUBSCRIBE_RATE,
        "how often a consumer may subscribe",
        topic=Place("subscribeRate", "subscribeRate"),
        namespace=FieldOfClusters("clusterSubscribeRate", "subscribeRate"),
        settings=("defaults.subscribes_per_consumer", "defaults.subscribe_period_s"),
        system=None,
    )
    retention: Retention = policy(
        kinds.RETENTION,
        "how long acknowledged messages are kept",
        topic=Place("retentionPolicies", "retention"),
        namespace=Place(_RETENTION_FIELD, "retention", fits=_retention_fits),
        settings=("defaults.retention_minutes", "defaults.retention_mb"),
        system=Retention(-1, -1),
    )
    backlog_quotas: BacklogQuotas = policy(
        kinds.BACKLOG_QUOTAS,
        "the backlog quotas",
        topic=Place("backLogQuotaMap", "backlogQuota", "the topic's backlog quotas"),
        namespace=Place(_QUOTAS_FIELD, "backlogQuota", fits=_quotas_fit),
        settings=("defaults.backlog_quota_bytes", "defaults.backlog_quota_s", "defaults.backlog_quota_policy"),
        system=BacklogQuotas(_NO_QUOTA, _NO_QUOTA),
    )
    persistence: Persistence | None = policy(
        kinds.PERSISTENCE,
        "how ledgers are replicated",
        topic=Place("persistence", "persistence"),
        namespace=Place("persistence", "persistence"),
        default=None,
        instead=("topic.ensemble_size", "topic.write_quorum", "topic.ack_quorum"),
    )
    """None: as the broker's settings of topics and cursors say."""
    delayed: DelayedDelivery = policy(
        kinds.DELAYED_DELIVERY,
        "delayed delivery",
        topic=FieldForEachPart(
            "",
            "delayedDelivery",
            parts={
                "active": ("delayedDeliveryEnabled", flag),
                "tickTime": ("delayedDeliveryTickTimeMillis", optional_number),
                "maxDeliveryDelayInMillis": ("delayedDeliveryMaxDelayInMillis", optional_number),
            },
        ),
        namespace=Place("delayed_delivery_policies", "delayedDelivery"),
        settings=("dispatch.delayed_delivery", "dispatch.delayed_tick_ms", "defaults.delayed_delivery_max_ms"),
    )
    inactive: InactiveTopics = policy(
        kinds.INACTIVE_TOPICS,
        "when unused topics are deleted",
        topic=Place("inactiveTopicPolicies", "inactiveTopicPolicies", "when the topic is deleted for being unused"),
        namespace=Place("inactive_topic_policies", "inactiveTopicPolicies"),
        settings=("broker.inactive_topics_delete", "broker.inactive_topics_delete_mode", "broker.inactive_topics_s"),
        system_from=lambda value: replace(value, is_deleted=False),
    )
    producers_max: int = policy(
        kinds.COUNT,
        "the maximum number of producers of a topic",
        topic=Place("maxProducerPerTopic", "maxProducers", "the maximum number of producers"),
        namespace=Place("max_producers_per_topic", "maxProducersPerTopic"),
        settings=("defaults.producers_per_topic_max",),
        system=0,
    )
    consumers_max: int = policy(
        kinds.COUNT,
        "the maximum number of consumers of a topic",
        topic=Place("maxConsumerPerTopic", "maxConsumers", "the maximum number of consumers"),
        namespace=Place("max_consumers_per_topic", "maxConsumersPerTopic"),
        settings=("defaults.consumers_per_topic_max",),
        system=0,
    )
    consumers_per_subscription_max: int = policy(
        kinds.COUNT,
        "the maximum number of consumers of a subscription",
        topic=Place("maxConsumersPerSubscription", "maxConsumersPerSubscription", shows_applied=False),
        namespace=Place("max_consumers_per_subscription", "maxConsumersPerSubscription"),
        settings=("dispatch.consumers_per_subscription_max",),
        system=0,
    )
    unacked_per_consumer_max: int = policy(
        kinds.COUNT,
        "the maximum number of unacknowledged messages of a consumer",
        topic=Place("maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnConsumer"),
        namespace=Place("max_unacked_messages_per_consumer", "maxUnackedMessagesPerConsumer"),
        settings=("dispatch.unacked_messages_per_consumer_max",),
    )
    unacked_per_subscription_max: int = policy(
        kinds.COUNT,
        "the maximum number of unacknowledged messages of a subscription",
        topic=Place("maxUnackedMessagesOnSubscription", "maxUnackedMessagesOnSubscription"),
        namespace=Place("max_unacked_messages_per_subscription", "maxUnackedMessagesPerSubscription"),
        settings=("dispatch.unacked_messages_per_subscription_max",),
    )
    subscriptions_max: int = policy(
        kinds.COUNT,
        "the maximum number of subscriptions of a topic",
        topic=Place(
            "maxSubscriptionsPerTopic",
            "maxSubscriptionsPerTopic",
            "the maximum number of subscriptions",
            shows_applied=False,
        ),
        namespace=Place("max_subscriptions_per_topic", "maxSubscriptionsPerTopic"),
        settings=("defaults.subscriptions_per_topic_max",),
        system=0,
    )
    message_bytes_max: int | None = policy(
        kinds.OPTIONAL_COUNT,
        "the largest message, in bytes",
        topic=Place("maxMessageSize", "maxMessageSize", shows_applied=False),
        default=None,
        instead=("pulsar.message_bytes_max",),
    )
    """None: as the broker's setting of connections says."""
    compaction_threshold_bytes: int = policy(
        kinds.COUNT,
        "the backlog that starts a compaction, in bytes",
        topic=Place("compactionThreshold", "compactionThreshold"),
        namespace=Place("compaction_threshold", "compactionThreshold", method="PUT"),
        settings=("defaults.compaction_threshold_bytes",),
        system_from=lambda value: value or SYSTEM_COMPACTION_BYTES,
    )
    schema_compatibility: CompatibilityStrategy = policy(
        kinds.STRATEGY,
        "the compatibility that new schemas must have",
        topic=Place("schemaCompatibilityStrategy", "schemaCompatibilityStrategy", method="PUT"),
        namespace=RenamedField(
            "schema_compatibility_strategy",
            "schemaCompatibilityStrategy",
            method="PUT",
            unset=UNDEFINED,
            can_remove=False,
            older="schema_auto_update_compatibility_strategy",
            from_older=strategy_of_auto_update,
        ),
        settings=("schemas.compatibility",),
        system=CompatibilityStrategy.ALWAYS_COMPATIBLE,
    )
    schema_auto_update: bool = policy(
        kinds.SWITCH,
        "whether clients may add schemas",
        namespace=Place("is_allow_auto_update_schema", "isAllowAutoUpdateSchema", unset=True, can_remove=False),
        settings=("schemas.auto_update",),
        system=True,
    )
    schema_validation_enforced: bool = policy(
        kinds.SWITCH,
        "whether producers must have a schema",
        topic=Place("schemaValidationEnforced", "schemaValidationEnforced", unset=False, can_remove=False),
        namespace=FieldThatIsFalseUnlessSet(
            "schema_validation_enforced", "schemaValidationEnforced", unset=False, can_remove=False
        ),
        settings=("schemas.validation_enforced",),
        system=False,
    )
    encryption_required: bool = policy(
        kinds.SWITCH,
        "whether messages must be encrypted",
        namespace=Place("encryption_required", "encryptionRequired", unset=False, can_remove=False),
        default=False,
        system=False,
    )
    subscription_types: tuple[str, ...] = policy(
        kinds.SUBSCRIPTION_TYPE_NAMES,
        "the types of subscriptions that are allowed",
        topic=Place("subscriptionTypesEnabled", "subscriptionTypesEnabled", unset=[]),
        namespace=Place("subscription_types_enabled", "subscriptionTypesEnabled", unset=[]),
        settings=("defaults.subscription_types",),
    )
    replication_clusters: tuple[str, ...] = policy(
        kinds.CLUSTERS,
        "the clusters that the topic is in",
        topic=Place("replicationClusters", "replication"),
        namespace=Place(
            "replication_clusters", "replication", "the clusters that a namespace is in", unset=[], can_remove=False
        ),
        default=(),
    )
    entry_filters: str = policy(
        kinds.ENTRY_FILTERS,
        "the entry filters",
        topic=Place("entryFilters"),
        namespace=Place("entryFilters"),
        default="",
    )
    pause_on_ack_state: bool = policy(
        kinds.SWITCH_WITHOUT_BODY,
        "whether delivery waits for acknowledgements that cannot be stored",
        topic=Place("dispatcherPauseOnAckStatePersistentEnabled", "dispatcherPauseOnAckStatePersistent", unset=False),
        namespace=Place(
            "dispatcherPauseOnAckStatePersistentEnabled", "dispatcherPauseOnAckStatePersistent", unset=False
        ),
        default=False,
    )

    def dispatch_rate_of(self, subscription: str) -> DispatchRate | None:
        return self.subscription_dispatch_rates.get(subscription, self.subscription_dispatch_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePolicies:
    """What counts for a namespace rather than for a topic in it."""

    auto_topic_creation: AutoTopicCreation = policy(
        kinds.AUTO_TOPIC,
        "whether topics are created when clients use them",
        namespace=Place("autoTopicCreationOverride", "autoTopicCreation"),
        settings=("broker.auto_create_topics", "broker.auto_create_topics_type", "broker.auto_create_partitions"),
    )
    topics_max: int = policy(
        kinds.COUNT,
        "the maximum number of topics",
        namespace=Place("max_topics_per_namespace", "maxTopicsPerNamespace"),
        settings=("broker.topics_per_namespace_max",),
    )
    """Each partition counts as a topic."""
    subscription_auth_mode: str = policy(
        kinds.AUTH_MODE,
        "how the names of subscriptions are authorized",
        namespace=Place("subscription_auth_mode", "subscriptionAuthMode", unset="None", can_remove=False),
        default="None",
    )


def merge_policies(documents: Documents, config: Config, *, is_system: bool) -> EffectivePolicies:
    return merge(EffectivePolicies, documents, config, is_system=is_system)


def namespace_policies(document: Json, config: Config) -> NamespacePolicies:
    return merge(NamespacePolicies, Documents(namespace=document), config)


# --- the document of a namespace as clients send it -------------------------------------------------------------------

_ONLY_KEPT: Final[Mapping[str, kinds.Form]] = {
    **dict.fromkeys(
        ("auth_policies", "bundles", "latency_stats_sample_rate", "offload_policies", "properties"), nested
    ),
    **dict.fromkeys(("offload_deletion_lag_ms", "offload_threshold", "offload_threshold_in_seconds"), optional_number),
    **dict.fromkeys(("deleted", "migrated", "replicate_subscription_state"), flag),
    "allowed_clusters": names,
    "resource_group_name": text,
}
"""Fields of Apache's document that are no policy of a row."""

_KNOWN: Final = {**_ONLY_KEPT, **known_fields(EffectivePolicies), **known_fields(NamespacePolicies)}


def known_policies(given: Json, config: Config) -> dict[str, Any]:
    """Returns what is stored of a client's document. MalformedMetadataError if a field has a value of another type.

    A field that no broker has is left out, as Apache's brokers do: a client may be newer than the broker. Null means
    that the policy is not set.
    """
    known = {name: value for name, value in given.items() if name in _KNOWN and value is not None}
    for name in known:
        _KNOWN[name](known, name)
    merge_policies(Documents(namespace=known), config, is_system=False)
    namespace_policies(known, config)
    return known
