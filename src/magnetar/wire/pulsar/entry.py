"""A stored message or batch: the broker's header, then the producer's bytes, as they came.

Format:    [0x0e02 u16 | size u32 | BrokerEntryMetadata] [0x0e01 u16 | crc32c u32] metadata_size u32 | MessageMetadata
           | payload. A client gets everything from the checksum on, and the broker's header only if it asked for it.
           The index is continuous over a topic, per message; an entry carries that of its last one. Apache writes no
           header by default, so every reader must do without.
           batch: (metadata_size u32 | SingleMessageMetadata | payload of the size it says) …; compressed and encrypted
           as a whole, by the caller. The number of messages is in the entry's metadata; bytes after the last one are
           ignored, as in Pulsar.
Failure:   an entry that does not parse raises `MalformedEntryError`. The checksum is separate (`verify_checksum`): it
           was verified when the entry came in, and bookies have their own digests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from magnetar.errors import MalformedEntryError
from magnetar.wire.pulsar.encode import varint
from magnetar.wire.pulsar.frames import (
    CHECKSUM_BYTES,
    CHECKSUM_MAGIC,
    SIZE,
    SIZE_BYTES,
    Buffer,
    missing_fields,
)
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BrokerEntryMetadata, MessageMetadata, SingleMessageMetadata

BROKER_ENTRY_MAGIC: Final = 0x0E02
_MAGIC = struct.Struct(">H")
_BROKER_HEADER = struct.Struct(">HI")
_TIMESTAMP_TAG: Final = b"\x08"
_INDEX_TAG: Final = b"\x10"


class EntryHead:
    """The places of an entry's parts, and their content."""

    __slots__ = ("body_offset", "broker_ms", "index", "metadata", "payload_offset")

    def __init__(
        self, index: int | None, broker_ms: int | None, body_offset: int, metadata: MessageMetadata, payload_offset: int
    ) -> None:
        self.index = index
        """The index of the entry's last message; None if the entry has no header of a broker that counts."""
        self.broker_ms = broker_ms
        """The time at which the broker accepted it; None as above."""
        self.body_offset = body_offset
        """The beginning of the part that every client gets."""
        self.metadata = metadata
        self.payload_offset = payload_offset


def broker_entry_header(index_of_last: int, broker_ms: int) -> bytes:
    metadata = b"".join((_TIMESTAMP_TAG, varint(broker_ms), _INDEX_TAG, varint(index_of_last)))
    return _BROKER_HEADER.pack(BROKER_ENTRY_MAGIC, len(metadata)) + metadata


H = TypeVar("H", bound=EntryHead)


def parse_entry(data: Buffer) -> EntryHead:
    return parse_entry_as(EntryHead, data)


def parse_entry_as(kind: type[H], data: Buffer) -> H:
    view = memoryview(data)
    index, broker_ms, body_offset = _parse_broker_header(view)
    metadata, payload_offset = _parse_body(view, body_offset)
    return kind(index, broker_ms, body_offset, metadata, payload_offset)


def parse_body_as(kind: type[H], headers_and_payload: Buffer) -> H:
    """Parses a producer's bytes, before they are an entry."""
    metadata, payload_offset = _parse_body(memoryview(headers_and_payload), 0)
    return kind(None, None, 0, metadata, payload_offset)


def metadata_of(headers_and_payload: Buffer) -> MessageMetadata:
    """Returns the metadata of a producer's bytes, before they are an entry."""
    return _parse_body(memoryview(headers_and_payload), 0)[0]


def messages_in(metadata: MessageMetadata) -> int:
    """Returns the number of messages that the entry counts for: those of a batch, otherwise one."""
    return max(1, metadata.num_messages_in_batch)


def has_broker_header(data: Buffer) -> bool:
    """Reports a header or a part of one. A producer's bytes must have none: it would be taken for the broker's."""
    return len(data) >= _MAGIC.size and _MAGIC.unpack_from(data)[0] == BROKER_ENTRY_MAGIC


