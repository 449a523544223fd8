"""Values in the binary form, compared with fastavro and with what Apache wrote."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.errors import InvalidPolicyError, MalformedEntryError
from magnetar.schemas.avro.binary import decode_value, encode_value
from magnetar.schemas.avro.parser import parse_schema
from magnetar.schemas.avro.schema import is_same
from tests.unit.broker import golden

DOCUMENT = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "int", "type": "int"},
        {"name": "long", "type": "long"},
        {"name": "double", "type": "double"},
        {"name": "bytes", "type": "bytes"},
        {"name": "text", "type": ["null", "string"], "default": None},
        {"name": "number", "type": ["null", "int", "long", "string"]},
        {"name": "list", "type": {"type": "array", "items": "long"}},
        {"name": "map", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}},
        {"name": "fixed", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "next", "type": ["null", "All"], "default": None},
    ],
}
SCHEMA = parse_schema(json.dumps(DOCUMENT))
ORACLE = fastavro.parse_schema(DOCUMENT)

LONGS = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": LONGS,
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=300),
    "text": st.none() | TEXT,
    "number": st.none() | LONGS | TEXT,
    "list": st.lists(LONGS, max_size=5),
    "map": st.dictionaries(TEXT, st.none() | TEXT, max_size=4),
    "kind": st.sampled_from("ABC"),
    "fixed": st.binary(min_size=4, max_size=4),
}
VALUES = st.recursive(
    st.fixed_dictionaries(PLAIN | {"next": st.none()}),
    lambda inner: st.fixed_dictionaries(PLAIN | {"next": inner}),
    max_leaves=4,
)


@given(VALUES)
@settings(max_examples=200)
def test_what_we_write_fastavro_reads_and_we_read_what_it_writes(value: dict[str, Any]) -> None:
    ours = encode_value(SCHEMA, value)
    assert fastavro.schemaless_reader(io.BytesIO(ours), ORACLE, None) == value
    theirs = io.BytesIO()
    fastavro.schemaless_writer(theirs, ORACLE, value)
    assert decode_value(SCHEMA, theirs.getvalue()) == value
    assert decode_value(SCHEMA, ours) == value


@pytest.mark.parametrize("name", ["event default", "event ttl", "event full global"])
def test_events_of_apache_are_read_and_written_byte_for_byte(name: str) -> None:
    schema = parse_schema(golden.text("event schema"))
    value = decode_value(schema, golden.binary(name))
    assert encode_value(schema, value) == golden.binary(name)
    oracle = fastavro.parse_schema(golden.document("event schema"))
    assert fastavro.schemaless_reader(io.BytesIO(golden.binary(name)), oracle, None) == value


@given(st.binary(max_size=200))
def test_bytes_from_anybody_are_a_value_or_a_named_error(data: bytes) -> None:
    try:
        decode_value(SCHEMA, data)
    except MalformedEntryError:
        return


@given(VALUES, st.data())
def test_value_that_is_cut_off_is_an_error(value: dict[str, Any], data: st.DataObject) -> None:
    encoded = encode_value(SCHEMA, value)
    with pytest.raises(MalformedEntryError):
        decode_value(SCHEMA, encoded[: data.draw(st.integers(0, len(encoded) - 1))])


def test_bytes_after_a_value_are_an_error() -> None:
    with pytest.raises(MalformedEntryError, match="1 bytes are left"):
        decode_value(parse_schema('"int"'), b"\x02\x00")


def test_array_of_nothings_has_a_limit() -> None:
    nulls = parse_schema('{"type":"array","items":"null"}')
    assert decode_value(nulls, b"\x06\x00") == [None, None, None]
    with pytest.raises(MalformedEntryError, match="items"):
        decode_value(nulls, b"\xfe\xff\xff\xff\x0f\x00")


def test_block_with_its_size_is_read() -> None:
    numbers = parse_schema('{"type":"array","items":"int"}')
    assert decode_value(numbers, b"\x03\x04\x02\x04\x00") == [1, 2]


def test_record_inside_itself_without_end_is_an_error() -> None:
    chain = parse_schema('{"type":"record","name":"L","fields":[{"name":"next","type":["null","L"]}]}')
    with pytest.raises(MalformedEntryError, match="deeper"):
        decode_value(chain, b"\x02" * 10_000 + b"\x00")


@pytest.mark.parametrize(
    ("schema", "value"),
    [('"int"', 2**31), ('"int"', "1"), ('"int"', True), ('"string"', b"x"), ('"boolean"', 1), ('["null","int"]', "x")],
)
def test_value_of_another_type_is_refused(schema: str, value: object) -> None:
    with pytest.raises(InvalidPolicyError):
        encode_value(parse_schema(schema), value)


# --- equality ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('"int"', '{"type":"int"}', True),
        ('"int"', '{"type":"int","logicalType":"date"}', False),
        ('{"type":"enum","name":"E","symbols":["A"],"doc":"x"}', '{"name":"E","symbols":["A"],"type":"enum"}', True),
        ('{"type":"enum","name":"a.E","symbols":[]}', '{"type":"enum","name":"E","namespace":"a","symbols":[]}', True),
        ('{"type":"enum","name":"E","symbols":["A"]}', '{"type":"enum","name":"E","symbols":["B"]}', False),
        ('["null","int"]', '["int","null"]', False),
    ],
)
def test_schemas_are_the_same_if_avro_takes_them_for_the_same(one: str, other: str, same: bool) -> None:
    assert is_same(parse_schema(one), parse_schema(other)) is same


def test_default_null_is_not_the_same_as_no_default() -> None:
    field = '{"type":"record","name":"R","fields":[{"name":"a","type":["null","int"]%s}]}'
    assert not is_same(parse_schema(field % ""), parse_schema(field % ',"default":null'))
    assert is_same(parse_schema(field % ""), parse_schema(field % ',"doc":"x"'))
