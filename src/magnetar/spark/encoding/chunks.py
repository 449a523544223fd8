"""A message that is larger than the broker takes: chunks, each an entry of its own, as Pulsar's producers make them.

Chunks:    the payload is compressed as a whole, then cut. Each has all of the message's metadata, its own number, how
           many there are, the size of all, and one id for all. None of them is a batch.
Sequence:  each takes a sequence id of its own, so that each is known again by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from magnetar.errors import SinkDataError
from magnetar.spark.encoding.entries import Entry, Numbers, Seal, seal_payload, start_metadata
from magnetar.spark.encoding.messages import Messages
from magnetar.spark.encoding.properties import properties_of_row
from magnetar.wire.pulsar.compression import compress
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import NONE, KeyValue, MessageMetadata

_CHUNK_FIELDS_BYTES = 256  # More than the fields take that only chunks have, without the producer's name in the id.
_UNSIGNED: Final = 2**64 - 1


def chunk_entries(
    topic: str, seal: Seal, schema_version: bytes, numbers: Numbers, messages: Messages, row: int
) -> Iterator[Entry]:
    """The entries of one row."""
    metadata = _describe(start_metadata(seal, schema_version, 0), messages, row)
    payload = _payload(messages.values[row], seal, metadata)
    room = seal.message_bytes_max - metadata.ByteSize() - len(seal.producer_name) - _CHUNK_FIELDS_BYTES
    if room <= 0:
        raise SinkDataError(f"key and properties of a message have {metadata.ByteSize()} bytes: they must fit an entry")
    count = max(1, -(-len(payload) // room))
    for chunk in range(count):
        metadata.sequence_id, _ = numbers.take(1)
        if count > 1:
            _mark_chunk(metadata, chunk, count, len(payload))
        piece = payload[chunk * room : (chunk + 1) * room]
        rows = 1 if chunk == count - 1 else 0
        yield Entry(topic, seal_payload(metadata, [piece]), rows, metadata.sequence_id, metadata.sequence_id)


def _mark_chunk(metadata: MessageMetadata, chunk: int, count: int, total: int) -> None:
    if not chunk:
        metadata.uuid = f"{metadata.producer_name}-{metadata.sequence_id}"
    metadata.chunk_id = chunk
    metadata.num_chunks_from_msg = count
    metadata.total_chunk_msg_size = total


def _payload(value: pa.Scalar, seal: Seal, metadata: MessageMetadata) -> memoryview:
    buffer = value.as_buffer()
    payload = memoryview(b"" if buffer is None else buffer)
    metadata.uncompressed_size = len(payload)
    if seal.compression == NONE:
        return payload
    metadata.compression = seal.compression  # type: ignore[assignment]  # A number of the enum.
    return memoryview(compress(seal.compression, payload))


def _describe(metadata: MessageMetadata, messages: Messages, row: int) -> MessageMetadata:
    if messages.properties is not None:
        pairs = properties_of_row(messages.properties, row)
        metadata.properties.extend(KeyValue(key=key, value=value) for key, value in pairs.items())
    key = messages.key_of(row)
    if key is not None:
        metadata.partition_key = key.text
        if key.is_base64:
            metadata.partition_key_b64_encoded = True
    event_ms = None if messages.event_ms is None else messages.event_ms[row].as_py()
    if event_ms:
        metadata.event_time = event_ms & _UNSIGNED  # A time before 1970 is negative: as Java's clients write it.
    if not messages.values[row].is_valid:
        metadata.null_value = True
    return metadata
