from __future__ import annotations

import base64
import json
import struct

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from magnetar.errors import IncompatibleSchemaError, InvalidSchemaError
from magnetar.schemas.compatibility import CompatibilityStrategy as Strategy
from magnetar.schemas.compatibility import check_compatible, is_same_schema
from magnetar.schemas.data import SchemaData, SchemaType, version_from_bytes, version_to_bytes
from magnetar.schemas.validation import check_schema, split_key_value
from tests.rows import every_row


def record(*fields: str, kind: SchemaType = SchemaType.AVRO) -> SchemaData:
    """`a` is an int without a default, `a=` one with a default."""
    made = [
        {"name": name.rstrip("="), "type": "int"} | ({"default": 0} if name.endswith("=") else {}) for name in fields
    ]
    return SchemaData(kind, json.dumps({"type": "record", "name": "R", "fields": made}).encode())


def key_value(key: SchemaData, value: SchemaData) -> SchemaData:
    data = b"".join(struct.pack(">i", len(part.data)) + part.data for part in (key, value))
    properties = {
        "key.schema.type": key.type.name,
        "value.schema.type": value.type.name,
        "key.schema.properties": json.dumps(dict(key.properties)),
        "kv.encoding.type": "INLINE",
    }
    return SchemaData(SchemaType.KEY_VALUE, data, properties)


def protobuf(message: str, *, file: str = "f.proto", root: str | None = None, dependency: str = "") -> SchemaData:
    descriptor = FileDescriptorProto(name="f.proto", package="p", dependency=[dependency] if dependency else [])
    outer = descriptor.message_type.add(name="Outer")
    outer.nested_type.add(name="Inner")
    descriptor.message_type.add(name="Other")
    encoded = base64.b64encode(FileDescriptorSet(file=[descriptor]).SerializeToString()).decode()
    names = {"rootMessageTypeName": message, "rootFileDescriptorName": root or file}
    return SchemaData(SchemaType.PROTOBUF_NATIVE, json.dumps({"fileDescriptorSet": encoded} | names).encode())


STRING = SchemaData(SchemaType.STRING, b"")
INT = SchemaData(SchemaType.INT32, b"")


def fits(before: list[SchemaData], new: SchemaData, strategy: Strategy) -> bool:
    try:
        check_compatible(before, new, strategy)
    except IncompatibleSchemaError:
        return False
    return True


# A field more without a default: the old reads the new. One more with a default: both. One less without: the new reads.
@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF])
@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"),
    [
        (("a",), ("a", "b"), False, True),
        (("a",), ("a", "b="), True, True),
        (("a", "b"), ("a",), True, False),
        (("a", "b="), ("a",), True, True),
        (("a",), ("b",), False, False),
        (("a",), ("a",), True, True),
    ],
)
def test_strategies_mean_who_must_read_whom(
    kind: SchemaType, old: tuple[str, ...], new: tuple[str, ...], backward: bool, forward: bool
) -> None:
    before, after = [record(*old, kind=kind)], record(*new, kind=kind)
    for suffix in ("", "_TRANSITIVE"):
        assert fits(before, after, Strategy(f"BACKWARD{suffix}")) is backward
        assert fits(before, after, Strategy(f"FORWARD{suffix}")) is forward
        assert fits(before, after, Strategy(f"FULL{suffix}")) is (backward and forward)
    assert fits(before, after, Strategy.ALWAYS_COMPATIBLE)
    assert not fits(before, after, Strategy.ALWAYS_INCOMPATIBLE)


def test_all_that_are_given_are_compared() -> None:
    history = [record("a", "b"), record("a")]
    assert fits(history[1:], record("a", "c="), Strategy.FULL)
    assert not fits(history, record("c="), Strategy.FORWARD_TRANSITIVE)
    assert fits(history, record("a", "c="), Strategy.BACKWARD_TRANSITIVE)


def test_another_type_never_fits_unless_everything_does() -> None:
    assert not fits([STRING], INT, Strategy.BACKWARD)
    assert not fits([record("a")], record("a", kind=SchemaType.JSON), Strategy.FULL)
    assert fits([STRING], INT, Strategy.ALWAYS_COMPATIBLE)


def test_first_schema_fits_whatever_the_strategy() -> None:
    assert fits([], record("a"), Strategy.ALWAYS_INCOMPATIBLE)


def test_primitive_types_fit_themselves() -> None:
    assert fits([STRING], STRING, Strategy.FULL)
    assert not fits([STRING], STRING, Strategy.ALWAYS_INCOMPATIBLE)


def test_schema_that_cannot_be_parsed_does_not_fit() -> None:
    broken = SchemaData(SchemaType.JSON, b'{"type":"object","properties":{}}')
    assert not fits([broken], record("a", kind=SchemaType.JSON), Strategy.FULL)


def test_key_value_fits_if_both_parts_do() -> None:
    before = [key_value(STRING, record("a"))]
    assert fits(before, key_value(STRING, record("a", "b=")), Strategy.FULL)
    assert not fits(before, key_value(STRING, record("a", "b")), Strategy.BACKWARD)
    assert not fits(before, key_value(INT, record("a")), Strategy.FULL)
    assert not fits(before, key_value(record("a"), STRING), Strategy.FULL)


