"""Messages of older and newer schemas in columns of one."""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from magnetar.errors import IncompatibleSchemaError, SchemaMissingError
from magnetar.schemas.data import SchemaData, SchemaType, version_from_bytes, version_to_bytes
from magnetar.spark.decoding.columns import topic_columns
from magnetar.spark.decoding.inputs import DecodeOptions
from tests.rows import every_row
from tests.unit.spark.decoding.stored import TOPIC, EntryFields, Sent, batch, decode, run
from tests.unit.spark.decoding.typed import avro, avro_bytes, of_json, of_version, record

OLD = record(("a", "int"), ("gone", "string"))
NEW = record(("a", "long"), ("b", ["null", "string"]), ("c", "int"))
NEW["fields"][2]["default"] = 9


class Registry:
    def __init__(self, *versions: SchemaData) -> None:
        self.versions = versions
        self.asked: list[int] = []

    def __call__(self, topic: str, version: bytes) -> SchemaData:
        assert topic == TOPIC
        number = version_from_bytes(version)
        self.asked.append(number)
        if number >= len(self.versions):
            raise SchemaMissingError(f"no version {number}")
        return self.versions[number]


def _read(schema: SchemaData, entries: list[bytes], registry: Registry) -> list[dict[str, Any]]:
    columns = topic_columns(schema, include_headers=False)
    rows = decode(run(entries), columns=columns, options=DecodeOptions(writer_schema=registry))
    return [{name: row[name] for name in columns.names if not name.startswith("__")} for row in rows]


def test_old_avro_messages_get_wider_numbers_nulls_and_defaults() -> None:
    registry = Registry(avro(OLD), avro(NEW))
    old = [avro_bytes(OLD, {"a": n, "gone": "x" * n}) for n in range(3)]
    new = [avro_bytes(NEW, {"a": 2**40, "b": "y", "c": 1})]
    rows = _read(avro(NEW), [of_version(0, old), of_version(1, new), of_version(0, old[:1])], registry)
    assert rows == [
        *[{"a": n, "b": None, "c": 9} for n in range(3)],
        {"a": 2**40, "b": "y", "c": 1},
        {"a": 0, "b": None, "c": 9},
    ]
    assert sorted(registry.asked) == [0, 1]


def _pair(encoding: str) -> SchemaData:
    parts = {f"{part}.schema.{what}": "" for part in ("key", "value") for what in ("name", "properties")}
    kinds = {"key.schema.type": "STRING", "value.schema.type": "STRING", "kv.encoding.type": encoding}
    return SchemaData(SchemaType.KEY_VALUE, struct.pack(">ii", 0, 0), parts | kinds)


@pytest.mark.parametrize("now", ["INLINE", "SEPARATED"])
def test_pairs_are_read_whether_or_not_they_were_separated_when_they_were_written(now: str) -> None:
    registry = Registry(_pair("INLINE"), _pair("SEPARATED"))
    inline = of_version(0, [struct.pack(">i", 1) + b"k" + struct.pack(">i", 1) + b"v"])
    separated = batch([Sent(b"w", key="l")], EntryFields(schema_version=version_to_bytes(1)))
    assert _read(_pair(now), [inline, separated], registry) == [{"key": "k", "value": "v"}, {"key": "l", "value": "w"}]


_DAY_MS = 86_400_000
_SECOND_DAY = datetime(1970, 1, 2, tzinfo=UTC)
_PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
_FIXED_PRICE = {"type": "fixed", "name": "P", "size": 3, "logicalType": "decimal", "precision": 6, "scale": 1}
_MOMENT = {"type": "long", "logicalType": "timestamp-millis"}
_ENUM = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}
_FIXED = {"type": "fixed", "name": "Two", "size": 2}
_INNER = record(("x", "int"), ("at", _MOMENT), ("p", ["null", _PRICE]), name="I")
_INNER["fields"][2]["default"] = None


def _with_default(kind: Any, default: Any) -> dict[str, Any]:
    definition = record(("a", "int"), ("new", kind))
    definition["fields"][1]["default"] = default
    return definition


