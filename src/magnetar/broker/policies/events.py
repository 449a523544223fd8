"""Topic policies as events: what a message of `__change_events` says, and how a change is written down.

Document:  a topic's policies as a JSON object with the field names of Pulsar's TopicPolicies; a policy that is not set
           is not in it. Partitions have none of their own: the partitioned topic's are theirs.
Schema:    an event is written with the schema registered by whoever wrote it. When a document has fields that our
           schema lacks, because a newer broker wrote it, it is written again with the schema it came with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from magnetar.broker.names import Domain, NamespaceName, TopicName
from magnetar.broker.policies.fields import Json
from magnetar.broker.schemas.avro.decoder import decode_value
from magnetar.broker.schemas.avro.encoder import encode_value
from magnetar.broker.schemas.avro.schema import RecordSchema, Schema, UnionSchema
from magnetar.errors import InvalidNameError, InvalidPolicyError, MalformedEntryError

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
    policies = _record_at(schema, "topicPoliciesEvent", "policies")
    known = {field.name for field in policies.fields}
    return next((name for name, value in document.items() if value is not None and name not in known), None)


def decode_deletion(key: str) -> PolicyChange:
    """Of a message without a payload."""
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
