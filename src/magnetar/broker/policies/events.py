"""Topic policies as events of `__change_events`: what a message means, how a change is written, and the topic itself.

Format:    The key is the topic's full name, with `__G__` in front for policies that all clusters share; the payload is
           an Avro PulsarEvent; no payload means that the policies were deleted. Only the newest message of a key
           counts, so the topic may be read compacted. A topic's policies are a JSON object with the field names of
           Pulsar's TopicPolicies, without those that are not set. Partitions have no policies of their own: those of
           the partitioned topic count. An event is written with the schema that its writer has registered. When a
           document has fields that our schema lacks, because a newer broker wrote it, it is written again with the
           schema it came with. The broker gives PolicyService an implementation of EventsTopics.
Read next: event_schema.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from magnetar.broker.policies.values import Json
from magnetar.errors import InvalidNameError, InvalidPolicyError, MalformedEntryError
from magnetar.names import Domain, NamespaceName, TopicName
from magnetar.schemas.avro.decoder import decode_value
from magnetar.schemas.avro.encoder import encode_value
from magnetar.schemas.avro.schema import RecordSchema, Schema, UnionSchema

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
    """What Pulsar begins with."""
    return {
        "backLogQuotaMap": {},
        "subscriptionTypesEnabled": [],
        "isGlobal": is_global,
        "subscriptionPolicies": {},
    }


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
    """Returns the change of a message without a payload."""
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
    """What a message of `__change_events` is made of."""

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
    """The `__change_events` of all namespaces."""

    async def open_reader(self, namespace: NamespaceName) -> EventsReader | None:
        """Returns None if the namespace has no such topic. Does not make one."""

    async def publish(self, namespace: NamespaceName, event: OutgoingEvent) -> tuple[int, int, int]:
        """Makes the topic if there is none; returns the position when the message is durable, in the reader's form."""