@pytest.mark.parametrize("kind_of_schema", [avro, of_json])
@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        ("boolean", False, False),
        ("int", 5, 5),
        ("long", -(2**63), -(2**63)),
        ("float", 1, 1.0),
        ("double", 2**60 + 1, float(2**60 + 1)),
        ("string", "ü", "ü"),
        ("bytes", "\u00ff\u0000", b"\xff\x00"),
        (_FIXED, "\u00ff\u0000", b"\xff\x00"),
        (_ENUM, "GREEN", "GREEN"),
        ({"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
        ({"type": "int", "logicalType": "time-millis"}, 7, 7),
        ({"type": "long", "logicalType": "time-micros"}, 7, 7),
        ({"type": "string", "logicalType": "uuid"}, "c0ffee", "c0ffee"),
        (_MOMENT, _DAY_MS, _SECOND_DAY),
        (["null", _MOMENT], _DAY_MS, _SECOND_DAY),
        ({"type": "long", "logicalType": "timestamp-micros"}, _DAY_MS * 1000, _SECOND_DAY),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, _DAY_MS, _SECOND_DAY.replace(tzinfo=None)),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, _DAY_MS * 1000, _SECOND_DAY.replace(tzinfo=None)),
        (_PRICE, "\u0001\u00f4", Decimal("5.00")),
        (_PRICE, "\u00ff", Decimal("-0.01")),
        (["null", _PRICE], "\u0001\u00f4", Decimal("5.00")),
        (_FIXED_PRICE, "\u0000\u0001\u00f4", Decimal("50.0")),
        (["int", "long"], 2**40, 2**40),
        (["null", "string"], None, None),
        ({"type": "array", "items": "string"}, [], []),
        ({"type": "array", "items": "string"}, ["a", "b"], ["a", "b"]),
        ({"type": "array", "items": ["null", _MOMENT]}, [None, _DAY_MS], [None, _SECOND_DAY]),
        ({"type": "map", "values": "long"}, {}, {}),
        (["null", {"type": "map", "values": _MOMENT}], {"a": _DAY_MS}, {"a": _SECOND_DAY}),
        (["null", {"type": "map", "values": _MOMENT}], None, None),
        (["null", {"type": "array", "items": _MOMENT}], None, None),
        (["null", _INNER], None, None),
        ({"type": "map", "values": _PRICE}, {"a": "\u0001\u00f4"}, {"a": Decimal("5.00")}),
        (_INNER, {"x": 3, "at": _DAY_MS}, {"x": 3, "at": _SECOND_DAY, "p": None}),
        (
            ["null", {"type": "array", "items": _INNER}],
            [{"x": 3, "at": _DAY_MS, "p": "\u0001\u00f4"}],
            [{"x": 3, "at": _SECOND_DAY, "p": Decimal("5.00")}],
        ),
    ],
    ids=str,
)
def test_a_field_that_old_messages_lack_has_the_default_of_its_type(
    kind_of_schema: Any, kind: Any, default: Any, expected: Any
) -> None:
    old, new = record(("a", "int")), _with_default(kind, default)
    value = avro_bytes(old, {"a": 1}) if kind_of_schema is avro else b'{"a": 1}'
    rows = _read(kind_of_schema(new), [of_version(0, [value, None, value])], Registry(kind_of_schema(old)))
    assert rows == [{"a": 1, "new": expected}, {"a": None, "new": None}, {"a": 1, "new": expected}]


def test_a_field_that_old_records_inside_others_lack_has_its_default_too() -> None:
    old = record(("in", {"type": "array", "items": record(("x", "int"), name="I")}))
    new = record(("in", {"type": "array", "items": {**_with_default(_MOMENT, _DAY_MS), "name": "I"}}))
    value = avro_bytes(old, {"in": [{"x": 1}, {"x": 2}]})
    rows = _read(avro(new), [of_version(0, [value])], Registry(avro(old)))
    assert rows == [{"in": [{"a": None, "new": _SECOND_DAY}] * 2}]


@every_row(
    ("kind", "default"),
    [
        ("int", "5"),
        ("int", 1.5),
        ("int", 2**40),
        ("long", 2**70),
        ("double", 10**400),
        ("boolean", 1),
        ("string", 5),
        ("string", "\ud83d"),
        ("string", None),
        (_ENUM, "BLUE"),
        (_FIXED, "abc"),
        (_PRICE, "\u007f\u00ff\u00ff\u00ff\u00ff\u00ff"),
        (_PRICE, 5),
        (_MOMENT, "1970-01-02"),
        ({"type": "array", "items": "int"}, ["a"]),
        ({"type": "map", "values": "int"}, []),
        (_INNER, {"x": 3}),
    ],
    ids=ascii,
)
def test_a_default_that_is_no_value_of_its_type_is_none(kind: Any, default: Any) -> None:
    old = record(("a", "int"))
    entry = of_version(0, [avro_bytes(old, {"a": 1})])
    rows = _read(avro(_with_default(kind, default)), [entry], Registry(avro(old)))
    assert rows == [{"a": 1, "new": None}]


