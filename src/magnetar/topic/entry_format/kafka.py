"""Entries that hold a batch of Kafka's, as its producer sent it, and the two conversions between both protocols.

A batch is stored as it came, after the metadata of a Pulsar message that marks it. Only its base offset, which is the
index of its first message, and its leader epoch are set; both are before the part that the checksum covers. Readers of
the other protocol get a conversion: `as_pulsar` for an entry of Kafka's, `as_kafka` for one of Pulsar's.

Invariant: A conversion depends on the entry alone, so every broker makes the same bytes, and a message has the same
           index, which is its offset, for both protocols.
Format:    broker's header | metadata_size u32 | MessageMetadata | batch. There is no checksum of Pulsar's: the batch
           has its own. The metadata begins with the property `entry.format=kafka`, so that one comparison finds it.
           It has no num_messages_in_batch: a broker of Apache's passes the entry to its clients as one message with
           bytes that they cannot read, instead of a batch that makes them fail.
           docs/kafka.md has the table of what becomes of keys, headers and times.
Failure:   A batch that cannot be opened is a MalformedEntryError.
Read next: wire/kafka/batches.py; head.py
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from magnetar.errors import KafkaRefusedError, MalformedEntryError
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.compression import decompress
from magnetar.wire.kafka.batches import (
    EPOCH_END,
    LENGTH_END,
    BatchHead,
    Header,
    Record,
    encode_batch,
    encode_gap,
    read_head,
    records_of,
)
from magnetar.wire.pulsar.encode import varint
from magnetar.wire.pulsar.entry import EntryHead, body_offset_of, encode_batched_message, messages_of_batch
from magnetar.wire.pulsar.frames import text_of, with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata

_MARK: Final = b"\x22\x15\x0a\x0centry.format\x12\x05kafka"
_PRODUCER: Final = b"\x0a\x05kafka"
_SEQUENCE_TAG: Final = b"\x10"
_PUBLISH_TIME_TAG: Final = b"\x18"
_SIZE_BYTES: Final = 4
_PRODUCER_NAME: Final = "kafka"
_MESSAGE_BYTES_MIN: Final = (
    6  # A message in a batch of Pulsar's has at least the size of its metadata, and that of its payload.
)

NOT_TEXT: Final = "kafka.b64"
"""Property that lists the headers whose values are base64, because they are not text."""
NULL: Final = "kafka.null"
"""Property that lists the headers whose values are null."""
ORDERING_KEY: Final = "pulsar.ordering_key"
SCHEMA_VERSION: Final = "pulsar.schema_version"
REPLICATED_FROM: Final = "pulsar.replicated_from"
_ENCRYPTION: Final = "pulsar.encryption"


# --- the stored form --------------------------------------------------------------------------------------------------


def body_parts(batch: Buffer, base_offset: int, leader_epoch: int, publish_ms: int) -> tuple[Buffer, ...]:
    """Returns what is stored of a checked batch after the broker's header, to be joined with it in one copy."""
    view = memoryview(batch)
    metadata = b"".join(
        (_MARK, _PRODUCER, _SEQUENCE_TAG, varint(base_offset), _PUBLISH_TIME_TAG, varint(publish_ms)),
    )
    return (
        len(metadata).to_bytes(_SIZE_BYTES, "big"),
        metadata,
        base_offset.to_bytes(8, "big"),
        view[8:LENGTH_END],
        leader_epoch.to_bytes(4, "big", signed=True),
        view[EPOCH_END:],
    )


def is_kafka(data: Buffer) -> bool:
    """Reports whether a stored entry holds a batch of Kafka's."""
    start = body_offset_of(data) + _SIZE_BYTES
    return bytes(data[start : start + len(_MARK)]) == _MARK


def batch_of(data: Buffer) -> memoryview:
    """Returns the batch of an entry that holds one."""
    view = memoryview(data)
    start = body_offset_of(view) + _SIZE_BYTES
    return view[start + int.from_bytes(view[start - _SIZE_BYTES : start], "big") :]


