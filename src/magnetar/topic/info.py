"""A topic's node in the metadata store, as Pulsar keeps it: its ledgers, its properties, and its end if it has one.

Value:     ManagedLedgerInfo, plain; or 0x4778 u16 | size i32 | InfoMetadata | compressed ManagedLedgerInfo, which
           Pulsar writes if it is told to compress. Both are read, plain is written. An empty node is a new topic.
Foreign:   what we do not know, in the whole or in one of its ledgers, is written back as it was read.
Used by:   info_store.py (in the store), cursor nodes (the same wrapping around another message)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from magnetar.errors import MalformedEntryError, MalformedMetadataError
from magnetar.metadata.bookkeeper.proto_strings import checked
from magnetar.topic.chain import LedgerSpan
from magnetar.topic.position import Position
from magnetar.topic.proto.managed_ledger_pb2 import CompressionType, InfoMetadata, ManagedLedgerInfo
from magnetar.wire.pulsar.compression import decompress
from magnetar.wire.pulsar.proto import pulsar_api_pb2

INFO_BYTES_MAX: Final = 64 * 2**20
"""Of a value that is unpacked: a topic with a million ledgers is below it."""
INDEX_PROPERTY: Final = "index"
"""Of the topic: the index of its last message when the node was last written, as Pulsar keeps it."""

_COMPRESSED_MAGIC: Final = 0x4778
_COMPRESSED_HEAD = struct.Struct(">Hi")

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    spans: tuple[LedgerSpan, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    terminated: Position | None = None
    """The last entry of a topic that takes no more."""
    kept: bytes = field(default=b"", repr=False)
    """The whole as it was read, for what we do not know of it."""


def decode_info(value: bytes) -> TopicInfo:
    message = parse_message(unpacked(value), ManagedLedgerInfo, "a topic's node")
    terminated = None
    if message.HasField("terminated_position"):
        terminated = Position(message.terminated_position.ledger_id, message.terminated_position.entry_id)
    return TopicInfo(
        spans=tuple(sorted((_span(ledger) for ledger in message.ledger_info), key=lambda span: span.ledger_id)),
        properties=_properties(message),
        terminated=terminated,
        kept=message.SerializeToString(),
    )


def encode_info(info: TopicInfo) -> bytes:
    message = ManagedLedgerInfo.FromString(info.kept)
    del message.ledger_info[:]
    del message.properties[:]
    for span in info.spans:
        _put_span(span, message.ledger_info.add())
    for key, value in info.properties.items():
        message.properties.add(key=key, value=value)
    if info.terminated is not None:
        message.terminated_position.ledger_id, message.terminated_position.entry_id = info.terminated
    return message.SerializeToString()


def _properties(message: ManagedLedgerInfo) -> dict[str, str]:
    try:
        return {checked(item.key): checked(item.value) for item in message.properties}
    except ValueError as error:
        raise MalformedMetadataError(f"a topic's node has a property that is no text: {error}") from None


def _span(ledger: ManagedLedgerInfo.LedgerInfo) -> LedgerSpan:
    return LedgerSpan(
        ledger_id=ledger.ledger_id,
        entries=ledger.entries,
        size_bytes=ledger.size,
        closed_ms=ledger.timestamp,
        kept=ledger.SerializeToString(),
    )


def _put_span(span: LedgerSpan, ledger: ManagedLedgerInfo.LedgerInfo) -> None:
    if span.kept:
        ledger.MergeFromString(span.kept)
    ledger.ledger_id = span.ledger_id
    ledger.timestamp = span.closed_ms
    if span.closed_ms:  # While it is written, nobody may believe in its numbers.
        ledger.entries = span.entries
        ledger.size = span.size_bytes


def is_offloaded(span: LedgerSpan) -> bool:
    """Whether the bookies do not have it any more."""
    if not span.kept:
        return False
    context = ManagedLedgerInfo.LedgerInfo.FromString(span.kept).offload_context
    return bool(context.complete and context.bookkeeper_deleted)


# --- compressed values ------------------------------------------------------------------------------------------------


def unpacked(value: bytes) -> bytes:
    """The value of a topic's or a cursor's node without its compression."""
    if len(value) < _COMPRESSED_HEAD.size:
        return value
    magic, size = _COMPRESSED_HEAD.unpack_from(value)
    if magic != _COMPRESSED_MAGIC:
        return value
    end = _COMPRESSED_HEAD.size + size
    if size < 0 or end > len(value):
        raise MalformedMetadataError(f"a compressed node of {len(value)} bytes has a head of {size}")
    head = parse_message(value[_COMPRESSED_HEAD.size : end], InfoMetadata, "the head of a compressed node")
    if not 0 <= head.uncompressed_size <= INFO_BYTES_MAX:
        raise MalformedMetadataError(f"a compressed node says it has {head.uncompressed_size} bytes")
    kind = pulsar_api_pb2.CompressionType.Value(CompressionType.Name(head.compression_type))
    try:
        return decompress(kind, value[end:], head.uncompressed_size, INFO_BYTES_MAX)
    except MalformedEntryError as error:
        raise MalformedMetadataError(f"a compressed node cannot be unpacked: {error}") from error


def parse_message(value: bytes, kind: type[M], what: str) -> M:
    try:
        message = kind.FromString(value)
    except (DecodeError, UnicodeDecodeError) as error:
        raise MalformedMetadataError(f"{what} is not what Pulsar writes there: {error}") from None
    if not message.IsInitialized():
        raise MalformedMetadataError(f"{what} is not what Pulsar writes there: a required field is missing")
    return message
