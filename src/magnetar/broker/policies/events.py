"""Topic policies as events of `__change_events`: their schema, what a message means, and how a change is written.

Format:    The key is the topic's full name, with `__G__` in front for policies that all clusters share; the payload is
           an Avro PulsarEvent; no payload means that the policies were deleted. Only the newest message of a key
           counts, so the topic may be read compacted. A topic's policies are a JSON object with the field names of
           Pulsar's TopicPolicies, without those that are not set. Partitions have no policies of their own: those of
           the partitioned topic count. An event is written with the schema that its writer has registered. When a
           document has fields that our schema lacks, because a newer broker wrote it, it is written again with the
           schema it came with. The broker gives PolicyService an implementation of EventsTopics.

           Our schema is, to the letter, what Pulsar 4.2 derives from its classes PulsarEvent and TopicPolicies (a test
           compares them): fields by name, each that may be absent as a union with null. A topic that both write to
           then has one version of it, not two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

from magnetar.broker.policies.values import Json
from magnetar.errors import InvalidNameError, InvalidPolicyError, MalformedEntryError
from magnetar.names import Domain, NamespaceName, TopicName
from magnetar.schemas.avro.binary import decode_value, encode_value
from magnetar.schemas.avro.parser import parse_schema
from magnetar.schemas.avro.schema import RecordSchema, Schema, UnionSchema
from magnetar.schemas.data import SchemaData, SchemaType

_GLOBAL_PREFIX: Final = "__G__"
_TOPIC_POLICY: Final = "TOPIC_POLICY"


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """One event, understood. `document` is None where the policies were deleted."""

    topic: TopicName
    is_global: bool
    document: dict[str, Any] | None
    only_if_absent: bool = False


def new_document(*, is_global: bool) -> dict[str, Any]:
    return {"backLogQuotaMap": {}, "subscriptionTypesEnabled": [], "isGlobal": is_global, "subscriptionPolicies": {}}


def event_key(topic: TopicName, *, is_global: bool) -> str:
    name = str(topic.without_partition())
    return f"{_GLOBAL_PREFIX}{name}" if is_global else name


def encode_event(topic: TopicName, document: Json, schema: Schema, replicate_to: Sequence[str]) -> bytes:
    """InvalidPolicyError if the document has something that the schema has no place for."""
    base = topic.without_partition()
    event = {
        "actionType": "UPDATE",
        "eventType": _TOPIC_POLICY,
        "replicateTo": list(replicate_to) or None,
        "topicPoliciesEvent": {
            "domain": str(base.domain),
            "tenant": base.tenant,
            "namespace": base.namespace.local,
            "topic": base.local,
            "policies": dict(document),
        },
    }
    if (unknown := unknown_field(schema, document)) is not None:
        raise InvalidPolicyError(f"{unknown!r} is not a policy of topics")
    return encode_value(schema, event)


def unknown_field(schema: Schema, document: Json) -> str | None:
    """A field of a document that events with this schema cannot carry."""
    known = fields_of(schema)
    return next((name for name, value in document.items() if value is not None and name not in known), None)


def fields_of(schema: Schema) -> set[str]:
    """Returns the fields of a topic's policies that events with this schema have."""
    return {field.name for field in _record_at(schema, "topicPoliciesEvent", "policies").fields}


def decode_deletion(key: str) -> PolicyChange:
    is_global = key.startswith(_GLOBAL_PREFIX)
    return PolicyChange(_topic(key.removeprefix(_GLOBAL_PREFIX)).without_partition(), is_global, None)


def decode_event(data: bytes, schema: Schema) -> PolicyChange | None:
    """None: an event of another kind. MalformedEntryError if it is not an event at all."""
    event = decode_value(schema, data)
    if not isinstance(event, dict) or event.get("eventType") != _TOPIC_POLICY:
        return None
    change, action = event.get("topicPoliciesEvent"), event.get("actionType")
    if not isinstance(change, dict) or action not in ("INSERT", "UPDATE", "DELETE"):
        return None
    document = _without_nulls(change.get("policies") or {})
    is_global = bool(document.get("isGlobal"))
    topic = _topic_of(change).without_partition()
    if action == "DELETE":
        return PolicyChange(topic, is_global, None)
    return PolicyChange(topic, is_global, document, only_if_absent=action == "INSERT")


def _topic_of(change: Json) -> TopicName:
    try:
        namespace = NamespaceName.of(str(change.get("tenant")), str(change.get("namespace")))
        return namespace.topic(str(change.get("topic")), Domain(str(change.get("domain"))))
    except (InvalidNameError, ValueError) as error:
        raise MalformedEntryError(f"an event is about a topic that cannot be: {error}") from None


def _topic(name: str) -> TopicName:
    try:
        return TopicName.parse(name)
    except InvalidNameError as error:
        raise MalformedEntryError(f"an event is about a topic that cannot be: {error}") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


