"""The decoders of Pulsar's policies and schemas: Avro schemas and values, events, names, key-value and native schemas.

Checked:   besides that nothing but the promised errors comes out: a schema that was read reads itself, a value that was
           read is the same after a round, a name that was parsed is parsed as the same again.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

from fuzz.engine import Target
from magnetar.broker.policies.events import decode_event, encode_event, parsed_event_schema
from magnetar.broker.policies.registry import merge_policies
from magnetar.broker.policies.rows import Documents
from magnetar.broker.resources.documents import decode
from magnetar.config.root import Config
from magnetar.errors import (
    InvalidNameError,
    InvalidPolicyError,
    InvalidSchemaError,
    MalformedEntryError,
    MalformedMetadataError,
)
from magnetar.names import TopicName, decode_name
from magnetar.schemas.avro.parser import parse_schema
from magnetar.schemas.avro.resolution import mismatch
from magnetar.schemas.avro.schema import is_same
from magnetar.schemas.data import SchemaData, SchemaType
from magnetar.schemas.validation import check_schema

_GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
_NAMES = ("t", "persistent://a/b/c-partition-3", "non-persistent://a/b/é", "a/b/__change_events")
_KEY_VALUE = struct.pack(">i", 0) + struct.pack(">i", 5) + b'"int"'
_NATIVE = (
    b'{"fileDescriptorSet":"ChYKB2YucHJvdG8SAXAiCAoBTRoDCgFO","rootMessageTypeName":"p.M.N",'
    b'"rootFileDescriptorName":"f.proto"}'
)
_CONFIG = Config()


def targets() -> list[Target]:
    avro = json.loads((_GOLDEN / "pulsar-avro.json").read_text())
    golden = json.loads((_GOLDEN / "pulsar-policies.json").read_text())
    events = [bytes.fromhex(golden[name]) for name in ("event default", "event ttl", "event full global")]
    documents = [golden[name].encode() for name in ("policies default", "policies full")]
    return [
        Target("avro-schema", [text.encode() for text in avro["pairs"].values()], _schema, (InvalidSchemaError,)),
        Target("policy-event", events, _event, (MalformedEntryError, InvalidPolicyError)),
        Target("policies", documents, _policies, (MalformedMetadataError,)),
        Target("topic-name", [name.encode() for name in _NAMES], _name, (InvalidNameError,)),
        Target("key-value-schema", [_KEY_VALUE], _key_value, (InvalidSchemaError,)),
        Target("native-schema", [_NATIVE], _native, (InvalidSchemaError,)),
    ]


def _schema(data: bytes) -> object:
    schema = parse_schema(data)
    assert mismatch(schema, schema) is None, "a schema that cannot read itself"
    assert is_same(schema, parse_schema(data)), "a schema that is not itself"
    return schema


def _event(data: bytes) -> object:
    change = decode_event(data, parsed_event_schema())
    if change is None or change.document is None:
        return change
    again = decode_event(encode_event(change.topic, change.document, parsed_event_schema(), []), parsed_event_schema())
    assert again is not None
    assert (again.topic, again.document) == (change.topic, change.document), "another event after a round"
    return change


def _policies(data: bytes) -> object:
    return merge_policies(Documents(namespace=decode("/x", data)), _CONFIG, is_system=False)


def _name(data: bytes) -> object:
    topic = TopicName.parse(data.decode("utf-8", "replace"))
    assert TopicName.parse(str(topic)) == topic, "another name after a round"
    assert decode_name(topic.encoded) == topic.local, "another name by its log"
    topic.without_partition()
    return topic


def _key_value(data: bytes) -> object:
    properties = {"key.schema.type": "STRING", "value.schema.type": "AVRO"}
    check_schema(SchemaData(SchemaType.KEY_VALUE, data, properties), bytes_max=2**20)
    return data


def _native(data: bytes) -> object:
    check_schema(SchemaData(SchemaType.PROTOBUF_NATIVE, data), bytes_max=2**20)
    return data
