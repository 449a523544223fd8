"""Entries back to plain values, by the codecs of wire/pulsar."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from magnetar.spark.encoding.encoder import Entry, EntryEncoder, Seal, TaskNumbers
from magnetar.spark.encoding.layout import plan_layout, read_values
from magnetar.spark.encoding.routing import Router, Target
from magnetar.wire.compression import decompress
from magnetar.wire.pulsar.entry import messages_of_batch, parse_entry
from magnetar.wire.pulsar.frames import verify_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata


@dataclass(frozen=True)
class Decoded:
    value: bytes | None
    key: bytes | None = None
    event_ms: int = 0
    properties: dict[str, str] = field(default_factory=dict)


def decode(entries: Iterable[Entry]) -> dict[str, list[Decoded]]:
    """Destination → its messages in order. Chunks are joined."""
    found: dict[str, list[Decoded]] = {}
    chunks: dict[str, bytes] = {}
    for entry in entries:
        assert verify_checksum(entry.body)
        head = parse_entry(entry.body)
        metadata, payload = head.metadata, entry.body[head.payload_offset :]
        assert metadata.sequence_id == entry.sequence_id
        if metadata.num_chunks_from_msg > 1:
            chunks[metadata.uuid] = payload = chunks.get(metadata.uuid, b"") + payload
            if metadata.chunk_id < metadata.num_chunks_from_msg - 1:
                assert entry.rows == 0
                continue
            assert len(payload) == metadata.total_chunk_msg_size
        payload = decompress(metadata.compression, payload, metadata.uncompressed_size, 2**31)
        found.setdefault(entry.topic, []).extend(_messages(entry, metadata, payload))
    return found


def _messages(entry: Entry, metadata: MessageMetadata, payload: bytes) -> list[Decoded]:
    if not metadata.HasField("num_messages_in_batch"):
        assert entry.rows == 1
        return [_decoded(metadata, payload)]
    assert entry.rows == metadata.num_messages_in_batch
    batched = list(messages_of_batch(payload, entry.rows))
    assert batched[0].metadata.partition_key == metadata.partition_key
    return [_decoded(single, bytes(body)) for single, body in batched]


def _decoded(metadata: MessageMetadata | SingleMessageMetadata, payload: bytes) -> Decoded:
    key = metadata.partition_key.encode() if metadata.HasField("partition_key") else None
    if metadata.partition_key_b64_encoded:
        key = base64.b64decode(key or b"")
    properties = {pair.key: pair.value for pair in metadata.properties}
    return Decoded(None if metadata.null_value else payload, key, metadata.event_time, properties)


SEAL = Seal(producer_name="spark/query", publish_ms=1_700_000_000_000)
TOPIC = "persistent://public/default/out"


def make_encoder(schema: pa.Schema, seal: Seal = SEAL, *, partitions: int = 0, topic: str = TOPIC) -> EntryEncoder:
    layout = plan_layout(schema, is_typed=False)
    router = Router(lambda name: Target(name, partitions), topic, start=0, turn_bytes=seal.entry_bytes)
    numbers = TaskNumbers(epoch=3, partition=5)
    return EntryEncoder(layout, read_values, router, seal, lambda: numbers)


def encode(
    batches: Iterable[pa.RecordBatch], seal: Seal = SEAL, *, partitions: int = 0, topic: str = TOPIC
) -> list[Entry]:
    given = list(batches)
    encoder = make_encoder(given[0].schema, seal, partitions=partitions, topic=topic)
    return [*(entry for batch in given for entry in encoder.encode(batch)), *encoder.finish()]
