"""Entries as a consumer receives them, opened into messages. Pure.

Batch:     its messages one by one, but those that are acknowledged already, or were compacted away.
Encrypted: cannot be opened here: one message, as the producer encrypted it.
Chunks:    a large message comes as several entries; they are joined when the last one is there. Only so many messages
           may be incomplete at a time; the oldest is given up, and comes again when its chunks are redelivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from magnetar.client.message import Message, MessageId, id_from_wire
from magnetar.errors import MalformedEntryError
from magnetar.wire.pulsar.batch import messages_of_batch
from magnetar.wire.pulsar.checksum import verify_checksum
from magnetar.wire.pulsar.compression import decompress
from magnetar.wire.pulsar.entry import EntryHead, parse_entry
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import CommandMessage, MessageMetadata, SingleMessageMetadata
from magnetar.wire.pulsar.text import text_of

INCOMPLETE_MAX: Final = 10  # Messages of which some chunks are missing.
_CHUNKED_BYTES_MAX: Final = 1 << 30
_WORD_BITS: Final = 64


def open_entry(topic: str, partition: int, command: CommandMessage, data: bytes) -> list[Message]:
    """All messages of one delivery. Raises MalformedEntryError, also when the checksum is wrong."""
    head = parse_entry(data)
    if not verify_checksum(memoryview(data)[head.body_offset :]):
        raise MalformedEntryError("the checksum of a message is wrong")
    metadata = head.metadata
    message_id = id_from_wire(command.message_id, partition)._replace(batch_index=-1)
    is_opaque = bool(metadata.encryption_keys)
    payload = data[head.payload_offset :]
    if not is_opaque and not is_chunk(metadata):  # Chunks are parts of what was compressed as a whole.
        payload = decompress(metadata.compression, payload, metadata.uncompressed_size)
    if metadata.HasField("num_messages_in_batch") and not is_opaque:
        return list(_messages_of_batch(topic, message_id, command, head, payload))
    return [_message(topic, message_id, command, head, payload)]


def is_chunk(metadata: MessageMetadata) -> bool:
    return metadata.num_chunks_from_msg > 1


def _message(topic: str, message_id: MessageId, command: CommandMessage, head: EntryHead, payload: bytes) -> Message:
    metadata = head.metadata
    return Message(
        id=message_id,
        topic=topic,
        payload=payload,
        key=_key(metadata),
        ordering_key=metadata.ordering_key,
        properties=_properties(metadata),
        producer_name=text_of(metadata.producer_name),
        sequence_id=metadata.sequence_id,
        publish_ms=metadata.publish_time,
        event_ms=metadata.event_time,
        redelivery_count=command.redelivery_count,
        index=head.index,
        is_null=metadata.null_value,
        is_encrypted=bool(metadata.encryption_keys),
        metadata=metadata,
    )


def _messages_of_batch(
    topic: str, entry: MessageId, command: CommandMessage, head: EntryHead, payload: bytes
) -> Iterator[Message]:
    metadata = head.metadata
    size = metadata.num_messages_in_batch
    unacked = _bits(command.ack_set) if command.ack_set else -1
    for index, (single, body) in enumerate(messages_of_batch(payload, size)):
        if unacked >> index & 1 and not single.compacted_out:
            yield Message(
                id=entry._replace(batch_index=index),
                topic=topic,
                payload=bytes(body),
                key=_key(single),
                ordering_key=single.ordering_key,
                properties=_properties(single),
                producer_name=text_of(metadata.producer_name),
                sequence_id=single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id + index,
                publish_ms=metadata.publish_time,
                event_ms=single.event_time,
                redelivery_count=command.redelivery_count,
                index=None if head.index is None else head.index - (size - 1) + index,
                batch_size=size,
                is_null=single.null_value,
                metadata=metadata,
            )


def _key(metadata: MessageMetadata | SingleMessageMetadata) -> str | None:
    has_key = metadata.HasField("partition_key") and not metadata.null_partition_key
    return text_of(metadata.partition_key) if has_key else None


def _properties(metadata: MessageMetadata | SingleMessageMetadata) -> dict[str, str]:
    return {text_of(pair.key): text_of(pair.value) for pair in metadata.properties}


def _bits(words: Iterable[int]) -> int:
    """A Java bit set: words of 64 bits, the lowest first; a bit that is set is a message not yet acknowledged."""
    value = 0
    for at, word in enumerate(words):
        value |= (word % 2**_WORD_BITS) << at * _WORD_BITS
    return value


class Chunks:
    """Messages of which some chunks are here, of one consumer."""

    def __init__(self) -> None:
        self._incomplete: dict[str, list[Message]] = {}

    def add(self, chunk: Message) -> Message | None:
        """The whole message, if this was its last chunk."""
        metadata = chunk.metadata
        assert metadata is not None
        parts = self._incomplete.setdefault(metadata.uuid, [])
        if metadata.chunk_id == 0:
            parts.clear()
        if metadata.chunk_id != len(parts) or metadata.total_chunk_msg_size > _CHUNKED_BYTES_MAX:
            return None  # Repeated, or one before it is missing: it comes again with the others.
        parts.append(chunk)
        if len(parts) < metadata.num_chunks_from_msg:
            self._give_up_oldest()
            return None
        del self._incomplete[metadata.uuid]
        payload = b"".join(part.payload for part in parts)
        if not chunk.is_encrypted:
            size = metadata.uncompressed_size or len(payload)
            payload = decompress(metadata.compression, payload, size, _CHUNKED_BYTES_MAX)
        return replace(chunk, payload=payload, chunk_ids=tuple(part.id for part in parts))

    def clear(self) -> None:
        self._incomplete.clear()

    def _give_up_oldest(self) -> None:
        while len(self._incomplete) > INCOMPLETE_MAX:
            del self._incomplete[next(iter(self._incomplete))]
