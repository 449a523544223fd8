"""How fast stored entries become Arrow batches, on one core: python -m bench.spark_decoding

Shapes:    uniform (all values of one size), varying (between half and one and a half), keyed (keys of one length),
           keyed-varying (keys of many lengths), properties (two each), unbatched. Batches are as the official clients
           make them by default: up to 1,000 messages or 128 KiB, sequence ids in every header.
Typed:     records of six fields, in Avro and in JSON, into typed columns.
Columns:   all of the default read schema, and value alone. Payload bytes only are counted in MB/s.
Measured:  CPU time of this process, so that other load on the machine counts little; the best of the rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from magnetar.schemas.avro.binary import encode_value
from magnetar.schemas.avro.parser import parse_schema
from magnetar.schemas.data import SchemaData, SchemaType
from magnetar.spark.decoding.columns import Columns, raw_columns, topic_columns
from magnetar.spark.decoding.decoder import EntryDecoder
from magnetar.spark.decoding.inputs import DecodeOptions, EntryRun
from magnetar.wire.pulsar.entry import broker_entry_header, encode_batched_message
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata

BATCH_MESSAGES = 1000
BATCH_BYTES = 128 * 1024
FIRST_SEQUENCE_ID = 1_000_000
RUN_ENTRIES = 32

Shape = Callable[[random.Random, int, SingleMessageMetadata], int]


def _uniform(_chance: random.Random, size: int, _metadata: SingleMessageMetadata) -> int:
    return size


def _varying(chance: random.Random, size: int, _metadata: SingleMessageMetadata) -> int:
    return chance.randint(size // 2, size * 3 // 2)


def _keyed(chance: random.Random, size: int, metadata: SingleMessageMetadata) -> int:
    metadata.partition_key = f"key-{chance.randrange(10**6):06}"
    return size


def _keyed_varying(chance: random.Random, size: int, metadata: SingleMessageMetadata) -> int:
    metadata.partition_key = f"key-{chance.randrange(10 ** chance.randint(1, 6))}"
    return _varying(chance, size, metadata)


def _properties(chance: random.Random, size: int, metadata: SingleMessageMetadata) -> int:
    metadata.properties.add(key="trace", value=f"{chance.randrange(10**6):06}")
    metadata.properties.add(key="origin", value="bench")
    return size


SHAPES: dict[str, Shape] = {
    "uniform": _uniform,
    "varying": _varying,
    "keyed": _keyed,
    "keyed-varying": _keyed_varying,
    "properties": _properties,
}


def batches(shape: Shape, size: int, rows: int) -> list[bytes]:
    chance = random.Random(1)
    per_batch = max(1, min(BATCH_MESSAGES, BATCH_BYTES // size))
    entries: list[bytes] = []
    for first in range(0, rows, per_batch):
        parts: list[bytes] = []
        for number in range(first, min(rows, first + per_batch)):
            metadata = SingleMessageMetadata(sequence_id=FIRST_SEQUENCE_ID + number)
            parts.append(encode_batched_message(metadata, chance.randbytes(shape(chance, size, metadata))))
        entries.append(_entry(b"".join(parts), first + len(parts) - 1, num_messages_in_batch=len(parts)))
    return entries


def unbatched(size: int, rows: int) -> list[bytes]:
    return [_entry(random.Random(number).randbytes(size), number) for number in range(rows)]


def _entry(payload: bytes, last: int, **fields: int) -> bytes:
    metadata = MessageMetadata(
        producer_name="standalone-0-1",
        sequence_id=FIRST_SEQUENCE_ID + last,
        publish_time=1_700_000_000_000 + last,
        uncompressed_size=len(payload),
        **fields,  # type: ignore[arg-type]
    )
    return broker_entry_header(last, 1_700_000_000_001) + with_checksum(metadata.SerializeToString(), payload)


FIELDS = [("id", "long"), ("name", "string"), ("price", "double"), ("count", "int"), ("is_new", "boolean")]
DEFINITION: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        *({"name": name, "type": kind} for name, kind in FIELDS),
        {"name": "note", "type": ["null", "string"]},
    ],
}


def typed(kind: SchemaType, rows: int) -> tuple[list[bytes], Columns, int]:
    """Entries, the columns of their schema, and the size of a value on average."""
    schema = SchemaData(kind, json.dumps(DEFINITION).encode())
    parsed = parse_schema(schema.data)
    values: list[bytes] = []
    for number in range(rows):
        note = None if number % 3 else f"note {number}"
        record = {"id": number, "name": f"name {number}", "price": number / 7, "count": number % 100, "is_new": True}
        record["note"] = note
        is_avro = kind is SchemaType.AVRO
        values.append(encode_value(parsed, record) if is_avro else json.dumps(record).encode())
    entries: list[bytes] = []
    for first in range(0, rows, BATCH_MESSAGES):
        chosen = values[first : first + BATCH_MESSAGES]
        parts = [
            encode_batched_message(SingleMessageMetadata(sequence_id=FIRST_SEQUENCE_ID + first + number), value)
            for number, value in enumerate(chosen)
        ]
        entries.append(_entry(b"".join(parts), first + len(parts) - 1, num_messages_in_batch=len(parts)))
    return entries, topic_columns(schema, include_headers=False), sum(map(len, values)) // rows


def decode(entries: list[bytes], columns: Columns) -> int:
    decoder = EntryDecoder(columns, DecodeOptions())
    rows = 0
    for first in range(0, len(entries), RUN_ENTRIES):
        run = EntryRun("persistent://public/default/bench", -1, 5, first, entries[first : first + RUN_ENTRIES], first)
        rows += sum(map(len, decoder.feed(run)))
    return rows + sum(map(len, decoder.finish()))


def measure(entries: list[bytes], columns: Columns, rows: int, rounds: int) -> float:
    """Rows per second of CPU."""
    rates: list[float] = []
    for _ in range(rounds):
        began = time.process_time()
        assert decode(entries, columns) == rows
        rates.append(rows / (time.process_time() - began))
    return max(rates)


def _columns(*, with_headers: bool) -> dict[str, Columns]:
    everything = raw_columns(include_headers=with_headers)
    value = everything.select(pa.schema([everything.arrow.field("value")]))
    return {"all": everything, "value": value}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="payload bytes for each shape")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    print(f"{'shape':<16}{'bytes':>6}  {'columns':<8}{'rows/s':>12}{'MB/s':>9}")
    for size in (100, 1024):
        rows = min(200_000, arguments.megabytes * 2**20 // size)
        for name in (*SHAPES, "unbatched"):
            if arguments.only in name:
                _print_shape(name, size, rows, arguments.rounds)
    for kind in (SchemaType.AVRO, SchemaType.JSON):
        if arguments.only in kind.name.lower():
            entries, columns, size = typed(kind, 50_000)
            _print_rate(kind.name.lower(), size, "all", measure(entries, columns, 50_000, arguments.rounds))


def _print_shape(name: str, size: int, rows: int, rounds: int) -> None:
    if name in SHAPES:
        entries = batches(SHAPES[name], size, rows)
    else:
        rows //= 10
        entries = unbatched(size, rows)
    for label, columns in _columns(with_headers=name == "properties").items():
        _print_rate(name, size, label, measure(entries, columns, rows, rounds))


def _print_rate(name: str, size: int, label: str, rate: float) -> None:
    print(f"{name:<16}{size:>6}  {label:<8}{rate:>12,.0f}{rate * size / 1e6:>9,.0f}", flush=True)


if __name__ == "__main__":
    main()