def body_offset_of(data: Buffer) -> int:
    """Returns `EntryHead.body_offset` alone, without reading any metadata."""
    if len(data) < _BROKER_HEADER.size:
        return 0
    magic, size = _BROKER_HEADER.unpack_from(data)
    if magic != BROKER_ENTRY_MAGIC:
        return 0
    offset = _BROKER_HEADER.size + int(size)
    if offset > len(data):
        raise MalformedEntryError(f"a broker entry header of {size} bytes in an entry of {len(data)}")
    return offset


def _parse_broker_header(view: memoryview) -> tuple[int | None, int | None, int]:
    offset = body_offset_of(view)
    if not offset:
        return None, None, 0
    try:
        header = BrokerEntryMetadata.FromString(view[_BROKER_HEADER.size : offset])  # type: ignore[arg-type]
    except DecodeError as error:
        raise MalformedEntryError(f"broker entry metadata that is not protobuf: {error}") from None
    index = header.index if header.HasField("index") else None
    broker_ms = header.broker_timestamp if header.HasField("broker_timestamp") else None
    return index, broker_ms, offset


def _parse_body(view: memoryview, offset: int) -> tuple[MessageMetadata, int]:
    if len(view) - offset >= CHECKSUM_BYTES and _MAGIC.unpack_from(view, offset)[0] == CHECKSUM_MAGIC:
        offset += CHECKSUM_BYTES
    metadata_start = offset + SIZE_BYTES
    if metadata_start > len(view):
        raise MalformedEntryError("an entry ends before its metadata")
    metadata_end = metadata_start + int(SIZE.unpack_from(view, offset)[0])
    if metadata_end > len(view):
        raise MalformedEntryError(f"metadata up to byte {metadata_end} in an entry of {len(view)}")
    try:
        metadata = MessageMetadata.FromString(view[metadata_start:metadata_end])  # type: ignore[arg-type]
    except DecodeError as error:
        raise MalformedEntryError(f"message metadata that is not protobuf: {error}") from None
    if not metadata.IsInitialized():
        raise MalformedEntryError(f"message metadata without a required field: {missing_fields(metadata)}")
    return metadata, metadata_end


class BatchedMessage(NamedTuple):
    metadata: SingleMessageMetadata
    payload: memoryview
    """A view of the batch's payload."""


def messages_of_batch(payload: Buffer, count: int) -> Iterator[BatchedMessage]:
    """Yields the `count` messages of a decompressed payload, in order. Raises where it ends too early."""
    view = memoryview(payload)
    position = 0
    for _ in range(count):
        message, position = _message_at(view, position)
        yield message


def _message_at(view: memoryview, position: int) -> tuple[BatchedMessage, int]:
    start = position + SIZE_BYTES
    if start > len(view):
        raise MalformedEntryError(f"a batch ends at byte {len(view)}, before a message that it counts")
    end = start + int(SIZE.unpack_from(view, position)[0])
    if end > len(view):
        raise MalformedEntryError(f"metadata up to byte {end} in a batch of {len(view)}")
    try:
        metadata = SingleMessageMetadata.FromString(view[start:end])  # type: ignore[arg-type]
    except DecodeError as error:
        raise MalformedEntryError(f"metadata in a batch that is not protobuf: {error}") from None
    if not metadata.IsInitialized():
        raise MalformedEntryError(f"metadata in a batch without {missing_fields(metadata)}")
    following = end + metadata.payload_size
    if not end <= following <= len(view):
        raise MalformedEntryError(f"a message of {metadata.payload_size} bytes in a batch of {len(view)}")
    return BatchedMessage(metadata, view[end:following]), following


def encode_batched_message(metadata: SingleMessageMetadata, payload: Buffer) -> bytes:
    """Encodes one message of a batch. Sets the metadata's payload size."""
    metadata.payload_size = len(payload)
    head = metadata.SerializeToString()
    return b"".join((SIZE.pack(len(head)), head, payload))
