"""EntryEncoder: record batches of one task in, entries out, as a producer sends them, in the order of the rows.

    encoder = EntryEncoder(layout, values, router, seal, numbers)
    for batch in batches: entries += encoder.encode(batch)
    entries += encoder.finish()

Order:     an entry takes messages until the next one would exceed `entry_bytes`, whatever batches they came in: the
           same rows are cut in the same way again. An entry that is not full waits, and is copied out of its arrays so
           that a few bytes do not keep megabytes. Every entry takes the next number of its destination's counter, or of
           the task's (`Numbers`).
Format:    sequence ids of staged entries: epoch (32 bits) | the Spark partition (12 bits) | the number of the entry (20
           bits): each is known again. Excess bits are cut off, which only makes two distant entries look alike.
           sequence ids for deduplication: epoch (32 bits) | the row, counted for each destination: a broker that has a
           row of this producer drops it.
           A message that exceeds the broker's limit is not batched but becomes chunks, as with Pulsar's producers: the
           payload is compressed as a whole, then cut. Each chunk is an entry with all of the message's metadata, its
           own number, the number of chunks, the size of all, one id for all, and a sequence id of its own.
Limits:    a batch is encoded a slice at a time, each about `_SLICE_BYTES`; messages that wait for a full entry are
           bounded over all destinations.
Read next: messages.py, routing.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from magnetar.errors import SinkDataError
from magnetar.spark.encoding.arrays import BinaryArray, Ints
from magnetar.spark.encoding.layout import Layout
from magnetar.spark.encoding.messages import (
    EncodedMessages,
    Keys,
    MessageKey,
    Messages,
    encode_messages,
    properties_of_row,
)
from magnetar.spark.encoding.routing import Router
from magnetar.wire.compression import compress
from magnetar.wire.pulsar.frames import CHECKSUM, CHECKSUM_MAGIC, SIZE
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import NONE, KeyValue, MessageMetadata

_EPOCH_SHIFT = 32
_PARTITION_SHIFT = 20
_PARTITION_MASK = 0xFFF
_ENTRY_MASK = 0xFFFFF
_CHUNK_FIELDS_BYTES = 256  # More than the additional fields of chunks take, without the producer's name in the id.

_ViewOrBytes = memoryview | bytes
_SLICE_BYTES: Final = 16 * 2**20  # A slice costs half a millisecond whatever its size; Arrow's offsets end at 2 GiB.
_PENDING_BYTES_MAX: Final = 64 * 2**20
_HEADER_BYTES: Final = 16 * 2**10  # Left free below the broker's limit: metadata, and what compression may add.

ValuesOf = Callable[[pa.RecordBatch, Layout], BinaryArray]


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
        _set_key(metadata, key)
        metadata.uncompressed_size = self.pending_bytes
        if self.seal.compression != NONE:
            pieces = [_compressed(self.seal, metadata, pieces[0] if len(pieces) == 1 else b"".join(pieces))]
        body = seal_payload(metadata, pieces)
        self._pieces, self._rows, self.pending_bytes = [], 0, 0
        yield Entry(self.topic, body, rows, first, last)


class TaskNumbers:
    def __init__(self, epoch: int, partition: int) -> None:
        self._base = (epoch << _EPOCH_SHIFT) + ((partition & _PARTITION_MASK) << _PARTITION_SHIFT)
        self._entries = 0

    def take(self, rows: int) -> tuple[int, int]:
        del rows
        number = self._base + (self._entries & _ENTRY_MASK)
        self._entries += 1
        return number, number


class RowNumbers:
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


def _set_key(metadata: MessageMetadata, key: MessageKey | None) -> None:
    if key is not None:
        metadata.partition_key = key.text
        if key.is_base64:
            metadata.partition_key_b64_encoded = True


def _compressed(seal: Seal, metadata: MessageMetadata, payload: _ViewOrBytes) -> bytes:
    metadata.compression = seal.compression  # type: ignore[assignment]  # A number of the enum.
    return compress(seal.compression, payload)


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
    metadata = _describe(start_metadata(seal, schema_version, 0), messages, row)
    payload = _payload(messages.values[row], seal, metadata)
    room = seal.message_bytes_max - metadata.ByteSize() - len(seal.producer_name) - _CHUNK_FIELDS_BYTES
    if room <= 0:
        raise SinkDataError(f"key and properties of a message have {metadata.ByteSize()} bytes: they must fit an entry")
    count = max(1, -(-len(payload) // room))
    for chunk in range(count):
        metadata.sequence_id, _ = numbers.take(1)
        if count > 1:
            metadata.uuid = metadata.uuid or f"{metadata.producer_name}-{metadata.sequence_id}"
            metadata.chunk_id = chunk
            metadata.num_chunks_from_msg = count
            metadata.total_chunk_msg_size = len(payload)
        piece = payload[chunk * room : (chunk + 1) * room]
        rows = 1 if chunk == count - 1 else 0
        yield Entry(topic, seal_payload(metadata, [piece]), rows, metadata.sequence_id, metadata.sequence_id)


def _payload(value: pa.Scalar, seal: Seal, metadata: MessageMetadata) -> memoryview:
    buffer = value.as_buffer()
    payload = memoryview(b"" if buffer is None else buffer)
    metadata.uncompressed_size = len(payload)
    return payload if seal.compression == NONE else memoryview(_compressed(seal, metadata, payload))


def _describe(metadata: MessageMetadata, messages: Messages, row: int) -> MessageMetadata:
    if messages.properties is not None:
        pairs = properties_of_row(messages.properties, row)
        metadata.properties.extend(KeyValue(key=key, value=value) for key, value in pairs.items())
    _set_key(metadata, messages.key_of(row))
    event_ms = None if messages.event_ms is None else messages.event_ms[row].as_py()
    if event_ms:
        metadata.event_time = event_ms
    if not messages.values[row].is_valid:
        metadata.null_value = True
    return metadata


class EntryEncoder:
    """One per task attempt. `numbers` makes the sequence ids of a destination."""

    def __init__(
        self, layout: Layout, values_of: ValuesOf, router: Router, seal: Seal, numbers: Callable[[], Numbers]
    ) -> None:
        self._layout = layout
        self._values_of = values_of
        self._router = router
        self._seal = seal
        self._numbers = numbers
        self._builders: dict[int, EntryBuilder] = {}
        self._alone_bytes_max = seal.message_bytes_max - min(_HEADER_BYTES, seal.message_bytes_max // 4)

    def encode(self, batch: pa.RecordBatch) -> Iterator[Entry]:
        if not batch.num_rows:
            return
        layout = self._layout
        messages = layout.messages(batch, self._values_of(batch, layout))
        topics = batch.column(layout.topic) if layout.topic else None
        partitions = batch.column(layout.partition) if layout.partition else None
        to = self._router.route(messages, topics, partitions)
        groups = _by_key(to, messages.keys) if self._seal.is_by_key and messages.keys is not None else to
        if (groups != groups[0]).any():
            order = np.argsort(groups, kind="stable")
            messages, to, groups = messages.take(order), to[order], groups[order]
        for start, end in _slices(messages.sizes, self._alone_bytes_max):
            yield from self._encode_slice(messages.slice(start, end - start), to[start:end], groups[start:end])
        if sum(builder.pending_bytes for builder in self._builders.values()) > _PENDING_BYTES_MAX:
            yield from self.finish()

    def finish(self) -> Iterator[Entry]:
        """Yields the entries that are not full."""
        for builder in self._builders.values():
            yield from builder.flush()

    def _encode_slice(self, messages: Messages, to: Ints, groups: Ints) -> Iterator[Entry]:
        if messages.sizes[0] > self._alone_bytes_max:  # Such a message is the only one.
            builder = self._builder(int(to[0]))
            yield from builder.flush()
            yield from chunk_entries(builder.topic, self._seal, builder.schema_version, builder.numbers, messages, 0)
            return
        encoded = encode_messages(messages)
        for start, end in _runs(groups):
            builder = self._builder(int(to[start]))
            yield from builder.add(encoded, start, end, messages)
            if self._seal.is_by_key:
                yield from builder.flush()

    def _builder(self, destination: int) -> EntryBuilder:
        found = self._builders.get(destination)
        if found is None:
            topic = self._router.destinations[destination]
            version = self._router.targets[destination].schema_version
            found = self._builders[destination] = EntryBuilder(topic, self._seal, version, self._numbers())
        return found


def _by_key(to: Ints, keys: Keys) -> Ints:
    """Returns a number for every destination and key; rows without a key are one more."""
    encoded = keys.text.dictionary_encode()
    codes: Ints = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy().astype(np.int64)
    return to * (len(encoded.dictionary) + 1) + codes


def _runs(values: Ints) -> Iterator[tuple[int, int]]:
    cuts = np.flatnonzero(values[1:] != values[:-1]) + 1
    edges = [0, *cuts.tolist(), len(values)]
    yield from pairwise(edges)


def _slices(sizes: Ints, alone_bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yields rows to encode at once: about this many bytes; a row that is too large is alone."""
    slice_of = (np.cumsum(sizes) - sizes) // _SLICE_BYTES
    large = sizes > alone_bytes_max
    if large.any():
        slice_of += np.cumsum(large) + np.concatenate(([0], np.cumsum(large)[:-1]))  # Differs on both its sides.
    yield from _runs(slice_of)