def test_a_decimal_or_map_that_a_newer_schema_dropped_is_stepped_over() -> None:
    old = record(("gone", _PRICE), ("a", "int"), ("gone_too", ["null", {"type": "map", "values": _FIXED_PRICE}]))
    value = avro_bytes(old, {"gone": Decimal("5.00"), "a": 1, "gone_too": {"k": Decimal("1.5")}})
    rows = _read(avro(record(("a", "int"))), [of_version(0, [value, value])], Registry(avro(old)))
    assert rows == [{"a": 1}, {"a": 1}]


def test_old_json_messages_lack_what_they_do_not_have() -> None:
    registry = Registry(of_json(OLD), of_json(NEW))
    entries = [
        of_version(0, [json.dumps({"a": 1, "gone": "x"}).encode()]),
        of_version(1, [json.dumps({"a": 2, "b": "y", "c": 3}).encode(), None]),
    ]
    assert _read(of_json(NEW), entries, registry) == [
        {"a": 1, "b": None, "c": 9},
        {"a": 2, "b": "y", "c": 3},
        {"a": None, "b": None, "c": None},
    ]


def test_records_inside_records_are_fitted_too() -> None:
    old = record(
        ("in", {"type": "array", "items": record(("x", "int"), name="I")}), ("m", {"type": "map", "values": "int"})
    )
    new = record(
        ("in", {"type": "array", "items": record(("x", "double"), ("y", ["null", "int"]), name="I")}),
        ("m", {"type": "map", "values": "long"}),
    )
    value = avro_bytes(old, {"in": [{"x": 1}, {"x": 2}], "m": {"k": 3}})
    assert _read(avro(new), [of_version(0, [value, None, value])], Registry(avro(old))) == [
        {"in": [{"x": 1.0, "y": None}, {"x": 2.0, "y": None}], "m": {"k": 3}},
        {"in": None, "m": None},
        {"in": [{"x": 1.0, "y": None}, {"x": 2.0, "y": None}], "m": {"k": 3}},
    ]


@pytest.mark.parametrize(
    ("old", "new"), [("string", "int"), ("long", "int"), ("double", "long"), ("boolean", "string")]
)
def test_a_type_that_does_not_fit_names_the_version_and_the_field(old: str, new: str) -> None:
    registry = Registry(avro(NEW), avro(NEW), avro(record(("a", old))))
    value = avro_bytes(record(("a", old)), {"a": {"string": "5", "long": 5, "double": 5.0, "boolean": True}[old]})
    with pytest.raises(
        IncompatibleSchemaError, match=r"default/read: messages of schema version 2 do not fit.*: a was"
    ):
        _read(avro(record(("a", new))), [of_version(2, [value])], registry)


def test_a_column_that_does_not_fit_may_be_left_out() -> None:
    written, wanted = record(("a", "string"), ("b", "int")), record(("a", "int"), ("b", "int"))
    columns = topic_columns(avro(wanted), include_headers=False)
    only_b = columns.select(columns.arrow.remove(0))
    entry = of_version(0, [avro_bytes(written, {"a": "x", "b": 5})])
    rows = decode(run([entry]), columns=only_b, options=DecodeOptions(writer_schema=Registry(avro(written))))
    assert [row["b"] for row in rows] == [5]


def test_numbers_of_an_older_primitive_schema_become_wider() -> None:
    registry = Registry(SchemaData(SchemaType.INT32, b""))
    entries = [of_version(0, [struct.pack(">i", 5), None])]
    assert _read(SchemaData(SchemaType.INT64, b""), entries, registry) == [{"value": 5}, {"value": None}]


def test_a_version_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(SchemaMissingError):
        _read(avro(NEW), [of_version(3, [b""])], Registry())


def test_without_typed_columns_no_schema_is_asked_for() -> None:
    registry = Registry()
    columns = topic_columns(avro(NEW), include_headers=False)
    only_topic = columns.select(pa.schema([columns.arrow.field("__topic")]))
    assert (
        len(decode(run([of_version(5, [b"?"])]), columns=only_topic, options=DecodeOptions(writer_schema=registry)))
        == 1
    )
    assert not registry.asked