def head_of(batch: Buffer) -> BatchHead:
    try:
        return read_head(batch)
    except KafkaRefusedError as error:
        raise MalformedEntryError(f"an entry has no readable batch: {error}") from None


def messages_in(batch: Buffer) -> int:
    """Returns how many messages a batch counts for, which is how many offsets it covers."""
    return max(1, head_of(batch).last_offset_delta + 1)


# --- Kafka's batch for Pulsar's readers -------------------------------------------------------------------------------


def as_pulsar(data: Buffer, bytes_max: int) -> bytes:
    """Returns an entry of Kafka's as a batch of Pulsar's, after the same broker's header. It is not compressed."""
    view = memoryview(data)
    batch = batch_of(view)
    head = head_of(batch)
    count = messages_in(batch)
    if count * _MESSAGE_BYTES_MIN > bytes_max:
        raise MalformedEntryError(f"the batch at offset {head.base_offset} claims {count} messages")
    try:
        records = {record.offset_delta: record for record in records_of(batch, head, bytes_max)}
    except KafkaRefusedError as error:
        raise MalformedEntryError(f"the batch at offset {head.base_offset} cannot be opened: {error}") from None
    payload = b"".join(_message_of(records.get(delta)) for delta in range(count))
    if len(payload) > bytes_max:
        raise MalformedEntryError(
            f"the batch at offset {head.base_offset} is too large for Pulsar's clients: it has {len(payload)} bytes, "
            f"and the limit is {bytes_max}"
        )
    start = body_offset_of(view)
    stored = MessageMetadata.FromString(view[start + _SIZE_BYTES : len(view) - len(batch)])  # type: ignore[arg-type]
    metadata = MessageMetadata(
        producer_name=_PRODUCER_NAME,
        sequence_id=stored.sequence_id,
        publish_time=stored.publish_time,
        num_messages_in_batch=count,
        uncompressed_size=len(payload),
    )
    return bytes(view[:start]) + with_checksum(metadata.SerializeToString(), payload)


def in_pulsar_form(data: Buffer, bytes_max: int) -> Buffer:
    """Returns any stored entry as one of Pulsar's: as it is, or converted."""
    return as_pulsar(data, bytes_max) if is_kafka(data) else data


def _message_of(record: Record | None) -> bytes:
    metadata = SingleMessageMetadata()
    if record is None:
        metadata.compacted_out = True
        return encode_batched_message(metadata, b"")
    _put_key(metadata, record.key)
    _put_properties(metadata, record.headers)
    if record.timestamp > 0:
        metadata.event_time = record.timestamp
    if record.value is None:
        metadata.null_value = True
    return encode_batched_message(metadata, record.value or b"")


def _put_key(metadata: SingleMessageMetadata, key: bytes | None) -> None:
    if key is None:
        return
    try:
        metadata.partition_key = key.decode()
    except UnicodeDecodeError:
        metadata.partition_key = base64.b64encode(key).decode()
        metadata.partition_key_b64_encoded = True


def _put_properties(metadata: SingleMessageMetadata, headers: Iterable[Header]) -> None:
    nulls, encoded = [], []
    for name, value in headers:
        if value is None:
            nulls.append(name)
            metadata.properties.add(key=name, value="")
            continue
        try:
            text = value.decode()
        except UnicodeDecodeError:
            encoded.append(name)
            text = base64.b64encode(value).decode()
        metadata.properties.add(key=name, value=text)
    for name, listed in ((NOT_TEXT, encoded), (NULL, nulls)):
        if listed:
            metadata.properties.add(key=name, value=",".join(listed))


# --- Pulsar's entry for Kafka's readers -------------------------------------------------------------------------------


