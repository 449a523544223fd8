"""Opened entries, collected until they fill a batch; then all their messages become rows at once.

Order:     the messages of a batch are found without parsing them: if every message has the size of the first one, all
           sizes are compared in a few numpy calls; otherwise a loop steps from message to message. Clients write a
           header's fields in order, so its size comes after properties and key, which are stepped over; an unusual
           header is parsed. If all messages of each entry are alike, headers and values are copied out of the entries
           as two columns of a grid: one copy, and the values are dense. Otherwise the entries are joined, and messages
           are slices of that.
Format:    a batch is (metadata_size u32 | SingleMessageMetadata | payload) …: wire/pulsar/entry.py. A message that is
           not from a batch becomes a batch of one, with a header made from its metadata, so there is one kind of rows.
Read next: fixed_columns.py
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from magnetar.errors import MalformedEntryError
from magnetar.spark.decoding.byte_spans import Bytes, Flags, Ints, dense, slices
from magnetar.wire.pulsar.encode import varint
from magnetar.wire.pulsar.entry import messages_of_batch
from magnetar.wire.pulsar.frames import SIZE, SIZE_BYTES, Buffer, text_of
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata

PROPERTIES_TAG: Final = 0x0A
KEY_TAG: Final = 0x12
PAYLOAD_SIZE_TAG: Final = 0x18
_LOOP_MESSAGES_MAX: Final = 12  # Up to this number the loop is quicker than numpy's calls.
_WORD_BYTES: Final = 8
_CONTINUED: Final = 0x80
_STEPPED_OVER: Final = (KEY_TAG, PROPERTIES_TAG)
_USUAL_HEAD = struct.Struct(">IBBBB")  # Size, tag, and a payload's size in up to three bytes.
_FIELD = struct.Struct(">BBBB")  # The same without the header's size.

Places: TypeAlias = "array[int]"
_PLAIN_HEAD = bytes(SIZE_BYTES) + b"\x18\x00\x40"  # A payload's size, and the tag of a sequence id.
_OF_HEADERS = ("partition_key", "event_time", "null_value", "null_partition_key")


class Shape(NamedTuple):
    """The sizes of messages that are all alike."""

    stride: int
    head: int
    """Bytes before the payload."""


def uniform(data: Buffer, offset: int, count: int) -> Shape | None:
    """Returns the shape of all messages; None if they are not alike, or too few for the check to pay."""
    if count <= _LOOP_MESSAGES_MAX:
        return None
    try:
        (size,) = SIZE.unpack_from(data, offset)
        payload_size, pieces = _sizes_in(data, offset)
    except (struct.error, IndexError, _UnusualHeader):
        return None
    shape = Shape(SIZE_BYTES + size + payload_size, SIZE_BYTES + size)
    if shape.stride * count != len(data) - offset or shape.stride < _WORD_BYTES:
        return None
    for start, width in pieces:
        place = min(start, shape.stride - _WORD_BYTES)  # Words that do not leave their message.
        words = np.ndarray((count,), ">u8", data, offset + place, (shape.stride,))
        skipped = 8 * (_WORD_BYTES - width - (start - place))
        mask = ((1 << 8 * width) - 1) << skipped
        if ((words ^ words[0]) & np.uint64(mask)).any():
            return None
    return shape


class _UnusualHeader(Exception):  # noqa: N818  # It is not an error, and does not leave this file.
    """The fields are not in order, or there are others: protobuf must read them."""


def _sizes_in(data: Buffer, offset: int) -> tuple[int, list[tuple[int, int]]]:
    """Returns the payload's size, and the bytes of the header with sizes: their place in the message, and their
    number."""
    if data[offset + SIZE_BYTES] == PAYLOAD_SIZE_TAG:  # No key, no properties: one piece.
        size, end = _read_varint(data, offset + SIZE_BYTES + 1)
        width = end - offset
        return size, [(0, width)] if width <= _WORD_BYTES else [(0, SIZE_BYTES), (SIZE_BYTES, width - SIZE_BYTES)]
    pieces = [(0, SIZE_BYTES)]
    at = offset + SIZE_BYTES
    while (tag := data[at]) != PAYLOAD_SIZE_TAG:
        length = data[at + 1]
        if tag not in _STEPPED_OVER or length >= _CONTINUED:
            raise _UnusualHeader
        pieces.append((at - offset, 2))
        at += 2 + length
    size, end = _read_varint(data, at + 1)
    pieces.append((at - offset, end - at))
    return size, pieces


def _read_varint(data: Buffer, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) >= _CONTINUED:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 28:  # A payload of 2^35 bytes or more, or a negative one.
            raise _UnusualHeader
    return value | byte << shift, at + 1


def scan(data: Buffer, offset: int, count: int) -> tuple[Places, Places]:
    """Returns the beginning of each message, and the end of the last one; and the beginning of each payload. Raises
    MalformedEntryError if they are missing."""
    try:
        try:
            begins, values = _scan_usual(data, offset, count)
        except struct.error:  # The last message may be shorter than the bytes that are looked at.
            begins, values = _scan_usual(bytes(data) + bytes(_USUAL_HEAD.size), offset, count)
    except (struct.error, _UnusualHeader):
        return _scan_slowly(data, offset, count)
    return (begins, values) if begins[-1] <= len(data) else _scan_slowly(data, offset, count)


def _scan_usual(data: Buffer, offset: int, count: int) -> tuple[Places, Places]:
    begins, values = array("q", (offset,)), array("q")
    add_begin, add_value = begins.append, values.append
    unpack, unpack_field = _USUAL_HEAD.unpack_from, _FIELD.unpack_from
    position = offset
    for _ in range(count):
        head, tag, first, second, third = unpack(data, position)
        at = position + SIZE_BYTES
        value = at + head
        while tag in _STEPPED_OVER and first < _CONTINUED:
            at += 2 + first
            tag, first, second, third = unpack_field(data, at)
        if tag != PAYLOAD_SIZE_TAG or at >= value:
            raise _UnusualHeader
        if first < _CONTINUED:
            position = value + first
        elif second < _CONTINUED:
            position = value + (first & 0x7F | second << 7)
        elif third < _CONTINUED:
            position = value + (first & 0x7F | (second & 0x7F) << 7 | third << 14)
        else:
            position = value + _read_varint(data, at + 1)[0]
        add_value(value)
        add_begin(position)
    return begins, values


def _scan_slowly(data: Buffer, offset: int, count: int) -> tuple[Places, Places]:
    """Scans with protobuf, which knows every case and explains errors."""
    begins, values = array("q", (offset,)), array("q")
    position = offset
    for message in messages_of_batch(memoryview(data)[offset:], count):
        value = position + SIZE_BYTES + int(SIZE.unpack_from(data, position)[0])
        position = value + len(message.payload)
        values.append(value)
        begins.append(position)
    return begins, values


# --- rows -------------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """The common properties of all messages of one entry."""

    topic: str
    partition: int
    ledger_id: int
    entry_id: int
    first_batch_index: int
    """-1: the entry is not a batch."""
    first_index: int
    publish_ms: int
    producer: str
    sequence_id: int
    schema_version: bytes

    def place(self, ordinal: int = 0) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.partition}:{self.first_batch_index + ordinal}"


class Spans(NamedTuple):
    """Slices of one buffer, in its order."""

    data: Bytes
    start: Ints
    end: Ints

    def kept(self, keep: Flags) -> Spans:
        return Spans(self.data, self.start[keep], self.end[keep])


@dataclass(frozen=True)
class Rows:
    """Messages, and the entry of each."""

    headers: Spans
    """Of SingleMessageMetadata."""
    values: Spans
    is_dense: bool
    parts: Sequence[Part]
    entry: Ints
    """The number of each row's part."""
    ordinal: Ints
    """The row's number within its part."""

    def __len__(self) -> int:
        return len(self.entry)

    @cached_property
    def header_buffer(self) -> pa.Buffer:
        return pa.py_buffer(self.headers.data)

    def payloads(self, missing: Flags | None) -> pa.BinaryArray:
        """Returns the values; null where they are missing."""
        data, start, end = self.values
        make = dense if self.is_dense else slices
        return make(pa.py_buffer(data), start, end, missing)

    def place(self, row: int) -> str:
        part: Part = self.parts[int(self.entry[row])]
        return part.place(int(self.ordinal[row]))

    def kept(self, keep: Flags) -> Rows:
        return replace(
            self,
            headers=self.headers.kept(keep),
            values=self.values.kept(keep),
            is_dense=False,
            entry=self.entry[keep],
            ordinal=self.ordinal[keep],
        )

    def rewritten(self, odd: Sequence[int]) -> Rows:
        """Writes those headers in the usual way. MalformedEntryError if one is invalid."""
        data, start, end = self.headers
        headers = [data[start[row] : end[row]].tobytes() for row in range(len(self))]
        for row in sorted(set(odd)):
            headers[row] = self._usual(headers[row], row)
        ends = np.cumsum([len(header) for header in headers])
        starts = np.concatenate(([0], ends[:-1]))
        return replace(self, headers=Spans(np.frombuffer(b"".join(headers), np.uint8), starts, ends))

    def _usual(self, header: bytes, row: int) -> bytes:
        try:
            metadata = SingleMessageMetadata.FromString(header)
        except DecodeError as error:
            raise self._malformed(row, f"is not protobuf: {error}") from None
        if not metadata.IsInitialized():
            raise self._malformed(row, "has no size")
        metadata.DiscardUnknownFields()
        return metadata.SerializeToString()

    def _malformed(self, row: int, what: str) -> MalformedEntryError:
        topic = self.parts[int(self.entry[row])].topic
        return MalformedEntryError(f"{topic}: the metadata of message {self.place(row)} {what}")


