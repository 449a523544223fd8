"""A DataFrame has what the official client delivers: every schema kind it knows, every compression, batched, single
and chunked messages.

Raw:       what `pulsar-client` received is put into the same form as the rows, and compared whole.
Typed:     `message.value()` of a consumer with the schema is compared with the typed columns. Numbers and pairs, which
           the Python client has no schemas for, are written with the registered schema's own encoding.
"""

from __future__ import annotations

import datetime as dt
import enum
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    BytesSchema,
    Double,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    ProtobufNativeSchema,
    Record,
    String,
    StringSchema,
)

from interop.spark.suite.conftest import World

CODECS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}
BATCHED = {"batching_enabled": True, "batching_max_messages": 30, "batching_max_publish_delay_ms": 5}
LARGE = 12 * 2**20  # Three chunks: noise does not become smaller.
PATIENCE_MS = 30_000


# --- raw --------------------------------------------------------------------------------------------------------------


def _fill(world: World, topic: str, codec: str) -> int:
    """Messages of many kinds; returns how many."""
    plain: dict[str, Any] = {"compression_type": CODECS[codec], "block_if_queue_full": True}
    batched = world.client.create_producer(topic, **plain, **BATCHED)
    for number in range(90):  # Uniform in size at first, then of many sizes and fields.
        varying: dict[str, Any] = {}
        if number >= 45:
            varying = {
                "partition_key": "k" * (number % 7) or None,
                "properties": {f"p{n}": str(number) for n in range(number % 3)},
                "event_timestamp": 1_700_000_000_000 + number if number % 2 else None,
            }
        size = 100 if number < 45 else number * 3 % 200
        batched.send_async(bytes([number]) * size, None, **varying)
    batched.flush()
    batched.close()
    single = world.client.create_producer(topic, **plain, batching_enabled=False)
    for number in range(10):
        single.send(b"single %d" % number, partition_key=f"s{number}", properties={"n": str(number)})
    single.close()
    chunked = world.client.create_producer(topic, **plain, batching_enabled=False, chunking_enabled=True)
    chunked.send(
        random.Random(1).randbytes(LARGE), partition_key="large", properties={"large": "yes"}, event_timestamp=7
    )
    chunked.close()
    return 101


def _by_the_client(world: World, topic: str, count: int) -> list[dict[str, Any]]:
    consumer = world.client.subscribe(topic, "check", initial_position=pulsar.InitialPosition.Earliest)
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=PATIENCE_MS)
        consumer.acknowledge(message)
        identity = message.message_id()
        found.append(
            {
                "key": message.partition_key().encode(),
                "value": message.data(),
                "topic": message.topic_name(),
                "id": (identity.ledger_id(), identity.entry_id(), max(identity.batch_index(), 0)),
                "publish_ms": message.publish_timestamp(),
                "event_ms": message.event_timestamp() or None,
                "producer": message.producer_name(),
                "properties": message.properties(),
            }
        )
    consumer.close()
    return found


def _by_spark(frame: Any) -> list[dict[str, Any]]:
    found = []
    for row in frame.orderBy("index").collect():
        ledger_id, entry_id, _, batch_index = map(int, row.message_id.split(":"))
        found.append(
            {
                "key": bytes(row.key or b""),  # The Python client makes no difference between none and empty.
                "value": bytes(row.value),
                "topic": row.topic,
                "id": (ledger_id, entry_id, max(batch_index, 0)),
                "publish_ms": row.publish_ms,
                "event_ms": row.event_ms,
                "producer": row.producer,
                "properties": dict(row.properties),
            }
        )
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_raw_rows_are_what_the_client_receives(world: World, codec: str) -> None:
    topic = world.new_topic()
    count = _fill(world, topic, codec)
    frame = world.read(topic=topic, includeHeaders="true", minPartitions="3").selectExpr(
        "*", "unix_millis(publish_time) AS publish_ms", "unix_millis(event_time) AS event_ms"
    )
    assert _by_spark(frame) == _by_the_client(world, topic, count)


def test_a_broker_and_the_bookies_give_the_same_rows_of_every_kind(world: World) -> None:
    topic = world.new_topic()
    count = _fill(world, topic, "zstd")
    frames = [
        world.read(topic=topic, includeHeaders="true", readVia=via).orderBy("index").collect()
        for via in ("bookie", "broker")
    ]
    assert len(frames[0]) == count
    assert frames[0] == frames[1]