def as_kafka(
    head: EntryHead, data: Buffer, first_index: int, messages: int, leader_epoch: int, bytes_max: int
) -> bytes:
    """Returns an entry of Pulsar's as one batch that is not compressed. Offsets without a message that Kafka's readers
    can get, such as markers and chunks, are covered by a batch without records, or by a record that is missing in it.
    """
    metadata = head.metadata
    if metadata.HasField("marker_type") or metadata.num_chunks_from_msg > 1:
        return encode_gap(first_index, messages, leader_epoch)
    payload: Buffer = memoryview(data)[head.payload_offset :]
    if metadata.encryption_keys:
        records = [_encrypted(metadata, bytes(payload), messages - 1)]
    else:
        if metadata.compression:
            payload = decompress(metadata.compression, payload, metadata.uncompressed_size, bytes_max)
        records = list(_records(metadata, payload))
    if not records:
        return encode_gap(first_index, messages, leader_epoch)
    return encode_batch(records, base_offset=first_index, last_offset_delta=messages - 1, leader_epoch=leader_epoch)


def gap(first_index: int, messages: int, leader_epoch: int) -> bytes:
    """Returns what Kafka's readers get of an entry that cannot be read."""
    return encode_gap(first_index, messages, leader_epoch)


def _records(metadata: MessageMetadata, payload: Buffer) -> Iterator[Record]:
    common = _common_headers(metadata)
    publish_ms = int(metadata.publish_time)
    if not metadata.HasField("num_messages_in_batch"):
        yield _record(0, metadata, bytes(payload), publish_ms, common)
        return
    for delta, (single, content) in enumerate(messages_of_batch(payload, metadata.num_messages_in_batch)):
        if not single.compacted_out:
            yield _record(delta, single, bytes(content), publish_ms, common)


def _record(
    delta: int,
    metadata: MessageMetadata | SingleMessageMetadata,
    payload: bytes,
    publish_ms: int,
    common: Sequence[Header],
) -> Record:
    headers = [Header(text_of(each.key), _bytes_of(each.value)) for each in metadata.properties]
    key = _key_of(metadata)
    if metadata.HasField("ordering_key"):
        if metadata.HasField("partition_key"):
            headers.append(Header(ORDERING_KEY, metadata.ordering_key))
        else:
            key = metadata.ordering_key
    return Record(
        delta,
        int(metadata.event_time) or publish_ms,
        key,
        None if metadata.null_value else payload,
        (*headers, *common),
    )


def _key_of(metadata: MessageMetadata | SingleMessageMetadata) -> bytes | None:
    if not metadata.HasField("partition_key") or metadata.null_partition_key:
        return None
    key = _bytes_of(metadata.partition_key)
    if not metadata.partition_key_b64_encoded:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:  # It claims to be base64, and is not: its reader gets what is stored.
        return key


def _common_headers(metadata: MessageMetadata) -> list[Header]:
    """Returns the headers that every message of the entry gets."""
    headers = []
    if metadata.HasField("schema_version"):
        headers.append(Header(SCHEMA_VERSION, metadata.schema_version))
    if metadata.HasField("replicated_from"):
        headers.append(Header(REPLICATED_FROM, _bytes_of(metadata.replicated_from)))
    return headers


def _encrypted(metadata: MessageMetadata, payload: bytes, delta: int) -> Record:
    """Returns the ciphertext, with what its reader needs to decrypt it; of a batch it is one record for all."""
    keys = [Header(f"{_ENCRYPTION}.key.{text_of(each.key)}", each.value) for each in metadata.encryption_keys]
    record = _record(delta, metadata, payload, int(metadata.publish_time), _common_headers(metadata))
    about = (
        Header(f"{_ENCRYPTION}.algorithm", _bytes_of(metadata.encryption_algo)),
        Header(f"{_ENCRYPTION}.param", metadata.encryption_param),
    )
    return record._replace(headers=(*record.headers, *keys, *about))


def _bytes_of(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
