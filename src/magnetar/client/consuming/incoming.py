"""Received messages: entries opened into messages, chunks joined, and the inbox where they wait.

A batch becomes its messages, without those that are acknowledged already or were compacted away. An encrypted entry
cannot be opened here: it becomes one message, as the producer encrypted it. A large message comes as several entries,
its chunks; they are joined when the last one has come. An inbox serves one consumer, or all partitions of a topic.

Limits:    Each consumer lets its broker send a limited number, and gets a permit back for each message that is taken or
           dropped. A limited number of chunked messages may be incomplete at a time. The oldest is given up, and comes
           again when its chunks are redelivered.
Failure:   When nothing is left and nothing more will come, a caller that waits gets the reason as an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from magnetar.client.values import Message, MessageId, id_from_wire
from magnetar.errors import EndOfTopicError, MagnetarError, MalformedEntryError
from magnetar.wire.compression import decompress
from magnetar.wire.pulsar.entry import EntryHead, messages_of_batch, parse_entry
from magnetar.wire.pulsar.frames import text_of, verify_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import CommandMessage, MessageMetadata, SingleMessageMetadata


class Source(Protocol):
    error: MagnetarError | None
    is_at_end: bool
    topic: str

    def on_taken(self, messages: int) -> None: ...


class Inbox:
    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._items: deque[tuple[Source, Message | MagnetarError]] = deque()
        self._something = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, source: Source, items: Sequence[Message | MagnetarError]) -> None:
        """Puts items. An error in the place of a message is raised when its turn comes."""
        self._items.extend((source, item) for item in items)
        self.wake()

    def wake(self) -> None:
        self._something.set()

    def drop(self, source: Source) -> int:
        """Drops what came from `source` and was not taken. Returns the number of messages."""
        before = len(self._items)
        self._items = deque(item for item in self._items if item[0] is not source)
        return before - len(self._items)

    def take_nowait(self) -> Message | None:
        """Returns None if nothing has come."""
        if not self._items:
            self._check_end()
            return None
        source, item = self._items.popleft()
        source.on_taken(1)
        if isinstance(item, MagnetarError):
            raise item
        return item

    async def take(self, timeout_s: float) -> Message:
        """Raises TimeoutError."""
        if self._items:
            message = self.take_nowait()
            if message is not None:
                return message
        async with asyncio.timeout(timeout_s):
            while (message := self.take_nowait()) is None:
                self._something.clear()
                await self._something.wait()
        return message

    def _check_end(self) -> None:
        for source in self.sources:
            if source.error is not None:
                raise source.error
        if self.sources and all(source.is_at_end for source in self.sources):
            raise EndOfTopicError(f"{self.sources[0].topic} was terminated, and all of it was received")


INCOMPLETE_MAX: Final = 10  # Messages of which some chunks are missing.
CHUNKED_BYTES_MAX: Final = 1 << 30  # A message that is joined from chunks.
_WORD_BITS: Final = 64


def open_entry(topic: str, partition: int, command: CommandMessage, data: bytes) -> list[Message]:
    """Returns all messages of one delivery. Raises MalformedEntryError, also when the checksum is wrong."""
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
    """Converts a Java bit set: words of 64 bits, the lowest first; a set bit is a message not yet acknowledged."""
    value = 0
    for at, word in enumerate(words):
        value |= (word % 2**_WORD_BITS) << at * _WORD_BITS
    return value


class Chunks:
    """Joins the chunks of one consumer's messages."""

    def __init__(self) -> None:
        self._incomplete: dict[str, list[Message]] = {}

    def add(self, chunk: Message) -> Message | None:
        """Returns the whole message, if this was its last chunk."""
        metadata = chunk.metadata
        assert metadata is not None
        parts = self._incomplete.setdefault(metadata.uuid, [])
        if metadata.chunk_id == 0:
            parts.clear()
        if metadata.chunk_id != len(parts) or metadata.total_chunk_msg_size > CHUNKED_BYTES_MAX:
            return None  # Repeated, or one before it is missing: it comes again with the others.
        parts.append(chunk)
        if len(parts) < metadata.num_chunks_from_msg:
            self._give_up_oldest()
            return None
        del self._incomplete[metadata.uuid]
        payload = b"".join(part.payload for part in parts)
        if not chunk.is_encrypted:
            size = metadata.uncompressed_size or len(payload)
            payload = decompress(metadata.compression, payload, size, CHUNKED_BYTES_MAX)
        return replace(chunk, payload=payload, chunk_ids=tuple(part.id for part in parts))

    def clear(self) -> None:
        self._incomplete.clear()

    def _give_up_oldest(self) -> None:
        while len(self._incomplete) > INCOMPLETE_MAX:
            del self._incomplete[next(iter(self._incomplete))]
