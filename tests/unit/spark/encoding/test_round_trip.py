"""What the sink writes is what the source reads: the encoder's entries through the decoder give the same rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from magnetar.schemas.data import SchemaData, SchemaType
from magnetar.spark.decoding.columns import Columns, raw_columns, topic_columns
from magnetar.spark.decoding.decoder import EntryDecoder
from magnetar.spark.decoding.inputs import DecodeOptions, EntryRun
from magnetar.spark.encoding.encoder import Entry, EntryEncoder, TaskNumbers
from magnetar.spark.encoding.layout import Layout, plan_layout
from magnetar.spark.encoding.routing import Router, Target
from magnetar.spark.encoding.typed_values import avro_values, json_values, record_definition
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import LZ4
from tests.unit.spark.encoding.decoded import SEAL, TOPIC, encode

TIME = pa.timestamp("us", tz="UTC")
AT = datetime(2026, 11, 16, 12, 30, 0, 123_456, tzinfo=UTC)


def decode(entries: list[Entry], columns: Columns) -> pa.Table:
    decoder = EntryDecoder(columns, DecodeOptions())
    run = EntryRun(TOPIC, -1, 1, 0, [entry.body for entry in entries])
    return pa.Table.from_batches([*decoder.feed(run), *decoder.finish()], columns.arrow)


@pytest.mark.parametrize("entry_bytes", [1, 3_000, 100_000])
def test_plain_rows_come_back(entry_bytes: int) -> None:
    rows = 500
    batch = pa.record_batch(
        {
            "key": pa.array([None if n % 3 == 0 else b"k%d" % n if n % 3 == 1 else b"\xff%d" % n for n in range(rows)]),
            "value": pa.array([None if n % 11 == 0 else b"v" * (n % 300) for n in range(rows)]),
            "event_time": pa.array(
                [None if n % 5 == 0 else 1_700_000_000_000_000 + n * 1000 for n in range(rows)], TIME
            ),
            "properties": pa.array([[("n", str(n))] * (n % 2) for n in range(rows)], pa.map_(pa.string(), pa.string())),
        }
    )

    found = decode(
        encode([batch], dataclasses.replace(SEAL, entry_bytes=entry_bytes)), raw_columns(include_headers=True)
    )

    for name in ("key", "value", "event_time"):
        assert found[name].to_pylist() == batch.column(name).to_pylist()
    assert [list(each or []) for each in found["properties"].to_pylist()] == batch.column("properties").to_pylist()
    assert found["index"].to_pylist() == list(range(rows))
    assert set(found["producer"].to_pylist()) == {"spark/query"}


def test_a_chunked_value_comes_back_compressed_or_not() -> None:
    value = bytes(number * 31 % 253 for number in range(50_000))
    batch = pa.record_batch({"value": [b"a", value, b"b"], "key": ["k", "k", None]})
    for seal in (SEAL, dataclasses.replace(SEAL, compression=LZ4)):
        found = decode(
            encode([batch], dataclasses.replace(seal, message_bytes_max=8_000)), raw_columns(include_headers=False)
        )

        assert found["value"].to_pylist() == [b"a", value, b"b"]
        assert found["key"].to_pylist() == [b"k", b"k", None]


def test_event_times_come_back_of_chunks_and_of_others() -> None:
    times = pa.array([1_000, 86_400_000_000, None], TIME)
    batch = pa.record_batch({"value": [b"a", b"b" * 20_000, b"c"], "event_time": times})

    found = decode(
        encode([batch], dataclasses.replace(SEAL, message_bytes_max=8_000)), raw_columns(include_headers=False)
    )

    assert found["event_time"].to_pylist() == times.to_pylist()


TYPED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("small", pa.int16()),
        ("half", pa.float32()),
        ("share", pa.float64()),
        ("is_new", pa.bool_()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", TIME),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(12, 3)),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("address", pa.struct([("city", pa.string()), ("number", pa.int32())])),
    ]
)
ROWS = [
    {
        "id": number,
        "name": f'n "{number}"\n\\ ü 🔑',
        "small": -number,
        "half": number / 2,
        "share": number / 3,
        "is_new": number % 2 == 0,
        "raw": bytes([255, 0, number]),
        "day": date(1969, 12, 1 + number),
        "at": AT,
        "local": AT.replace(tzinfo=None),
        "price": Decimal(f"-{number}.125"),
        "tags": ["a", None, "c"][: number % 4],
        "counts": [("one", number), ("none", None)],
        "address": {"city": None, "number": number},
    }
    for number in range(9)
] + [{name: 7 if name == "id" else None for name in TYPED.names}]


@pytest.mark.parametrize(
    ("kind", "values_of"), [(SchemaType.AVRO, avro_values), (SchemaType.JSON, json_values)], ids=["avro", "json"]
)
def test_typed_rows_come_back(kind: SchemaType, values_of: Callable[[pa.RecordBatch, Layout], pa.Array]) -> None:
    batch = pa.RecordBatch.from_pylist(ROWS, schema=TYPED)
    layout = plan_layout(TYPED, is_typed=True)
    router = Router(lambda name: Target(name, 0, bytes(8)), TOPIC, 0, 1_000)
    numbers = TaskNumbers(0, 0)
    encoder = EntryEncoder(layout, values_of, router, SEAL, lambda: numbers)
    schema = SchemaData(kind, record_definition(layout.fields).encode(), {})

    found = decode([*encoder.encode(batch), *encoder.finish()], topic_columns(schema, include_headers=False))

    assert found.select(TYPED.names).to_pylist() == batch.to_pylist()
