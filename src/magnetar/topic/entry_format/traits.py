"""Traits of an entry: what delivery must know of it. Most entries are delivered as they are, a few need more.

The fields that matter (delivery time, marker, transaction, chunk) have tags of two bytes. An entry whose metadata does
not contain one of these pairs has none of the fields, so its metadata is not parsed. A pair that occurs by chance costs
a parse and nothing else.
Read next: broker/dispatch/next_consumer.py, for the use of ordering keys
"""

from __future__ import annotations

import base64
import re
import struct
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.errors import MalformedEntryError
from magnetar.topic.log_entry import LogEntry
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.pulsar.frames import text_of
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata

# Tags of deliver_at_time (19), marker_type (20), txnid_least_bits (22), txnid_most_bits (23), uuid (26).
_TAGS = re.compile(rb"[\x98\xa0\xb0\xb8\xd2]\x01").search
_MAGIC_AND_SIZE = struct.Struct(">HI").unpack_from
_SIZE = struct.Struct(">I").unpack_from
_BROKER_ENTRY_MAGIC: Final = 0x0E02
_CHECKSUM_MAGIC: Final = 0x0E01
_ZERO: Final = bytes(3)
_HEADERS_MAX: Final = 64  # A broker's header has two numbers; a longer one takes the slow path.
# By the size of the header: its magic, the upper bytes of its size, the checksum's magic, the size of the metadata.
_LAYOUTS = [struct.Struct(f">H3sx{size}xH4xI").unpack_from for size in range(_HEADERS_MAX)]


@dataclass(frozen=True, slots=True)
class EntryTraits:
    """What an entry needs besides delivery."""

    is_marker: bool = False
    """Whether brokers wrote it for brokers, or it cannot be parsed: it is acknowledged without being delivered."""
    is_transactional: bool = False
    deliver_at_ms: int = 0
    uuid: str = ""
    """The message that this chunk is a part of: all its chunks go to one consumer. Empty if it is no chunk."""
    is_last_chunk: bool = False


_MARKER: Final = EntryTraits(is_marker=True)
NO_KEY: Final = b"NONE_KEY"


def traits_of(entry: LogEntry) -> EntryTraits | None:
    """Returns None for nearly every entry: it is simply delivered."""
    data = entry.data
    try:
        start, end = _metadata_bounds(data)
        if _TAGS(data, start, end) is None:
            return None
        return _traits_of(entry.head.metadata)
    except (MalformedEntryError, struct.error, IndexError):
        return _MARKER


def ordering_key_of(data: Buffer) -> bytes:
    """Returns the key by which a message is routed: its ordering key, otherwise its key, otherwise a key of its own.

    NO_KEY means that the entry, or its key, cannot be read.
    """
    try:
        start, end = _metadata_bounds(data)
        metadata = MessageMetadata.FromString(bytes(data[start:end]))
    except (DecodeError, struct.error, IndexError):
        return NO_KEY
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        if not metadata.partition_key_b64_encoded:
            return text_of(metadata.partition_key).encode()
        try:
            return base64.b64decode(metadata.partition_key, validate=True)
        except ValueError:  # It is not base64, or not even ASCII, which is an error of its own.
            return NO_KEY
    return f"{text_of(metadata.producer_name)}-{metadata.sequence_id}".encode()


def _metadata_bounds(data: Buffer) -> tuple[int, int]:
    """Returns where the metadata of an entry begins and ends. Raises struct.error or IndexError if it has none."""
    size = data[5]
    if data[1] == 2 and size < _HEADERS_MAX:  # Probably our own header: one look instead of three.
        try:
            magic, upper_bytes, checksum_magic, metadata_size = _LAYOUTS[size](data)
        except struct.error:  # The entry is too short.
            return _any_metadata_bounds(data)
        if magic == _BROKER_ENTRY_MAGIC and checksum_magic == _CHECKSUM_MAGIC and upper_bytes == _ZERO:
            start = 16 + size
            return start, start + metadata_size
    return _any_metadata_bounds(data)


def _any_metadata_bounds(data: Buffer) -> tuple[int, int]:
    magic, size = _MAGIC_AND_SIZE(data)
    offset = 0
    if magic == _BROKER_ENTRY_MAGIC:
        offset = 6 + size
        magic, size = _MAGIC_AND_SIZE(data, offset)
    if magic == _CHECKSUM_MAGIC:
        offset += 6
    start = offset + 4
    return start, start + _SIZE(data, offset)[0]


def _traits_of(metadata: MessageMetadata) -> EntryTraits | None:
    if metadata.HasField("marker_type"):
        return _MARKER
    is_transactional = metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits")
    is_chunk = metadata.HasField("uuid") and metadata.HasField("chunk_id") and metadata.HasField("num_chunks_from_msg")
    deliver_at_ms = metadata.deliver_at_time if metadata.HasField("deliver_at_time") else 0
    if not (is_transactional or is_chunk or deliver_at_ms > 0):
        return None
    return EntryTraits(
        is_transactional=is_transactional,
        deliver_at_ms=max(0, deliver_at_ms),
        uuid=text_of(metadata.uuid) if is_chunk else "",
        is_last_chunk=is_chunk and metadata.chunk_id == metadata.num_chunks_from_msg - 1,
    )