def test_protobuf_native_must_stay_the_same_message() -> None:
    assert fits([protobuf("p.Outer")], protobuf("p.Outer"), Strategy.FULL)
    assert not fits([protobuf("p.Outer")], protobuf("p.Other"), Strategy.BACKWARD)
    assert fits([protobuf("p.Outer.Inner")], protobuf("p.Outer.Inner"), Strategy.FULL_TRANSITIVE)


# --- well-formed ------------------------------------------------------------------------------------------------------


@every_row(
    "schema",
    [
        *(STRING, INT, SchemaData(SchemaType.STRING, b"null"), SchemaData(SchemaType.BYTES, b"anything")),
        *(record("a"), key_value(STRING, record("a")), protobuf("p.Outer"), protobuf("p.Outer.Inner")),
        SchemaData(SchemaType.JSON, b'["null","int"]'),
        SchemaData(SchemaType.EXTERNAL, b"anything"),
        SchemaData(SchemaType.KEY_VALUE, struct.pack(">ii", -1, -1)),
    ],
)
def test_well_formed_schemas_are_accepted(schema: SchemaData) -> None:
    check_schema(schema, bytes_max=10_000)


@every_row(
    "schema",
    [
        *(SchemaData(SchemaType.STRING, b"x"), SchemaData(SchemaType.INT8, b"null"), SchemaData(SchemaType.AVRO, b"")),
        SchemaData(SchemaType.AVRO, b'["null","int"]'),
        *(SchemaData(SchemaType.AUTO_CONSUME, b""), SchemaData(SchemaType.AUTO_PUBLISH, b"")),
        *(SchemaData(SchemaType.KEY_VALUE, data) for data in (b"", b"\0\0\0\x05a", b"\xff\xff\xff\xfe", b"\0" * 9)),
        SchemaData(SchemaType.KEY_VALUE, struct.pack(">ii", 0, 0), {"key.schema.type": "WHAT"}),
        SchemaData(SchemaType.KEY_VALUE, struct.pack(">ii", 0, 0), {"key.schema.properties": "["}),
        key_value(STRING, SchemaData(SchemaType.AVRO, b"x")),
        *(SchemaData(SchemaType.PROTOBUF_NATIVE, data) for data in (b"", b"[]", b"{}", b'{"fileDescriptorSet":"%"}')),
        *(protobuf("p.Nothing"), protobuf("p.Outer", root="g.proto"), protobuf("p.Outer", dependency="g.proto")),
        record(*(f"field{number}" for number in range(400))),
    ],
)
def test_malformed_schemas_are_refused_with_a_reason(schema: SchemaData) -> None:
    with pytest.raises(InvalidSchemaError, match=r"\S"):
        check_schema(schema, bytes_max=10_000)


def test_parts_of_a_key_value_schema_have_types_and_properties() -> None:
    key, value = split_key_value(key_value(SchemaData(SchemaType.STRING, b"", {"k": "v"}), record("a")))
    assert (key.type, key.properties, value) == (SchemaType.STRING, {"k": "v"}, record("a"))
    without_types = SchemaData(SchemaType.KEY_VALUE, struct.pack(">ii", 0, 0))
    assert [part.type for part in split_key_value(without_types)] == [SchemaType.BYTES] * 2


# --- sameness, numbers, strategies ------------------------------------------------------------------------------------


def test_same_schema_is_recognised_in_another_spelling() -> None:
    spelled = SchemaData(SchemaType.AVRO, json.dumps(json.loads(record("a").data), indent=4).encode())
    assert is_same_schema(record("a"), spelled)
    assert not is_same_schema(record("a"), record("a", kind=SchemaType.JSON))
    assert not is_same_schema(record("a"), record("b"))
    assert not is_same_schema(SchemaData(SchemaType.AVRO, b"{"), record("a"))


def test_numbers_of_types_are_those_of_wire_and_store() -> None:
    for kind in SchemaType:
        if kind >= 0:
            assert SchemaType.from_stored(kind.to_stored()) is kind
            assert SchemaType.from_wire(kind.to_wire()) is kind
    assert [SchemaType.EXTERNAL.to_wire(), SchemaType.EXTERNAL.to_stored(), SchemaType.AVRO.to_stored()] == [22, 22, 5]
    assert SchemaType.from_wire(21) is SchemaType.AUTO_CONSUME
    assert SchemaType.BYTES.to_wire() == 0
    with pytest.raises(InvalidSchemaError):
        SchemaType.from_wire(99)


def test_versions_are_eight_bytes_and_longer_ones_of_old_clients_are_read() -> None:
    assert version_to_bytes(258) == b"\0\0\0\0\0\0\1\2"
    assert version_from_bytes(version_to_bytes(258) + b"\0" * 56) == 258
    with pytest.raises(InvalidSchemaError):
        version_from_bytes(b"\1")