# --- typed ------------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "RED"
    BLUE = "BLUE"


class Inner(Record):
    x = Double()
    name = String()


class Everything(Record):
    flag = Boolean()
    small = Integer()
    large = Long()
    half = Float()
    full = Double()
    text = String()
    colour = Colour
    names = Array(String())
    sizes = Map(Long())
    inner = Inner()


def _record(number: int) -> Everything:
    return Everything(
        flag=number % 2 == 0,
        small=-number,
        large=2**40 + number,
        half=number / 4,
        full=number / 8,
        text=f'line\nbreak "{number}" ü',
        colour=Colour.BLUE if number % 3 else Colour.RED,
        names=[f"n{n}" for n in range(number % 4)],
        sizes={f"k{n}": n for n in range(number % 3)},
        inner=Inner(x=number * 1.5, name="in"),
    )


def _plain(value: Any) -> Any:
    """What the client decoded, and what Spark did, in the same form."""
    if isinstance(value, enum.Enum):
        return value.name
    if hasattr(value, "asDict"):
        return _plain(value.asDict())
    if isinstance(value, Record):
        return {name: _plain(getattr(value, name)) for name in value._fields}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _send(world: World, topic: str, schema: Any, values: list[Any]) -> None:
    """Some in batches, the rest one by one."""
    half = len(values) // 2
    for part, how in ((values[:half], BATCHED), (values[half:], {"batching_enabled": False})):
        producer = world.client.create_producer(topic, schema=schema, block_if_queue_full=True, **how)
        for value in part:
            producer.send_async(value, None)
        producer.flush()
        producer.close()


def _received(world: World, topic: str, schema: Any, count: int) -> list[Any]:
    consumer = world.client.subscribe(topic, "check", schema=schema, initial_position=pulsar.InitialPosition.Earliest)
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=PATIENCE_MS)
        consumer.acknowledge(message)
        found.append(_plain(message.value()))
    consumer.close()
    return found


def _typed_rows(world: World, topic: str) -> list[dict[str, Any]]:
    rows = world.read(topic=topic, valueSchema="topic").orderBy("__index").collect()
    return [{name: _plain(value) for name, value in row.asDict().items() if not name.startswith("__")} for row in rows]


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_records_are_what_the_client_decodes(world: World, kind: Callable[[Any], Any]) -> None:
    topic = world.new_topic()
    records = [_record(number) for number in range(40)]
    _send(world, topic, kind(Everything), records)
    assert _typed_rows(world, topic) == _received(world, topic, kind(Everything), len(records))


@pytest.mark.parametrize("schema", [StringSchema(), BytesSchema()], ids=str)
def test_texts_and_bytes_are_what_the_client_decodes(world: World, schema: Any) -> None:
    topic = world.new_topic()
    values = [f"text {number} ü" for number in range(30)] + [""]
    _send(world, topic, schema, values if isinstance(schema, StringSchema) else [each.encode() for each in values])
    received = _received(world, topic, schema, len(values))
    if isinstance(schema, StringSchema):  # A topic of bytes has no schema at all.
        assert _typed_rows(world, topic) == [{"value": value} for value in received]
    else:
        assert [bytes(row.value) for row in world.read(topic=topic).orderBy("index").collect()] == received


class OldRecord(Record):
    a = Integer(required=True)
    gone = String(required_default=True)


class NewRecord(Record):
    a = Integer(required=True)
    b = String(default="none", required_default=True)


def test_messages_of_an_older_schema_are_what_the_client_makes_of_them(world: World) -> None:
    topic = world.new_topic()
    _send(world, topic, AvroSchema(OldRecord), [OldRecord(a=number, gone="x") for number in range(6)])
    _send(world, topic, AvroSchema(NewRecord), [NewRecord(a=number, b="new") for number in range(6)])
    assert _typed_rows(world, topic) == _received(world, topic, AvroSchema(NewRecord), 12)


MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, dt.UTC)
MOMENT_MS = struct.pack(">q", round(MOMENT.timestamp() * 1000))
DAY = struct.pack(">q", (MOMENT.date() - dt.date(1970, 1, 1)).days)
TIME_OF_DAY = (3 * 3600 + 4 * 60 + 5) * 10**9 + 678_000_000
NUMBERS: dict[str, list[tuple[bytes, Any]]] = {
    "BOOLEAN": [(b"\1", True), (b"\0", False)],
    "INT8": [(b"\x80", -128), (b"\x7f", 127)],
    "INT16": [(struct.pack(">h", -(2**15)), -(2**15))],
    "INT32": [(struct.pack(">i", -(2**31)), -(2**31))],
    "INT64": [(struct.pack(">q", -(2**63)), -(2**63))],
    "FLOAT": [(struct.pack(">f", -0.25), -0.25)],
    "DOUBLE": [(struct.pack(">d", -1e300), -1e300)],
    "DATE": [(MOMENT_MS, MOMENT)],
    "TIME": [(MOMENT_MS, MOMENT)],
    "TIMESTAMP": [(MOMENT_MS, MOMENT)],
    "INSTANT": [(struct.pack(">qi", int(MOMENT.timestamp()), 678_000_999), MOMENT)],
    "LOCAL_DATE": [(DAY, MOMENT.date())],
    "LOCAL_TIME": [(struct.pack(">q", TIME_OF_DAY), TIME_OF_DAY)],
    "LOCAL_DATE_TIME": [(DAY + struct.pack(">q", TIME_OF_DAY), MOMENT.replace(tzinfo=None))],
}
"""As Pulsar's Java client encodes them."""


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_and_times_are_what_was_written(world: World, kind: str) -> None:
    topic = world.new_topic()
    _register(world, topic, {"type": kind, "schema": "", "properties": {}})
    _send(world, topic, BytesSchema(), [encoded for encoded, _ in NUMBERS[kind]])
    found = [row["value"] for row in _typed_rows(world, topic)]
    expected = [value for _, value in NUMBERS[kind]]
    assert [_aware(value) if kind != "LOCAL_DATE_TIME" else value for value in found] == expected


def test_protobuf_messages_stay_bytes(world: World) -> None:
    topic = world.new_topic()
    values = [Timestamp(seconds=number) for number in range(4)]
    _send(world, topic, ProtobufNativeSchema(Timestamp), values)
    assert [Timestamp.FromString(bytes(row["value"])) for row in _typed_rows(world, topic)] == values


def _aware(value: Any) -> Any:
    """Spark hands out local times without a zone."""
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_pairs_are_two_columns(world: World, encoding: str) -> None:
    topic = world.new_topic()
    properties = {
        "key.schema.name": "k",
        "key.schema.type": "STRING",
        "key.schema.properties": "{}",
        "value.schema.name": "v",
        "value.schema.type": "JSON",
        "value.schema.properties": "{}",
        "kv.encoding.type": encoding,
    }
    value_schema = {"type": "record", "name": "V", "fields": [{"name": "n", "type": "long"}]}
    both = json.dumps({"key": "", "value": value_schema})
    _register(world, topic, {"type": "KEY_VALUE", "schema": both, "properties": properties})
    producer = world.client.create_producer(topic)
    for number in range(5):
        key, value = b"key %d" % number, b'{"n": %d}' % number
        if encoding == "INLINE":
            producer.send(struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value)
        else:
            producer.send(value, partition_key=key.decode())
    producer.close()
    assert _typed_rows(world, topic) == [{"key": f"key {n}", "value": {"n": n}} for n in range(5)]


def _register(world: World, topic: str, schema: dict[str, Any]) -> None:
    path = topic.removeprefix("persistent://")
    world.admin("POST", f"/admin/v2/schemas/{path}/schema", json.dumps(schema))


# --- encrypted --------------------------------------------------------------------------------------------------------


def test_encrypted_messages_are_refused_unless_wanted_raw(
    world: World, tmp_path: Path, refused: Callable[..., str]
) -> None:
    topic = world.new_topic()
    public, private = _key_pair(tmp_path)
    producer = world.client.create_producer(
        topic, encryption_key="key", crypto_key_reader=pulsar.CryptoKeyReader(str(public), str(private))
    )
    producer.send(b"secret")
    producer.close()
    text = refused(lambda: world.read(topic=topic).collect())
    assert topic in text
    assert "encrypted=raw" in text
    (row,) = world.read(topic=topic, encrypted="raw").collect()
    assert bytes(row.value) != b"secret"


def _key_pair(directory: Path) -> tuple[Path, Path]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = directory / "private.pem", directory / "public.pem"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return public, private
