"""What an entry asks of dispatch besides being delivered, found without parsing the metadata of those that ask nothing.

Trick:     the fields that matter (delivery time, marker, transaction, chunk) have tags of two bytes, and an entry whose
           metadata does not contain any of those pairs has none of the fields. A pair that is there by chance costs a
           parse, nothing else.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

from magnetar.errors import MalformedEntryError
from magnetar.topic.log_entry import LogEntry
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata
from magnetar.wire.pulsar.text import text_of

# Tags of deliver_at_time (19), marker_type (20), txnid_least_bits (22), txnid_most_bits (23), uuid (26).
_SPECIAL_TAGS = re.compile(rb"[\x98\xa0\xb0\xb8\xd2]\x01").search
_MAGIC_AND_SIZE = struct.Struct(">HI").unpack_from
_SIZE = struct.Struct(">I").unpack_from
_BROKER_ENTRY_MAGIC: Final = 0x0E02
_CHECKSUM_MAGIC: Final = 0x0E01
_ZERO: Final = bytes(3)
_HEADERS_MAX: Final = 64  # A broker's header is of two numbers; longer ones go the long way.
# By the size of the header: its magic, the upper bytes of its size, the checksum's magic, the size of the metadata.
_LAYOUTS = [struct.Struct(f">H3sx{size}xH4xI").unpack_from for size in range(_HEADERS_MAX)]


@dataclass(frozen=True, slots=True)
class Special:
    """An entry that is not simply delivered."""

    is_marker: bool = False
    """Made by brokers for brokers; acknowledged unseen. So is what cannot be parsed."""
    is_transactional: bool = False
    deliver_at_ms: int = 0
    uuid: str = ""
    """Of a chunk: all chunks of one message go to one consumer."""
    is_last_chunk: bool = False


_MARKER: Final = Special(is_marker=True)


def special_of(entry: LogEntry) -> Special | None:
    """None for nearly all: deliver it."""
    data = entry.data
    try:
        start, end = metadata_bounds(data)
        if _SPECIAL_TAGS(data, start, end) is None:
            return None
        return _special_of(entry.head.metadata)
    except (MalformedEntryError, struct.error, IndexError):
        return _MARKER


def metadata_bounds(data: Buffer) -> tuple[int, int]:
    """Where the metadata of an entry begins and ends. struct.error or IndexError if it does not have any."""
    size = data[5]
    if data[1] == 2 and size < _HEADERS_MAX:  # Perhaps an entry of ours: one look instead of three.
        try:
            magic, upper_bytes, checksum_magic, metadata_size = _LAYOUTS[size](data)
        except struct.error:  # It is shorter than that.
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


def _special_of(metadata: MessageMetadata) -> Special | None:
    if metadata.HasField("marker_type"):
        return _MARKER
    is_transactional = metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits")
    is_chunk = metadata.HasField("uuid") and metadata.HasField("chunk_id") and metadata.HasField("num_chunks_from_msg")
    deliver_at_ms = metadata.deliver_at_time if metadata.HasField("deliver_at_time") else 0
    if not (is_transactional or is_chunk or deliver_at_ms > 0):
        return None
    return Special(
        is_transactional=is_transactional,
        deliver_at_ms=max(0, deliver_at_ms),
        uuid=text_of(metadata.uuid) if is_chunk else "",
        is_last_chunk=is_chunk and metadata.chunk_id == metadata.num_chunks_from_msg - 1,
    )
