"""Entries: a run of encoded messages with the metadata of their batch before them, as a producer sends it.

Order:     an entry takes messages until the next one would exceed `entry_bytes`, whatever batches they came in: the
           same rows are cut in the same way again. An entry that is not full waits, and is copied out of its arrays so
           that a few bytes do not keep megabytes. Every entry takes the next number of its destination's counter, or of
           the task's (`Numbers`).
Format:    sequence ids of staged entries: epoch (32 bits) | the Spark partition (12 bits) | the number of the entry (20
           bits): each is known again. Excess bits are cut off, which only makes two distant entries look alike.
           sequence ids for deduplication: epoch (32 bits) | the row, counted for each destination: a broker that has a
           row of this producer drops it.
           A message that exceeds the broker's limit becomes chunks, as with Pulsar's producers: the payload is
           compressed as a whole, then cut. Each chunk is an entry with all of the message's metadata, its own number,
           the number of chunks, the size of all, one id for all, and a sequence id of its own. None is a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from magnetar.errors import SinkDataError
from magnetar.spark.encoding.messages import EncodedMessages, MessageKey, Messages, properties_of_row
from magnetar.wire.compression import compress
from magnetar.wire.pulsar.frames import CHECKSUM, CHECKSUM_MAGIC, SIZE
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import NONE, KeyValue, MessageMetadata

_EPOCH_SHIFT = 32


_PARTITION_SHIFT = 20


_PARTITION_MASK = 0xFFF


_ENTRY_MASK = 0xFFFFF


_CHUNK_FIELDS_BYTES = 256  # More than the additional fields of chunks take, without the producer's name in the id.

_ViewOrBytes = memoryview | bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as a producer sends it, and its properties for a sink."""

    topic: str
    body: bytes
    rows: int
    """0 for all chunks of a message but the last."""
    sequence_id: int
    highest_sequence_id: int


@dataclass(frozen=True, slots=True)
class Seal:
    """The common properties of all entries of a task."""

    producer_name: str
    publish_ms: int
    compression: int = NONE
    entry_bytes: int = 512 * 2**10
    """Bytes of messages in an entry, before compression; a larger one is alone in its entry."""
    message_bytes_max: int = 5 * 2**20
    """The broker's limit for an entry."""
    is_by_key: bool = False
    """Whether messages of different keys are in different entries: Key_Shared looks at an entry's first key only."""


class Numbers(Protocol):
    """Gives entries their sequence ids."""

    def take(self, rows: int) -> tuple[int, int]:
        """Returns the ids of the first and of the last of this many rows."""


class EntryBuilder:
    """Collects the messages of one destination."""

    def __init__(self, topic: str, seal: Seal, schema_version: bytes, numbers: Numbers) -> None:
        self.topic = topic
        self.seal = seal
        self.schema_version = schema_version
        self.numbers = numbers
        self.pending_bytes = 0
        self._pieces: list[_ViewOrBytes] = []
        self._rows = 0
        self._key: MessageKey | None = None

    def add(self, messages: EncodedMessages, first: int, end: int, rows: Messages) -> Iterator[Entry]:
        """Adds messages from `first` up to but not including `end`; `rows` are their source. Yields full entries."""
        offsets = messages.offsets
        while first < end:
            room = self.seal.entry_bytes - self.pending_bytes
            stop = int(np.searchsorted(offsets[first : end + 1], offsets[first] + room, "right")) - 1 + first
            if stop <= first and not self._rows:
                stop = first + 1  # Larger than an entry: alone in its own.
            if stop > first:
                self._take(messages, first, stop, rows)
                first = stop
            if first < end:
                yield from self.flush()
        if self._pieces:
            self._pieces[-1] = bytes(self._pieces[-1])

    def _take(self, messages: EncodedMessages, first: int, stop: int, rows: Messages) -> None:
        if not self._rows:
            self._key = rows.key_of(first)
        start, end = int(messages.offsets[first]), int(messages.offsets[stop])
        self._pieces.append(messages.data[start:end])
        self._rows += stop - first
        self.pending_bytes += end - start

    def flush(self) -> Iterator[Entry]:
        """Yields the rest, if any."""
        if not self._rows:
            return
        pieces, rows, key = self._pieces, self._rows, self._key
        first, last = self.numbers.take(rows)
        metadata = start_metadata(self.seal, self.schema_version, first)
        metadata.num_messages_in_batch = rows
        if last != first:
            metadata.highest_sequence_id = last
        if key is not None:
            metadata.partition_key = key.text
            if key.is_base64:
                metadata.partition_key_b64_encoded = True
        body = seal_pieces(self.seal, metadata, pieces, self.pending_bytes)
        self._pieces, self._rows, self.pending_bytes = [], 0, 0
        yield Entry(self.topic, body, rows, first, last)


class TaskNumbers:
    """One counter for all destinations of a task."""

    def __init__(self, epoch: int, partition: int) -> None:
        self._base = (epoch << _EPOCH_SHIFT) + ((partition & _PARTITION_MASK) << _PARTITION_SHIFT)
        self._entries = 0

    def take(self, rows: int) -> tuple[int, int]:
        del rows
        number = self._base + (self._entries & _ENTRY_MASK)
        self._entries += 1
        return number, number


class RowNumbers:
    """One counter for each destination."""

    def __init__(self, epoch: int) -> None:
        self._next = epoch << _EPOCH_SHIFT

    def take(self, rows: int) -> tuple[int, int]:
        first = self._next
        self._next += rows
        return first, self._next - 1


def start_metadata(seal: Seal, schema_version: bytes, sequence_id: int) -> MessageMetadata:
    metadata = MessageMetadata(producer_name=seal.producer_name, sequence_id=sequence_id, publish_time=seal.publish_ms)
    if schema_version:
        metadata.schema_version = schema_version
    return metadata


def seal_pieces(seal: Seal, metadata: MessageMetadata, pieces: list[_ViewOrBytes], size: int) -> bytes:
    """Returns the entry of a payload in pieces; compressed as the seal says."""
    metadata.uncompressed_size = size
    if seal.compression != NONE:
        metadata.compression = seal.compression  # type: ignore[assignment]  # A number of the enum.
        pieces = [compress(seal.compression, pieces[0] if len(pieces) == 1 else b"".join(pieces))]
    return seal_payload(metadata, pieces)


def seal_payload(metadata: MessageMetadata, pieces: list[_ViewOrBytes]) -> bytes:
    """Copies the payload once: into the entry."""
    described = metadata.SerializeToString()
    head = SIZE.pack(len(described)) + described
    checksum = crc32c(head)
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return b"".join((CHECKSUM.pack(CHECKSUM_MAGIC, checksum), head, *pieces))


def chunk_entries(
    topic: str, seal: Seal, schema_version: bytes, numbers: Numbers, messages: Messages, row: int
) -> Iterator[Entry]:
    """Yields the entries of one row."""
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
        metadata.event_time = event_ms
    if not messages.values[row].is_valid:
        metadata.null_value = True
    return metadata
