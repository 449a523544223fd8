"""The single messages of an entry: their keys and payloads, and what compaction leaves of a batch. Pure.

Messages of a batch keep their places, so one that is not kept becomes an empty one, marked `compacted_out`, and the
entry's metadata lists those that are left. Payload compression stays as it was. A message with a key and without a
payload deletes the key. An encrypted batch is one message with its own key, if it has one.

A key that is not UTF-8 is its bytes. Apache's compaction confuses two such keys if they look the same with replacement
characters, and loses a message then.

Format:    An entry of a compacted ledger is id_size i32 | MessageIdData | size i32 | the entry as it was in the topic.
           The id is its position there, so positions of a compacted topic are those of the topic.
Read next: head.py; topic/compaction.py
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.errors import MalformedEntryError
from magnetar.topic.entry_format.head import Text
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.compression import compress, decompress
from magnetar.wire.pulsar.entry import BatchedMessage, encode_batched_message, messages_of_batch
from magnetar.wire.pulsar.frames import text_of, with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageIdData, MessageMetadata, SingleMessageMetadata

NO_BATCH: Final = -1


class MessageKey(NamedTuple):
    """Describes one message of an entry."""

    batch_index: int
    """NO_BATCH stands for the whole entry."""
    key: Text | None
    size: int
    """The bytes of its payload; 0 deletes the key."""


class KeyedMessage(NamedTuple):
    key: str
    """The key as Java reads it: with replacement characters where it is not UTF-8."""
    payload: bytes | None
    """None: it deletes the key."""


def keyed_messages(entry: LogEntry) -> Iterator[KeyedMessage]:
    """Yields all messages of a plain entry that have a key, in order. Raises MalformedEntryError if it cannot be
    unpacked."""
    metadata = entry.head.metadata
    payload: bytes | memoryview = memoryview(entry.data)[entry.head.payload_offset :]
    if metadata.compression:
        payload = decompress(metadata.compression, payload, metadata.uncompressed_size)
    if not metadata.HasField("num_messages_in_batch"):
        yield from _keyed(metadata, payload)
        return
    for single, content in messages_of_batch(payload, metadata.num_messages_in_batch):
        yield from _keyed(single, content)


def _keyed(metadata: MessageMetadata | SingleMessageMetadata, payload: bytes | memoryview) -> Iterator[KeyedMessage]:
    if metadata.HasField("partition_key"):
        is_deletion = metadata.null_value or not payload
        yield KeyedMessage(text_of(metadata.partition_key), None if is_deletion else bytes(payload))


def encode_message(
    message: KeyedMessage,
    producer_name: str,
    publish_ms: int,
    schema_version: bytes | None,
    replicate_to: Sequence[str],
) -> bytes:
    """Encodes what a producer sends: one message by itself, with sequence id 0."""
    metadata = MessageMetadata(
        producer_name=producer_name,
        sequence_id=0,
        publish_time=publish_ms,
        partition_key=message.key,
        schema_version=schema_version,
        replicate_to=replicate_to,
    )
    if message.payload is None:
        metadata.null_value = True
    return with_checksum(metadata.SerializeToString(), message.payload or b"")


def keys_of(entry: LogEntry) -> list[MessageKey]:
    """Returns the keys of all messages of an entry that is not a chunk, except those compacted out before."""
    head = entry.head
    if not head.is_readable_batch:
        return [MessageKey(NO_BATCH, head.key, size_of(entry))]
    return [
        MessageKey(index, _key_of(message.metadata), message.metadata.payload_size)
        for index, message in enumerate(_messages(entry))
        if not message.metadata.compacted_out
    ]


def size_of(entry: LogEntry) -> int:
    """Returns the bytes of the payload; 0 deletes the key."""
    head = entry.head
    if head.metadata.null_value:
        return 0
    if head.metadata.HasField("uncompressed_size"):
        return int(head.metadata.uncompressed_size)
    return len(entry.data) - head.payload_offset


def _key_of(metadata: SingleMessageMetadata) -> Text | None:
    return metadata.partition_key if metadata.HasField("partition_key") else None


def _messages(entry: LogEntry) -> list[BatchedMessage]:
    head = entry.head
    payload = memoryview(entry.data)[head.payload_offset :]
    size = head.metadata.uncompressed_size or len(payload)
    plain = decompress(head.metadata.compression, payload, size)
    return list(messages_of_batch(plain, head.metadata.num_messages_in_batch))


def last_batch_index(entry: LogEntry) -> int:
    """Returns the index of the last message that was not compacted out, in an entry of a compacted ledger.

    NO_BATCH means that the entry is one message.
    """
    metadata = entry.head.metadata
    if not metadata.HasField("num_messages_in_batch"):
        return NO_BATCH
    left: Sequence[int] = metadata.compacted_batch_indexes
    if not left and entry.head.is_readable_batch:  # Older brokers of Apache's do not list them.
        left = [message.batch_index for message in keys_of(entry)]
    return max(left, default=metadata.num_messages_in_batch - 1)


def filtered_batch(entry: LogEntry, is_kept: Callable[[int, Text | None], bool]) -> bytes | None:
    """Returns the entry with only these messages, chosen by index and key; None if none is left."""
    kept: list[int] = []
    parts: list[bytes] = []
    for index, message in enumerate(_messages(entry)):
        if not message.metadata.compacted_out and is_kept(index, _key_of(message.metadata)):
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


_SIZE = struct.Struct(">i")


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
        raise MalformedEntryError(f"an entry of a compacted ledger has no readable position: {error}") from None
    if not position.IsInitialized():
        raise MalformedEntryError("an entry of a compacted ledger has no position: no ledger or no entry")
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
