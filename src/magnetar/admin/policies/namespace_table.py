"""The policies of namespaces: path, field of the stored document, what may be set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from magnetar.admin.policies import kinds
from magnetar.admin.policies.kinds import Parse


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePolicy:
    path: str
    what: str
    field: str
    parse: Parse
    body: str
    method: str = "POST"
    """Of setting it."""
    unset: Any = None
    """What is answered while it is not set."""
    can_remove: bool = True
    by_cluster: bool = False
    """The field is an object, with a value for each cluster."""
    also: str = ""
    """An older field that Pulsar sets, too."""


def _count(path: str, what: str, field: str, method: str = "POST") -> NamespacePolicy:
    return NamespacePolicy(path=path, what=what, field=field, parse=kinds.count, body="a count", method=method)


def _switch(path: str, what: str, field: str, *, unset: Any = None, can_remove: bool = False) -> NamespacePolicy:
    return NamespacePolicy(
        path=path, what=what, field=field, parse=kinds.switch, body="true or false", unset=unset, can_remove=can_remove
    )


def _rate(path: str, what: str, field: str, parse: Parse, body: str, also: str = "") -> NamespacePolicy:
    return NamespacePolicy(path=path, what=what, field=field, parse=parse, body=body, by_cluster=True, also=also)


NAMESPACE_POLICIES = [
    _count("messageTTL", "the time to live of messages, in seconds", "message_ttl_in_seconds"),
    _count(
        "subscriptionExpirationTime",
        "after how many minutes unused subscriptions are deleted",
        "subscription_expiration_time_minutes",
    ),
    _switch("deduplication", "whether duplicates are dropped", "deduplicationEnabled", can_remove=True),
    NamespacePolicy(
        path="deduplicationSnapshotInterval",
        what="the seconds between snapshots of deduplication",
        field="deduplicationSnapshotIntervalSeconds",
        parse=kinds.optional_count,
        body="a count, or null",
        can_remove=False,
    ),
    NamespacePolicy(
        path="autoTopicCreation",
        what="whether topics are made by using them",
        field="autoTopicCreationOverride",
        parse=kinds.auto_topic,
        body="AutoTopicCreationOverride",
    ),
    NamespacePolicy(
        path="autoSubscriptionCreation",
        what="whether subscriptions are made by using them",
        field="autoSubscriptionCreationOverride",
        parse=kinds.auto_subscription,
        body="AutoSubscriptionCreationOverride",
    ),
    _rate(
        "publishRate", "the limit on publishing to a topic", "publishMaxMessageRate", kinds.publish_rate, "PublishRate"
    ),
    _rate(
        "dispatchRate",
        "the limit on delivery of a topic",
        "topicDispatchRate",
        kinds.dispatch_rate,
        "DispatchRate",
        also="clusterDispatchRate",
    ),
    _rate(
        "subscriptionDispatchRate",
        "the limit on delivery of a subscription",
        "subscriptionDispatchRate",
        kinds.dispatch_rate,
        "DispatchRate",
    ),
    _rate(
        "replicatorDispatchRate",
        "the limit on replication to other clusters",
        "replicatorDispatchRate",
        kinds.dispatch_rate,
        "DispatchRate",
    ),
    _rate(
        "subscribeRate",
        "how often a consumer may subscribe",
        "clusterSubscribeRate",
        kinds.subscribe_rate,
        "SubscribeRate",
    ),
    NamespacePolicy(
        path="retention",
        what="how long acknowledged messages are kept",
        field="retention_policies",
        parse=kinds.retention,
        body="RetentionPolicies",
    ),
    NamespacePolicy(
        path="persistence",
        what="how ledgers are replicated",
        field="persistence",
        parse=kinds.persistence,
        body="PersistencePolicies",
    ),
    NamespacePolicy(
        path="delayedDelivery",
        what="delayed delivery",
        field="delayed_delivery_policies",
        parse=kinds.delayed_delivery,
        body="DelayedDeliveryPolicies",
    ),
    NamespacePolicy(
        path="inactiveTopicPolicies",
        what="when unused topics are deleted",
        field="inactive_topic_policies",
        parse=kinds.inactive_topics,
        body="InactiveTopicPolicies",
    ),
    _count("maxProducersPerTopic", "the most producers of a topic", "max_producers_per_topic"),
    _count("maxConsumersPerTopic", "the most consumers of a topic", "max_consumers_per_topic"),
    _count("maxConsumersPerSubscription", "the most consumers of a subscription", "max_consumers_per_subscription"),
    _count(
        "maxUnackedMessagesPerConsumer",
        "the most unacknowledged messages of a consumer",
        "max_unacked_messages_per_consumer",
    ),
    _count(
        "maxUnackedMessagesPerSubscription",
        "the most unacknowledged messages of a subscription",
        "max_unacked_messages_per_subscription",
    ),
    _count("maxSubscriptionsPerTopic", "the most subscriptions of a topic", "max_subscriptions_per_topic"),
    _count("maxTopicsPerNamespace", "the most topics", "max_topics_per_namespace"),
    _count("compactionThreshold", "the backlog that starts a compaction, in bytes", "compaction_threshold", "PUT"),
    NamespacePolicy(
        path="schemaCompatibilityStrategy",
        what="what new schemas must fit",
        field="schema_compatibility_strategy",
        parse=kinds.strategy,
        body="a strategy's name",
        method="PUT",
        unset="UNDEFINED",
        can_remove=False,
    ),
    _switch("isAllowAutoUpdateSchema", "whether clients may add schemas", "is_allow_auto_update_schema", unset=True),
    _switch(
        "schemaValidationEnforced", "whether producers must have a schema", "schema_validation_enforced", unset=False
    ),
    _switch("encryptionRequired", "whether messages must be encrypted", "encryption_required", unset=False),
    NamespacePolicy(
        path="subscriptionTypesEnabled",
        what="the types of subscriptions that are allowed",
        field="subscription_types_enabled",
        parse=kinds.subscription_types,
        body="a list of types",
        unset=[],
    ),
    NamespacePolicy(
        path="subscriptionAuthMode",
        what="how names of subscriptions are authorized",
        field="subscription_auth_mode",
        parse=kinds.auth_mode,
        body="None or Prefix",
        unset="None",
        can_remove=False,
    ),
    NamespacePolicy(
        path="dispatcherPauseOnAckStatePersistent",
        what="whether delivery waits for acknowledgements that cannot be stored",
        field="dispatcherPauseOnAckStatePersistentEnabled",
        parse=kinds.always_on,
        body="",
        unset=False,
    ),
]
