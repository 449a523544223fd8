"""Avro records as columns, held against another reader of Avro."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.errors import InvalidSchemaError, MalformedEntryError
from magnetar.spark.decoding.columns import topic_columns
from tests.rows import every_row
from tests.unit.spark.decoding.typed import avro, avro_bytes, read, record

_INNER = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": ["null", "double"]}]}
_ENUM = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN", "BLUE"]}
_FIXED = {"type": "fixed", "name": "Four", "size": 4}
EVERYTHING = record(
    ("flag", "boolean"),
    ("small", "int"),
    ("large", "long"),
    ("half", "float"),
    ("full", "double"),
    ("text", "string"),
    ("blob", "bytes"),
    ("maybe", ["null", "string"]),
    ("number", ["null", "int", "long"]),
    ("colour", _ENUM),
    ("four", _FIXED),
    ("inner", _INNER),
    ("maybe_inner", ["null", "Inner"]),
    ("names", {"type": "array", "items": "string"}),
    ("grid", {"type": "array", "items": {"type": "array", "items": ["null", "long"]}}),
    ("sizes", {"type": "map", "values": "long"}),
    ("things", ["null", {"type": "map", "values": "Inner"}]),
)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=10)
_LONG = st.integers(-(2**63), 2**63 - 1)
_DOUBLE = st.floats(allow_nan=False)
_INNERS = st.fixed_dictionaries({"x": st.none() | _DOUBLE})
_RECORDS = st.fixed_dictionaries(
    {
        "flag": st.booleans(),
        "small": st.integers(-(2**31), 2**31 - 1),
        "large": _LONG,
        "half": st.floats(allow_nan=False, width=32),
        "full": _DOUBLE,
        "text": _TEXT,
        "blob": st.binary(max_size=10),
        "maybe": st.none() | _TEXT,
        "number": st.none() | _LONG,
        "colour": st.sampled_from(["RED", "GREEN", "BLUE"]),
        "four": st.binary(min_size=4, max_size=4),
        "inner": _INNERS,
        "maybe_inner": st.none() | _INNERS,
        "names": st.lists(_TEXT, max_size=4),
        "grid": st.lists(st.lists(st.none() | _LONG, max_size=3), max_size=3),
        "sizes": st.dictionaries(_TEXT, _LONG, max_size=3),
        "things": st.none() | st.dictionaries(_TEXT, _INNERS, max_size=2),
    }
)


@settings(max_examples=8)
@given(st.lists(st.none() | _RECORDS, min_size=1, max_size=8))
def test_any_record_is_read_as_it_was_written(records: list[dict[str, Any] | None]) -> None:
    values = [None if each is None else avro_bytes(EVERYTHING, each) for each in records]
    expected = [
        dict.fromkeys(field["name"] for field in EVERYTHING["fields"]) if each is None else _by_the_other_reader(each)
        for each in values
    ]
    assert read(avro(EVERYTHING), values) == expected


def _by_the_other_reader(value: bytes) -> dict[str, Any]:
    return fastavro.schemaless_reader(io.BytesIO(value), EVERYTHING)  # type: ignore[return-value,call-arg]


def test_only_the_fields_that_are_wanted_come_out() -> None:
    definition = record(
        ("a", "string"), ("b", ["null", "int"]), ("c", {"type": "array", "items": "string"}), ("d", "long")
    )
    everything = topic_columns(avro(definition), include_headers=False)
    columns = everything.select(pa.schema([everything.arrow.field("d"), everything.arrow.field("b")]))
    values = [avro_bytes(definition, {"a": "x" * n, "b": n, "c": ["y"] * n, "d": -n}) for n in range(5)]
    assert read(avro(definition), values, columns) == [{"d": -n, "b": n} for n in range(5)]


_PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
_FIXED_PRICE = {"type": "fixed", "name": "P", "size": 5, "logicalType": "decimal", "precision": 10, "scale": 2}
_TAGS = {"type": "map", "values": "long"}
_FIVE = Decimal("5.00")


@every_row(
    ("kind", "value"),
    [
        (["null", "int"], None),
        ("boolean", True),
        ("float", 0.5),
        ("double", 0.5),
        ("int", 300),
        ("string", "text"),
        (_ENUM, "BLUE"),
        (_FIXED, b"four"),
        (_PRICE, _FIVE),
        (_FIXED_PRICE, _FIVE),
        (["null", _PRICE], _FIVE),
        (["null", _PRICE], None),
        ({"type": "array", "items": _PRICE}, [_FIVE, _FIVE]),
        ({"type": "map", "values": _FIXED_PRICE}, {"a": _FIVE, "b": _FIVE}),
        (record(("p", _PRICE), ("t", ["null", _TAGS]), name="In"), {"p": _FIVE, "t": {"x": 1}}),
        (_TAGS, {"a": 7, "b": 8}),
        (_TAGS, {}),
        ([_TAGS, "null"], {"a": 7}),
        ({"type": "array", "items": {"type": "map", "values": _TAGS}}, [{"a": {"b": 1}}, {}]),
    ],
    ids=str,
)
def test_a_field_that_nobody_wants_is_stepped_over_whatever_it_is(kind: Any, value: Any) -> None:
    definition = record(("id", "long"), ("between", kind), ("last", "string"))
    wanted = topic_columns(avro(record(("id", "long"), ("last", "string"))), include_headers=False)
    columns = topic_columns(avro(definition), include_headers=False).select(wanted.arrow)
    values = [avro_bytes(definition, {"id": n, "between": value, "last": "x" * n}) for n in range(3)]
    assert read(avro(definition), [*values, None], columns) == [
        *[{"id": n, "last": "x" * n} for n in range(3)],
        {"id": None, "last": None},
    ]


@settings(max_examples=8)
@given(
    st.lists(_RECORDS, min_size=1, max_size=4),
    st.sets(st.sampled_from([each["name"] for each in EVERYTHING["fields"]])),
)
def test_any_choice_of_fields_is_read_as_among_all(records: list[dict[str, Any]], names: set[str]) -> None:
    values = [avro_bytes(EVERYTHING, each) for each in records]
    everything = topic_columns(avro(EVERYTHING), include_headers=False)
    columns = everything.select(pa.schema([everything.arrow.field(name) for name in [*sorted(names), "__topic"]]))
    expected = [{name: row[name] for name in sorted(names)} for row in read(avro(EVERYTHING), values)]
    assert read(avro(EVERYTHING), values, columns) == expected


@pytest.mark.parametrize("broken", [b"", b"\x02", b"\x02\x02\x02a", b"\x02\x02\x03a\x02\x00", b"\x02\x02\x14a\x02\x00"])
def test_a_broken_value_of_a_field_that_nobody_wants_names_its_message(broken: bytes) -> None:
    definition = record(("id", "long"), ("tags", _TAGS))
    everything = topic_columns(avro(definition), include_headers=False)
    columns = everything.select(pa.schema([everything.arrow.field("id")]))
    good = avro_bytes(definition, {"id": 1, "tags": {"a": 1}})
    with pytest.raises(MalformedEntryError, match="message 7:100:2:1 is not of the topic's schema"):
        read(avro(definition), [good, broken], columns)


@pytest.mark.parametrize("kind", [_PRICE, ["null", _PRICE]])
def test_a_decimal_of_more_digits_than_its_schema_says_names_its_message(kind: Any) -> None:
    definition = record(("a", kind))
    prefix = b"\x02" if isinstance(kind, list) else b""
    most, beyond = (10**10 - 1).to_bytes(5, "big"), (10**10).to_bytes(5, "big")
    assert read(avro(definition), [prefix + b"\x0a" + most]) == [{"a": Decimal("99999999.99")}]
    with pytest.raises(MalformedEntryError, match=r"message 7:100:2:1 .*: it has a decimal of more than 10 digits"):
        read(avro(definition), [prefix + b"\x0a" + most, prefix + b"\x0a" + beyond])


def test_logical_types_are_the_types_of_spark() -> None:
    definition = record(
        ("day", {"type": "int", "logicalType": "date"}),
        ("ms", {"type": "long", "logicalType": "timestamp-millis"}),
        ("us", {"type": "long", "logicalType": "timestamp-micros"}),
        ("local", {"type": "long", "logicalType": "local-timestamp-millis"}),
        ("time", {"type": "int", "logicalType": "time-millis"}),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
        ("id", {"type": "string", "logicalType": "uuid"}),
    )
    schema = avro(definition)
    assert topic_columns(schema, include_headers=False).ddl.split(", `__")[0] == (
        "`day` DATE, `ms` TIMESTAMP, `us` TIMESTAMP, `local` TIMESTAMP_NTZ, `time` INT, `price` DECIMAL(10, 2), "
        "`id` STRING"
    )
    moment = datetime(2026, 1, 2, 3, 4, 5, 6000, UTC)
    value = {
        "day": date(2026, 1, 2),
        "ms": moment,
        "us": moment.replace(microsecond=7),
        "local": moment.replace(tzinfo=None),
        "time": 5,
        "price": Decimal("-12.34"),
        "id": "c0ffee",
    }
    plain = record(
        *[(each["name"], each["type"]) for each in definition["fields"] if each["name"] not in ("time", "id")]
    )
    plain["fields"].insert(4, {"name": "time", "type": "int"})
    plain["fields"].append({"name": "id", "type": "string"})
    assert read(schema, [avro_bytes(plain, value), None]) == [value, dict.fromkeys(value)]


@pytest.mark.parametrize("broken", [b"", b"\x02", b"\x14abc", b"\x02a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"])
def test_a_value_that_is_not_of_the_schema_names_its_message(broken: bytes) -> None:
    definition = record(("a", "string"), ("b", "long"))
    good = avro_bytes(definition, {"a": "x", "b": 1})
    with pytest.raises(MalformedEntryError, match=r"message 7:100:2:1 is not of the topic's schema.*valueSchema=raw"):
        read(avro(definition), [good, broken, good])


def test_an_array_in_sized_blocks_is_read() -> None:
    definition = record(("a", {"type": "array", "items": "int"}))
    sized = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\x00"  # −2 items of 2 bytes, then one more.
    assert read(avro(definition), [sized, b"\x00"]) == [{"a": [1, 2, 3]}, {"a": []}]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (["int", "string"], "at a: a union of int, string"),
        ("null", "at a: .*always null"),
        (["null", {"type": "array", "items": "R"}], r"at a\[\]: record R contains itself"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50}, "at a: a decimal of 50 digits"),
    ],
)
def test_a_type_that_spark_does_not_have_is_refused_by_name(kind: Any, what: str) -> None:
    with pytest.raises(InvalidSchemaError, match=what):
        topic_columns(avro(record(("a", kind))), include_headers=False)


def test_a_schema_that_is_no_record_is_one_column() -> None:
    definition = {"type": "array", "items": "int"}
    assert read(avro(definition), [avro_bytes(definition, [1, 2])]) == [{"value": [1, 2]}]