@dataclass(slots=True)
class _Segment:
    """The messages of one entry."""

    part: Part
    data: Buffer
    offset: int
    """The index of the first wanted message."""
    count: int
    shape: Shape | None
    begins: Places | None = None
    """The beginning of each message, and the end of the last."""
    values: Places | None = None
    head: bytes | None = None
    """The header of a message that is not from a batch; `data` is its payload."""

    @property
    def pieces(self) -> tuple[Buffer, ...]:
        return (self.data,) if self.head is None else (self.head, self.data)


class PendingRows:
    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._count = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return self._count

    def add_batch(self, part: Part, data: Buffer, offset: int, count: int, low: int, high: int) -> None:
        """Adds messages `low` to `high` of the batch of `count` in `data` from `offset` on; `part` has the numbers of
        the first one. Raises MalformedEntryError if they are missing."""
        shape = uniform(data, offset, count)
        if shape is not None:
            segment = _Segment(part, data, offset + low * shape.stride, high - low, shape)
        else:
            begins, values = scan(data, offset, count)
            segment = _Segment(part, data, begins[low], high - low, None, begins[low : high + 1], values[low:high])
        self._add(segment)

    def add_single(self, part: Part, metadata: MessageMetadata, payload: Buffer) -> None:
        head = _single_head(metadata)
        self._add(_Segment(part, payload, 0, 1, Shape(len(head) + len(payload), len(head)), head=head))

    def _add(self, segment: _Segment) -> None:
        self._segments.append(segment)
        self._count += segment.count
        self.size_bytes += len(segment.data)

    def take(self) -> Rows:
        segments, self._segments, self._count, self.size_bytes = self._segments, [], 0, 0
        counts = np.array([segment.count for segment in segments], np.int64)
        is_grid = all(segment.shape is not None for segment in segments)
        headers, values = _grids(segments, counts) if is_grid else _joined(segments)
        return Rows(
            headers=headers,
            values=values,
            is_dense=is_grid,
            parts=[segment.part for segment in segments],
            entry=np.repeat(np.arange(len(counts)), counts),
            ordinal=np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts),
        )


