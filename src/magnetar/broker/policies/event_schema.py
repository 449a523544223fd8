"""The Avro schema of an event in `__change_events`: Pulsar's classes PulsarEvent and TopicPolicies, field by field.

It is, to the letter, what Pulsar 4.2 derives from those classes (a test compares them): fields by name, each that may
be absent as a union with null. A topic that both write to then has one version of it, not two.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

from magnetar.schemas.avro.parser import parse_schema
from magnetar.schemas.avro.schema import Schema
from magnetar.schemas.data import SchemaData, SchemaType

_EVENTS: Final = "org.apache.pulsar.common.events"
_DATA: Final = "org.apache.pulsar.common.policies.data"
_IMPLEMENTATIONS: Final = f"{_DATA}.impl"
_DISPATCH_RATE: Final = f"{_IMPLEMENTATIONS}.DispatchRateImpl"


def _record(name: str, *fields: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    return {"type": "record", "name": name} | ({"namespace": namespace} if namespace else {}) | {"fields": list(fields)}


def _enum(name: str, *symbols: str, namespace: str = "") -> dict[str, Any]:
    return {"type": "enum", "name": name} | ({"namespace": namespace} if namespace else {}) | {"symbols": list(symbols)}


def _list(items: Any, java_class: str = "java.util.List") -> dict[str, Any]:
    return {"type": "array", "items": items, "java-class": java_class}


def _map(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def _always(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


def _maybe(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


def _texts(*names: str) -> list[dict[str, Any]]:
    return [_maybe(name, "string") for name in names]


def _offload_policies() -> dict[str, Any]:
    return _record(
        "OffloadPoliciesImpl",
        *_texts("fileSystemProfilePath", "fileSystemURI", "gcsManagedLedgerOffloadBucket"),
        _maybe("gcsManagedLedgerOffloadMaxBlockSizeInBytes", "int"),
        _maybe("gcsManagedLedgerOffloadReadBufferSizeInBytes", "int"),
        *_texts("gcsManagedLedgerOffloadRegion", "gcsManagedLedgerOffloadServiceAccountKeyFile"),
        _maybe("managedLedgerExtraConfigurations", _map("string")),
        _maybe("managedLedgerOffloadBucket", "string"),
        _maybe("managedLedgerOffloadDeletionLagInMillis", "long"),
        _maybe("managedLedgerOffloadDriver", "string"),
        _maybe("managedLedgerOffloadMaxBlockSizeInBytes", "int"),
        _maybe("managedLedgerOffloadMaxThreads", "int"),
        _maybe("managedLedgerOffloadPrefetchRounds", "int"),
        _maybe("managedLedgerOffloadReadBufferSizeInBytes", "int"),
        _maybe("managedLedgerOffloadReadThreads", "int"),
        *_texts("managedLedgerOffloadRegion", "managedLedgerOffloadServiceEndpoint"),
        _maybe("managedLedgerOffloadThresholdInBytes", "long"),
        _maybe("managedLedgerOffloadThresholdInSeconds", "long"),
        _maybe(
            "managedLedgerOffloadedReadPriority",
            _enum("OffloadedReadPriority", "BOOKKEEPER_FIRST", "TIERED_STORAGE_FIRST"),
        ),
        *_texts("offloadersDirectory", "s3ManagedLedgerOffloadBucket"),
        *_texts("s3ManagedLedgerOffloadCredentialId", "s3ManagedLedgerOffloadCredentialSecret"),
        _maybe("s3ManagedLedgerOffloadMaxBlockSizeInBytes", "int"),
        _maybe("s3ManagedLedgerOffloadReadBufferSizeInBytes", "int"),
        *_texts("s3ManagedLedgerOffloadRegion", "s3ManagedLedgerOffloadRole"),
        *_texts("s3ManagedLedgerOffloadRoleSessionName", "s3ManagedLedgerOffloadServiceEndpoint"),
    )


def _backlog_quota() -> dict[str, Any]:
    policies = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
    return _record(
        "BacklogQuotaImpl",
        _always("limit", "long"),
        _maybe("limitSize", "long"),
        _always("limitTime", "int"),
        _maybe("policy", _enum("RetentionPolicy", *policies, namespace=f"{_DATA}.BacklogQuota")),
        namespace=_IMPLEMENTATIONS,
    )


def _dispatch_rate() -> dict[str, Any]:
    return _record(
        "DispatchRateImpl",
        _always("dispatchThrottlingRateInByte", "long"),
        _always("dispatchThrottlingRateInMsg", "int"),
        _always("ratePeriodInSecond", "int"),
        _always("relativeToPublishRate", "boolean"),
        namespace=_IMPLEMENTATIONS,
    )


def _inactive_topics() -> dict[str, Any]:
    modes = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")
    return _record(
        "InactiveTopicPolicies",
        _always("deleteWhileInactive", "boolean"),
        _maybe("inactiveTopicDeleteMode", _enum("InactiveTopicDeleteMode", *modes)),
        _always("maxInactiveDurationSeconds", "int"),
    )


def _persistence() -> dict[str, Any]:
    return _record(
        "PersistencePolicies",
        *(_always(f"bookkeeper{name}", "int") for name in ("AckQuorum", "Ensemble", "WriteQuorum")),
        _always("managedLedgerMaxMarkDeleteRate", "double"),
        _maybe("managedLedgerStorageClassName", "string"),
    )


def _topic_policies() -> dict[str, Any]:
    auto_subscriptions = _record(
        "AutoSubscriptionCreationOverrideImpl",
        _always("allowAutoSubscriptionCreation", "boolean"),
        namespace=_IMPLEMENTATIONS,
    )
    strategies = (
        *("UNDEFINED", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL"),
        *("BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"),
    )
    subscription_types = _enum(
        *("SubType", "Exclusive", "Shared", "Failover", "Key_Shared"),
        namespace="org.apache.pulsar.common.api.proto.CommandSubscribe",
    )
    publish_rate = _record(
        "PublishRate", _always("publishThrottlingRateInByte", "long"), _always("publishThrottlingRateInMsg", "int")
    )
    retention = _record(
        "RetentionPolicies", _always("retentionSizeInMB", "long"), _always("retentionTimeInMinutes", "int")
    )
    subscribe_rate = _record(
        "SubscribeRate", _always("ratePeriodInSecond", "int"), _always("subscribeThrottlingRatePerConsumer", "int")
    )
    return _record(
        "TopicPolicies",
        _maybe("autoSubscriptionCreationOverride", auto_subscriptions),
        _maybe("backLogQuotaMap", _map(_backlog_quota())),
        _maybe("compactionThreshold", "long"),
        _maybe("deduplicationEnabled", "boolean"),
        _maybe("deduplicationSnapshotIntervalSeconds", "int"),
        _maybe("delayedDeliveryEnabled", "boolean"),
        _maybe("delayedDeliveryMaxDelayInMillis", "long"),
        _maybe("delayedDeliveryTickTimeMillis", "long"),
        _maybe("dispatchRate", _dispatch_rate()),
        _maybe("dispatcherPauseOnAckStatePersistentEnabled", "boolean"),
        _maybe("entryFilters", _record("EntryFilters", _maybe("entryFilterNames", "string"))),
        _maybe("inactiveTopicPolicies", _inactive_topics()),
        _maybe("isGlobal", "boolean"),
        *(_maybe(f"max{name}", "int") for name in ("ConsumerPerTopic", "ConsumersPerSubscription", "MessageSize")),
        *(_maybe(f"max{name}", "int") for name in ("ProducerPerTopic", "SubscriptionsPerTopic")),
        *(_maybe(f"maxUnackedMessagesOn{name}", "int") for name in ("Consumer", "Subscription")),
        _maybe("messageTTLInSeconds", "int"),
        _maybe("offloadPolicies", _offload_policies()),
        _maybe("persistence", _persistence()),
        _maybe("publishRate", publish_rate),
        _maybe("replicationClusters", _list("string")),
        _maybe("replicatorDispatchRate", _DISPATCH_RATE),
        _maybe("retentionPolicies", retention),
        _maybe("schemaCompatibilityStrategy", _enum("SchemaCompatibilityStrategy", *strategies)),
        _maybe("schemaValidationEnforced", "boolean"),
        _maybe("shadowTopics", _list("string")),
        _maybe("subscribeRate", subscribe_rate),
        _maybe("subscriptionDispatchRate", _DISPATCH_RATE),
        _maybe("subscriptionExpirationTimeInMinutes", "int"),
        _maybe("subscriptionPolicies", _map(_record("SubscriptionPolicies", _maybe("dispatchRate", _DISPATCH_RATE)))),
        _maybe("subscriptionTypesEnabled", _list(subscription_types)),
        namespace=_DATA,
    )


def _pulsar_event() -> dict[str, Any]:
    actions = _enum("ActionType", "INSERT", "DELETE", "UPDATE", "NONE")
    snapshot = "TRANSACTION_BUFFER_SNAPSHOT"
    kinds = _enum("EventType", "TOPIC_POLICY", snapshot, f"{snapshot}_SEGMENTS", f"{snapshot}_INDEXES")
    event = _record(
        "TopicPoliciesEvent",
        *_texts("domain", "namespace"),
        _maybe("policies", _topic_policies()),
        *_texts("tenant", "topic"),
    )
    return _record(
        "PulsarEvent",
        _maybe("actionType", actions),
        _maybe("eventType", kinds),
        _maybe("replicateTo", _list("string", "java.util.HashSet")),
        _maybe("topicPoliciesEvent", event),
        namespace=_EVENTS,
    )


@cache
def event_schema() -> SchemaData:
    """As it is registered for `__change_events`."""
    text = json.dumps(_pulsar_event(), separators=(",", ":"))
    properties = {"__alwaysAllowNull": "true", "__jsr310ConversionEnabled": "false"}
    return SchemaData(SchemaType.AVRO, text.encode(), properties)


@cache
def parsed_event_schema() -> Schema:
    return parse_schema(event_schema().data)
