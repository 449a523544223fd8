"""What a producer sends: messages, alone or as a batch, made into headers and payload. Pure.

A batch is one entry with the sequence id of its first message, and that of its last as the highest. Its metadata
repeats the key of the first message, as Pulsar's clients do. A message with a delivery time is never in a batch.

A message that is too large for an entry becomes several chunks, with one sequence id and one name (uuid) in common. It
is compressed as a whole before it is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.errors import InvalidMessageError
from magnetar.wire.compression import compress
from magnetar.wire.pulsar.entry import encode_batched_message
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import NONE, KeyValue, MessageMetadata, SingleMessageMetadata

OVERHEAD_BYTES = 64
"""Approximates what a message has around its payload; only for deciding when a batch is full."""

_NUMBER_MAX: Final = 2**63 - 1  # What Java's clients can read back.


@dataclass(frozen=True, slots=True)
class Outgoing:
    sequence_id: int
    payload: bytes | None
    """None for a message without a value."""
    key: str | None = None
    ordering_key: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    event_ms: int = 0
    deliver_at_ms: int = 0
    schema_version: bytes = b""
    """Only of a message that is not in a batch, as the next: empty for the producer's own."""
    replicate_to: Sequence[str] = ()

    @property
    def size(self) -> int:
        return len(self.payload or b"") + OVERHEAD_BYTES

    def check(self) -> None:
        """Raises InvalidMessageError now, and not when the batch is sealed that it shares with others."""
        for name, number in (("sequence_id", self.sequence_id), ("event_ms", self.event_ms)):
            if not 0 <= number <= _NUMBER_MAX:
                raise InvalidMessageError(f"{name} {number} cannot be sent: it must be from 0 to {_NUMBER_MAX}")
        if not -_NUMBER_MAX <= self.deliver_at_ms <= _NUMBER_MAX:
            raise InvalidMessageError(f"deliver_at_ms {self.deliver_at_ms} cannot be sent: it exceeds 64 bits")
        for text in (self.key or "", *self.properties, *self.properties.values()):
            if not text.isascii():
                _check_text(text)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"{text[:40]!r} cannot be sent as a key or a property: {error.reason}") from None


@dataclass(frozen=True, slots=True)
class Seal:
    """What all entries of a producer share."""

    producer_name: str
    compression: int = NONE
    schema_version: bytes = b""


def seal_single(seal: Seal, message: Outgoing, publish_ms: int) -> bytes:
    metadata = _metadata(seal, message.sequence_id, publish_ms)
    _describe(metadata, message)
    if message.deliver_at_ms:
        metadata.deliver_at_time = message.deliver_at_ms
    if message.schema_version:
        metadata.schema_version = message.schema_version
    metadata.replicate_to.extend(message.replicate_to)
    return _seal(seal, metadata, message.payload or b"")


def seal_chunks(seal: Seal, message: Outgoing, publish_ms: int, bytes_max: int) -> list[bytes]:
    """Returns the message as entries of at most `bytes_max` each. InvalidMessageError if not even its metadata fits."""
    metadata = _metadata(seal, message.sequence_id, publish_ms)
    _describe(metadata, message)
    if message.deliver_at_ms:
        metadata.deliver_at_time = message.deliver_at_ms
    payload = _compressed(seal, metadata, message.payload or b"")
    metadata.uuid = f"{seal.producer_name}-{message.sequence_id}"
    metadata.total_chunk_msg_size = len(payload)
    metadata.num_chunks_from_msg = metadata.chunk_id = len(payload)  # More than it will be, so that there is room.
    room = bytes_max - len(with_checksum(metadata.SerializeToString(), b""))
    if room <= 0:
        raise InvalidMessageError(f"the key and the properties of a message exceed the broker's limit of {bytes_max:,}")
    metadata.num_chunks_from_msg = -(-len(payload) // room)
    entries = []
    for number in range(metadata.num_chunks_from_msg):
        metadata.chunk_id = number
        entries.append(with_checksum(metadata.SerializeToString(), payload[number * room : (number + 1) * room]))
    return entries


def seal_batch(seal: Seal, messages: Sequence[Outgoing], publish_ms: int) -> bytes:
    first, last = messages[0], messages[-1]
    metadata = _metadata(seal, first.sequence_id, publish_ms)
    metadata.num_messages_in_batch = len(messages)
    metadata.highest_sequence_id = last.sequence_id
    if first.key is not None:
        metadata.partition_key = first.key
    if first.ordering_key:
        metadata.ordering_key = first.ordering_key
    return _seal(seal, metadata, b"".join(map(_single, messages)))


def _single(message: Outgoing) -> bytes:
    metadata = SingleMessageMetadata(sequence_id=message.sequence_id)
    _describe(metadata, message)
    return encode_batched_message(metadata, message.payload or b"")


def _metadata(seal: Seal, sequence_id: int, publish_ms: int) -> MessageMetadata:
    metadata = MessageMetadata(producer_name=seal.producer_name, sequence_id=sequence_id, publish_time=publish_ms)
    if seal.schema_version:
        metadata.schema_version = seal.schema_version
    return metadata


def _describe(metadata: MessageMetadata | SingleMessageMetadata, message: Outgoing) -> None:
    metadata.properties.extend(KeyValue(key=key, value=value) for key, value in message.properties.items())
    if message.key is not None:
        metadata.partition_key = message.key
    if message.ordering_key:
        metadata.ordering_key = message.ordering_key
    if message.event_ms:
        metadata.event_time = message.event_ms
    if message.payload is None:
        metadata.null_value = True


def _seal(seal: Seal, metadata: MessageMetadata, payload: bytes) -> bytes:
    sealed = _compressed(seal, metadata, payload)
    return with_checksum(metadata.SerializeToString(), sealed)


def _compressed(seal: Seal, metadata: MessageMetadata, payload: bytes) -> bytes:
    if seal.compression == NONE:
        return payload
    metadata.compression = seal.compression  # type: ignore[assignment]  # A number of the enum.
    metadata.uncompressed_size = len(payload)
    return compress(seal.compression, payload)