def _record_at(schema: Schema, *path: str) -> RecordSchema:
    for name in path:
        record = _as_record(schema)
        found = next((field.schema for field in record.fields if field.name == name), None)
        schema = found if found is not None else RecordSchema(name)
    return _as_record(schema)


def _as_record(schema: Schema) -> RecordSchema:
    if isinstance(schema, UnionSchema):
        schema = next((branch for branch in schema.branches if isinstance(branch, RecordSchema)), schema)
    return schema if isinstance(schema, RecordSchema) else RecordSchema("")


# --- the topic of events, on whichever broker its owner is ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutgoingEvent:
    key: str
    """`partition_key` of the metadata."""
    payload: bytes | None
    """None: `null_value` is set, and the payload is empty."""
    schema_version: bytes
    """`schema_version` of the metadata."""
    replicate_to: tuple[str, ...]
    """`replicate_to` of the metadata; empty: everywhere."""


@dataclass(frozen=True, slots=True)
class IncomingEvent:
    key: str
    payload: bytes | None
    schema_version: bytes | None
    position: tuple[int, int, int]
    """Partition (0 if there are none), ledger, entry."""


class EventsReader(Protocol):
    """Reads one namespace's `__change_events` from the beginning, all partitions of it, compacted. Both ways to ask it
    raise when it is of no use any more: another reader is opened then."""

    async def read_available(self) -> Sequence[IncomingEvent]:
        """Returns the next events, some hundred at most; none at the end of the topic. Messages without a key are left
        out."""

    async def wait_for_more(self) -> None:
        """Returns when there may be more to read."""

    async def aclose(self) -> None: ...


class EventsTopics(Protocol):
    async def open_reader(self, namespace: NamespaceName) -> EventsReader | None:
        """Returns None if the namespace has no such topic. Does not make one."""

    async def publish(self, namespace: NamespaceName, event: OutgoingEvent) -> tuple[int, int, int]:
        """Makes the topic if there is none; returns the position when the message is durable, in the reader's form."""


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


def _all(kind: str, *names: str) -> list[dict[str, Any]]:
    return [_maybe(name, kind) for name in names]


def _offload_policies() -> dict[str, Any]:
    gcs, ledger, s3 = "gcsManagedLedgerOffload", "managedLedgerOffload", "s3ManagedLedgerOffload"
    priority = _enum("OffloadedReadPriority", "BOOKKEEPER_FIRST", "TIERED_STORAGE_FIRST")
    return _record(
        "OffloadPoliciesImpl",
        *_all("string", "fileSystemProfilePath", "fileSystemURI", f"{gcs}Bucket"),
        *_all("int", f"{gcs}MaxBlockSizeInBytes", f"{gcs}ReadBufferSizeInBytes"),
        *_all("string", f"{gcs}Region", f"{gcs}ServiceAccountKeyFile"),
        _maybe("managedLedgerExtraConfigurations", _map("string")),
        _maybe(f"{ledger}Bucket", "string"),
        _maybe(f"{ledger}DeletionLagInMillis", "long"),
        _maybe(f"{ledger}Driver", "string"),
        *_all("int", f"{ledger}MaxBlockSizeInBytes", f"{ledger}MaxThreads", f"{ledger}PrefetchRounds"),
        *_all("int", f"{ledger}ReadBufferSizeInBytes", f"{ledger}ReadThreads"),
        *_all("string", f"{ledger}Region", f"{ledger}ServiceEndpoint"),
        *_all("long", f"{ledger}ThresholdInBytes", f"{ledger}ThresholdInSeconds"),
        _maybe("managedLedgerOffloadedReadPriority", priority),
        *_all("string", "offloadersDirectory", f"{s3}Bucket", f"{s3}CredentialId", f"{s3}CredentialSecret"),
        *_all("int", f"{s3}MaxBlockSizeInBytes", f"{s3}ReadBufferSizeInBytes"),
        *_all("string", f"{s3}Region", f"{s3}Role", f"{s3}RoleSessionName", f"{s3}ServiceEndpoint"),
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
        *_all("long", "delayedDeliveryMaxDelayInMillis", "delayedDeliveryTickTimeMillis"),
        _maybe("dispatchRate", _dispatch_rate()),
        _maybe("dispatcherPauseOnAckStatePersistentEnabled", "boolean"),
        _maybe("entryFilters", _record("EntryFilters", _maybe("entryFilterNames", "string"))),
        _maybe("inactiveTopicPolicies", _inactive_topics()),
        _maybe("isGlobal", "boolean"),
        *_all("int", "maxConsumerPerTopic", "maxConsumersPerSubscription", "maxMessageSize", "maxProducerPerTopic"),
        *_all("int", "maxSubscriptionsPerTopic", "maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnSubscription"),
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
        *_all("string", "domain", "namespace"),
        _maybe("policies", _topic_policies()),
        *_all("string", "tenant", "topic"),
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
