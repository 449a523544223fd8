"""The records that every client writes and reads: shapes of messages, and what the mapping between protocols makes.

A record is the same for all clients of Kafka. A Pulsar client sees it as docs/kafka.md says: `as_pulsar_sees` and
`as_kafka_sees` are that table, written a second time, without the product's code.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

FIRST_MS = 1_700_000_000_000
CODECS = ("gzip", "snappy", "lz4", "zstd")
LARGE_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Record:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Records that are written in one go."""

    name: str
    records: tuple[Record, ...]
    codec: str = "none"
    is_single: bool = False
    """Each record is a batch of its own; otherwise they are batches as large as the client makes them."""


def _record(number: int, **fields: object) -> Record:
    given: dict[str, object] = {"key": None, "value": b"value %d" % number, "headers": (), **fields}
    return Record(**given, timestamp=FIRST_MS + number)  # type: ignore[arg-type]


_HEADERS = (("text", b"1"), ("null", None), ("bytes", b"\xff\x00"), ("empty", b""))
_FULL = [_record(number, key=b"key %d" % (number % 3), headers=(("h", b"%d" % number),)) for number in range(50)]
_KEYS = [_record(1, key=b"text"), _record(2, key=b"\xff\x00\xfe"), _record(3, key=b"")]

SHAPES = (
    Shape("plain", tuple(_record(number) for number in range(10))),
    Shape("keyed", tuple(_KEYS)),
    Shape("headers", (_record(1, headers=_HEADERS), _record(2, key=b"k", headers=(("only", b"x" * 300),)))),
    Shape("null", (_record(1, key=b"gone", value=None), _record(2, key=b"empty", value=b""))),
    *(Shape(codec, tuple(_FULL), codec=codec) for codec in CODECS),
    Shape("batch of 1", tuple(_record(number) for number in range(3)), is_single=True),
    Shape("batch of 1,000", tuple(_record(number, key=b"k") for number in range(LARGE_BATCH))),
)
WITHOUT_NULL_HEADERS = tuple(
    Shape("headers", (_record(1, headers=(("text", b"1"), ("bytes", b"\xff\x00"), ("empty", b""))),))
    if shape.name == "headers"
    else shape
    for shape in SHAPES
)
"""For kafka-python, whose producer refuses a header without a value."""
PULSAR_SHAPES = (
    Shape("plain", SHAPES[0].records),
    Shape("keyed", (_KEYS[0],)),
    Shape(
        "headers", (_record(1, headers=(("text", b"1"), ("empty", b""))), _record(2, key=b"k", headers=(("a", b"b"),)))
    ),
    *(Shape(codec, tuple(_FULL), codec=codec) for codec in CODECS),
    *SHAPES[-2:],
)
"""What its Python client can write: text as key and headers, and no null."""


@dataclass(frozen=True, slots=True)
class PulsarView:
    """What Pulsar's Python client tells of a message."""

    key: str
    data: bytes
    is_null: bool
    properties: tuple[tuple[str, str], ...]
    event_time: int


def as_pulsar_sees(record: Record) -> PulsarView:
    properties: dict[str, str] = {}
    encoded, nulls = [], []
    for name, value in record.headers:
        if value is None:
            nulls.append(name)
        properties[name], is_encoded = _text(value or b"")
        if is_encoded:
            encoded.append(name)
    if encoded:
        properties["kafka.b64"] = ",".join(encoded)
    if nulls:
        properties["kafka.null"] = ",".join(nulls)
    return PulsarView(
        key=_text(record.key or b"")[0],
        data=record.value or b"",
        is_null=record.value is None,
        properties=tuple(sorted(properties.items())),
        event_time=record.timestamp,
    )


def _text(value: bytes) -> tuple[str, bool]:
    try:
        return value.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(value).decode(), True


def as_kafka_sees(record: Record) -> Record:
    """Properties have no order."""
    return Record(
        record.key, record.value, tuple(sorted(record.headers, key=lambda header: header[0])), record.timestamp
    )
