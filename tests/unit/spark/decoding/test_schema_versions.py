"""Messages of older and newer schemas in columns of one."""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import pytest

from magnetar.broker.schemas.data import SchemaData, SchemaType, version_from_bytes
from magnetar.errors import IncompatibleSchemaError, SchemaMissingError
from magnetar.spark.decoding import DecodeOptions, topic_columns
from tests.unit.spark.decoding.stored import TOPIC, decode, run
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