def _single_head(metadata: MessageMetadata) -> bytes:
    """Returns the header that the payload would have in a batch, without its size, which is not used."""
    if not any(map(metadata.HasField, _OF_HEADERS)) and not metadata.properties:
        return _PLAIN_HEAD + varint(metadata.sequence_id)
    head = SingleMessageMetadata(payload_size=0, sequence_id=metadata.sequence_id)
    if metadata.HasField("partition_key"):
        head.partition_key = text_of(metadata.partition_key)
        head.partition_key_b64_encoded = metadata.partition_key_b64_encoded
    if metadata.properties:
        head.properties.extend(metadata.properties)
    if metadata.event_time:
        head.event_time = metadata.event_time
    if metadata.null_value:
        head.null_value = True
    if metadata.null_partition_key:
        head.null_partition_key = True
    return bytes(SIZE_BYTES) + head.SerializeToString()


def _grids(segments: list[_Segment], counts: Ints) -> tuple[Spans, Spans]:
    heads = np.array([segment.shape.head for segment in segments if segment.shape], np.int64)
    sizes = np.array([segment.shape.stride for segment in segments if segment.shape], np.int64) - heads
    head_data, value_data = _columns_of(segments, heads, sizes)
    head_start, head_end = _one_after_the_other(heads, counts)
    value_spans = Spans(value_data, *_one_after_the_other(sizes, counts))
    return Spans(head_data, head_start + SIZE_BYTES, head_end), value_spans


