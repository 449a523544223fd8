"""Events of `__change_events`, as Apache writes and reads them."""

from __future__ import annotations

import json

import pytest

from magnetar.broker.policies.events import (
    decode_deletion,
    decode_event,
    encode_event,
    event_key,
    event_schema,
    new_document,
    parsed_event_schema,
    unknown_field,
)
from magnetar.errors import InvalidPolicyError, MalformedEntryError
from magnetar.names import TopicName
from magnetar.schemas.avro.binary import encode_value
from magnetar.schemas.avro.parser import parse_schema
from tests.unit.broker import golden

TOPIC = TopicName.parse("persistent://public/default/t")
SCHEMA = parsed_event_schema()


def test_schema_of_events_is_the_one_that_apache_derives() -> None:
    assert event_schema().data.decode() == golden.text("event schema")


def test_events_we_write_are_byte_for_byte_those_of_apache() -> None:
    document = new_document(is_global=False)
    assert encode_event(TOPIC, document, SCHEMA, ["standalone"]) == golden.binary("event default")
    with_ttl = document | {"messageTTLInSeconds": 10}
    assert encode_event(TOPIC, with_ttl, SCHEMA, ["standalone"]) == golden.binary("event ttl")


def test_events_of_apache_are_understood_and_written_again_as_they_were() -> None:
    change = decode_event(golden.binary("event full global"), SCHEMA)
    assert change is not None
    assert (change.topic, change.is_global, change.only_if_absent) == (TOPIC, True, False)
    assert change.document is not None
    assert change.document["retentionPolicies"] == {"retentionTimeInMinutes": 60, "retentionSizeInMB": 1024}
    assert encode_event(TOPIC, change.document, SCHEMA, []) == golden.binary("event full global")


def test_document_has_the_fields_of_apaches_json() -> None:
    change = decode_event(golden.binary("event full global"), SCHEMA)
    assert change is not None
    assert change.document is not None
    apache = golden.document("topic policies full")
    shared = {name for name in apache if not name.endswith("Set") and name != "globalPolicies"}
    assert set(change.document) == shared
    plain = [name for name in sorted(shared) if not isinstance(apache[name], (dict, list))]
    assert {name: change.document[name] for name in plain} == {name: apache[name] for name in plain}


def test_partition_has_the_policies_of_its_topic() -> None:
    part = TOPIC.with_partition(3)
    assert event_key(part, is_global=False) == str(TOPIC)
    assert event_key(part, is_global=True) == f"__G__{TOPIC}"
    change = decode_event(encode_event(part, {}, SCHEMA, []), SCHEMA)
    assert change is not None
    assert change.topic == TOPIC


def test_deletion_is_understood_by_its_key() -> None:
    own, shared = decode_deletion(str(TOPIC)), decode_deletion(f"__G__{TOPIC}")
    assert (own.topic, own.is_global, own.document) == (TOPIC, False, None)
    assert (shared.topic, shared.is_global) == (TOPIC, True)
    with pytest.raises(MalformedEntryError):
        decode_deletion("not/a topic")


def test_other_events_and_actions_are_left_alone() -> None:
    def event(kind: str | None, action: str | None) -> bytes:
        change = {"domain": "persistent", "tenant": "a", "namespace": "b", "topic": "c", "policies": {}}
        return encode_value(SCHEMA, {"eventType": kind, "actionType": action, "topicPoliciesEvent": change})

    assert decode_event(event("TRANSACTION_BUFFER_SNAPSHOT", "UPDATE"), SCHEMA) is None
    assert decode_event(event(None, None), SCHEMA) is None
    assert decode_event(event("TOPIC_POLICY", "NONE"), SCHEMA) is None
    inserted, deleted = decode_event(event("TOPIC_POLICY", "INSERT"), SCHEMA), event("TOPIC_POLICY", "DELETE")
    assert inserted is not None
    assert inserted.only_if_absent
    found = decode_event(deleted, SCHEMA)
    assert found is not None
    assert found.document is None


def test_event_about_a_topic_that_cannot_be_is_malformed() -> None:
    change = {"domain": "permanent", "tenant": "a", "namespace": "b", "topic": "c"}
    data = encode_value(SCHEMA, {"eventType": "TOPIC_POLICY", "actionType": "UPDATE", "topicPoliciesEvent": change})
    with pytest.raises(MalformedEntryError, match="topic"):
        decode_event(data, SCHEMA)


def test_policy_that_does_not_exist_or_has_a_wrong_value_is_refused() -> None:
    with pytest.raises(InvalidPolicyError, match="'colour'"):
        encode_event(TOPIC, {"colour": 5}, SCHEMA, [])
    with pytest.raises(InvalidPolicyError):
        encode_event(TOPIC, {"messageTTLInSeconds": "5"}, SCHEMA, [])
    with pytest.raises(InvalidPolicyError):
        encode_event(TOPIC, {"dispatchRate": {"dispatchThrottlingRateInMsg": 5}}, SCHEMA, [])


def test_field_of_a_newer_broker_is_told_apart() -> None:
    newer = json.loads(golden.text("event schema"))
    policies = newer["fields"][3]["type"][1]["fields"][2]["type"][1]
    policies["fields"].append({"name": "colour", "type": ["null", "string"], "default": None})
    schema = parse_schema(json.dumps(newer))
    assert unknown_field(SCHEMA, {"colour": "red"}) == "colour"
    assert unknown_field(schema, {"colour": "red"}) is None
    assert unknown_field(SCHEMA, {"colour": None}) is None
    change = decode_event(encode_event(TOPIC, {"colour": "red"}, schema, []), schema)
    assert change is not None
    assert change.document == {"colour": "red"}
