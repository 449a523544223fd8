"""Entries as compaction sees them: which keys they hold, and what is left of a batch. Pure.

Stored:    an entry of a compacted ledger is id_size i32 | MessageIdData | size i32 | the entry as it was in the topic.
           The id is where it was there, so positions of a compacted topic are those of the topic.
Batches:   messages of a batch keep their places: one that is not kept becomes an empty one, marked `compacted_out`, and
           the entry's metadata lists those that are left. Payload compression stays what it was.
Deleted:   a message with a key and without a payload deletes the key.
Text:      keys that are not UTF-8 are the same if they are the same text, with replacement characters, as in Apache's.
Unread:    an encrypted batch is one message with its own key, if it has one; markers are dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.errors import MalformedEntryError
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.pulsar.batch import BatchedMessage, encode_batched_message, messages_of_batch
from magnetar.wire.pulsar.checksum import with_checksum
from magnetar.wire.pulsar.compression import compress, decompress
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageIdData, MessageMetadata, SingleMessageMetadata
from magnetar.wire.pulsar.text import text_of

NO_BATCH: Final = -1
_SIZE = struct.Struct(">i")


class MessageKey(NamedTuple):
    """One message of an entry."""

    batch_index: int
    """NO_BATCH: it is the whole entry."""
    key: str | None
    size: int
    """Of its payload; 0 deletes the key."""


# --- the stored form --------------------------------------------------------------------------------------------------


def encode_compacted(position: Position, data: Buffer) -> bytes:
    head = encode_message_id(position)
    return b"".join((_SIZE.pack(len(head)), head, _SIZE.pack(len(data)), data))


def decode_compacted(stored: Buffer) -> LogEntry:
    view = memoryview(stored)
    head, offset = _sized(view, 0)
    data, _ = _sized(view, offset)
    try:
        position = MessageIdData.FromString(head)  # type: ignore[arg-type]
    except DecodeError as error:
        raise MalformedEntryError(f"an entry of a compacted ledger does not say whose it is: {error}") from None
    if not position.IsInitialized():
        raise MalformedEntryError("an entry of a compacted ledger does not say whose it is: no ledger or no entry")
    return LogEntry(Position(position.ledgerId, position.entryId), data)


def encode_message_id(position: Position) -> bytes:
    return MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id).SerializeToString()


def _sized(view: memoryview, offset: int) -> tuple[memoryview, int]:
    start = offset + _SIZE.size
    if start > len(view):
        raise MalformedEntryError(f"an entry of a compacted ledger ends at byte {len(view)}")
    end = start + int(_SIZE.unpack_from(view, offset)[0])
    if not start <= end <= len(view):
        raise MalformedEntryError(f"an entry of a compacted ledger of {len(view)} bytes has a part up to byte {end}")
    return view[start:end], end


# --- keys -------------------------------------------------------------------------------------------------------------


def is_marker(entry: LogEntry) -> bool:
    return entry.head.metadata.HasField("marker_type")


def is_readable_batch(metadata: MessageMetadata) -> bool:
    return metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys


def keys_of(entry: LogEntry) -> list[MessageKey]:
    """Of all its messages, but those that an earlier compaction has taken out."""
    metadata = entry.head.metadata
    if not is_readable_batch(metadata):
        return [MessageKey(NO_BATCH, _key(metadata), _size(entry))]
    return [
        MessageKey(index, _key(message.metadata), message.metadata.payload_size)
        for index, message in enumerate(_messages(entry))
        if not message.metadata.compacted_out
    ]


def _size(entry: LogEntry) -> int:
    head = entry.head
    if head.metadata.null_value:
        return 0
    if head.metadata.HasField("uncompressed_size"):
        return int(head.metadata.uncompressed_size)
    return len(entry.data) - head.payload_offset


def _key(metadata: MessageMetadata | SingleMessageMetadata) -> str | None:
    return text_of(metadata.partition_key) if metadata.HasField("partition_key") else None


def _messages(entry: LogEntry) -> list[BatchedMessage]:
    head = entry.head
    payload = memoryview(entry.data)[head.payload_offset :]
    size = head.metadata.uncompressed_size or len(payload)
    plain = decompress(head.metadata.compression, payload, size)
    return list(messages_of_batch(plain, head.metadata.num_messages_in_batch))


# --- what is left of a batch ------------------------------------------------------------------------------------------


def filtered_batch(entry: LogEntry, is_kept: Callable[[int, str | None], bool]) -> bytes | None:
    """The entry with only these messages, by index and key; None if none is left."""
    kept: list[int] = []
    parts: list[bytes] = []
    for index, message in enumerate(_messages(entry)):
        if not message.metadata.compacted_out and is_kept(index, _key(message.metadata)):
            kept.append(index)
            parts.append(encode_batched_message(message.metadata, message.payload))
        else:
            parts.append(encode_batched_message(SingleMessageMetadata(compacted_out=True), b""))
    if not kept:
        return None
    head = entry.head
    payload = b"".join(parts)
    metadata = MessageMetadata()
    metadata.CopyFrom(head.metadata)
    del metadata.compacted_batch_indexes[:]
    metadata.compacted_batch_indexes.extend(kept)
    metadata.uncompressed_size = len(payload)
    body = with_checksum(metadata.SerializeToString(), compress(metadata.compression, payload))
    return bytes(memoryview(entry.data)[: head.body_offset]) + body