def _columns_of(segments: list[_Segment], heads: Ints, sizes: Ints) -> tuple[Bytes, Bytes]:
    if all(segment.head is not None for segment in segments):
        head_data = b"".join([segment.head for segment in segments if segment.head is not None])
        value_data = b"".join([segment.data for segment in segments])
        return np.frombuffer(head_data, np.uint8), np.frombuffer(value_data, np.uint8)
    head_parts: list[Bytes] = []
    value_parts: list[Bytes] = []
    for segment, head, size in zip(segments, heads.tolist(), sizes.tolist(), strict=True):
        if segment.head is not None:
            head_parts.append(np.frombuffer(segment.head, np.uint8))
            value_parts.append(np.frombuffer(segment.data, np.uint8))
        else:
            grid = np.ndarray((segment.count, head + size), np.uint8, segment.data, segment.offset)
            head_parts.append(grid[:, :head])
            value_parts.append(grid[:, head:])
    return _copied(head_parts), _copied(value_parts)


def _copied(parts: list[Bytes]) -> Bytes:
    """Copies parts one after the other; grids row by row."""
    data = np.empty(sum(part.size for part in parts), np.uint8)
    at = 0
    for part in parts:
        data[at : at + part.size].reshape(part.shape)[...] = part
        at += part.size
    return data


def _one_after_the_other(sizes: Ints, counts: Ints) -> tuple[Ints, Ints]:
    of_rows = np.repeat(sizes, counts)
    ends = np.cumsum(of_rows)
    return ends - of_rows, ends


def _joined(segments: list[_Segment]) -> tuple[Spans, Spans]:
    data = np.frombuffer(b"".join([piece for segment in segments for piece in segment.pieces]), np.uint8)
    begins: list[Ints] = []
    values: list[Ints] = []
    ends: list[Ints] = []
    base = 0
    for segment in segments:
        if segment.shape is not None:
            stride, head = segment.shape
            begin = np.arange(segment.count) * stride + segment.offset
            value, end = begin + head, begin + stride
        else:
            places = np.array(segment.begins, np.int64)
            begin, value, end = places[:-1], np.array(segment.values, np.int64), places[1:]
        begins.append(begin + base)
        values.append(value + base)
        ends.append(end + base)
        base += sum(map(len, segment.pieces))
    begin, value, end = np.concatenate(begins), np.concatenate(values), np.concatenate(ends)
    return Spans(data, begin + SIZE_BYTES, value), Spans(data, value, end)
