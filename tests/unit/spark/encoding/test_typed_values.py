"""Typed columns become Avro records and JSON objects that others read as the same rows."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.errors import ConfigError
from magnetar.spark.encoding.layout import Layout
from magnetar.spark.encoding.typed_values import avro_values, json_values, record_definition

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
INT64 = st.integers(-(2**63), 2**63 - 1)
ADDRESS = pa.struct([pa.field("city", pa.string()), pa.field("number", pa.int32(), nullable=False)])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("small", pa.int16()),
        pa.field("share", pa.float64()),
        pa.field("is_new", pa.bool_()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("address", ADDRESS),
        pa.field("deep", pa.list_(pa.list_(pa.int32()))),
    ]
)
ROW = st.fixed_dictionaries(
    {
        "id": INT64,
        "name": st.none() | TEXT,
        "small": st.none() | st.integers(-(2**15), 2**15 - 1),
        "share": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "is_new": st.none() | st.booleans(),
        "tags": st.none() | st.lists(st.none() | TEXT, max_size=3),
        "counts": st.none() | st.dictionaries(TEXT, st.none() | INT64, max_size=3),
        "address": st.none() | st.fixed_dictionaries({"city": st.none() | TEXT, "number": st.integers(0, 9)}),
        "deep": st.none() | st.lists(st.none() | st.lists(st.integers(0, 300), max_size=3), max_size=3),
    }
)


def batch_of(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{**row, "counts": list(row["counts"].items()) if row.get("counts") is not None else None} for row in rows]
        if "counts" in schema.names
        else rows,
        schema=schema,
    )


def from_avro(batch: pa.RecordBatch) -> list[Any]:
    definition = fastavro.parse_schema(json.loads(record_definition(batch.schema)))
    encoded = avro_values(batch, Layout(fields=batch.schema)).to_pylist()
    return [_read(each, definition) for each in encoded]


def _read(encoded: bytes, definition: Any) -> Any:
    stream = io.BytesIO(encoded)
    row = fastavro.schemaless_reader(stream, definition, None)
    assert not stream.read()
    return row


def from_json(batch: pa.RecordBatch) -> list[Any]:
    return [json.loads(each) for each in json_values(batch, Layout(fields=batch.schema)).to_pylist()]


@given(rows=st.lists(ROW, min_size=1, max_size=8), start=st.integers(0, 3))
@settings(max_examples=25)
def test_rows_come_back_from_avro_and_json_as_they_were(rows: list[dict[str, Any]], start: int) -> None:
    batch = batch_of(rows).slice(start)

    if batch.num_rows:
        assert from_avro(batch) == rows[start:]
        assert from_json(batch) == rows[start:]


def test_dates_times_decimals_and_bytes_carry_their_logical_types() -> None:
    at = datetime(2026, 11, 16, 12, 30, 0, 123_456, tzinfo=UTC)
    row = {"day": date(1969, 12, 30), "at": at, "price": Decimal("-12.34"), "raw": b"\xff\x00", "half": 0.5}
    schema = pa.schema(
        [
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("price", pa.decimal128(10, 2)),
            ("raw", pa.binary()),
            ("half", pa.float32()),
        ]
    )
    batch = pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], schema=schema)

    assert from_avro(batch) == [row, dict.fromkeys(row)]
    micros = int(at.timestamp()) * 1_000_000 + 123_456
    assert from_json(batch) == [
        {"day": -2, "at": micros, "price": -12.34, "raw": "/wA=", "half": 0.5},
        dict.fromkeys(row),
    ]


def test_what_is_no_number_in_json_is_a_string() -> None:
    batch = pa.record_batch({"x": [float("nan"), float("inf"), float("-inf"), 1.5, None]})

    assert [row["x"] for row in from_json(batch)] == ["NaN", "Infinity", "-Infinity", 1.5, None]


@pytest.mark.parametrize(
    ("column", "kind", "words"),
    [
        ("a b", pa.int32(), "rename"),
        ("when", pa.duration("us"), "cast"),
        ("m", pa.map_(pa.int32(), pa.int32()), "cast"),
    ],
)
def test_columns_that_no_schema_can_have_are_refused_with_what_to_do(column: str, kind: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        record_definition(pa.schema([(column, kind)]))
