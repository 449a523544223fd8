"""Entries as brokers store them, made by hand, and what a decoder that goes message by message makes of them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from magnetar.spark.decoding.columns import Columns, raw_columns
from magnetar.spark.decoding.decoder import EntryDecoder
from magnetar.spark.decoding.inputs import DecodeOptions, EntryRun
from magnetar.wire.compression import compress, decompress
from magnetar.wire.pulsar.entry import (
    broker_entry_header,
    encode_batched_message,
    messages_in,
    messages_of_batch,
    parse_entry,
)
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata

TOPIC = "persistent://public/default/read"
LEDGER = 7
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Sent:
    """A message as its producer means it."""

    value: bytes | None = b"value"
    key: str | bytes | None = None
    properties: Sequence[tuple[str, str]] = ()
    event_ms: int = 0
    sequence_id: int | None = 0
    has_null_key: bool = False
    is_compacted_out: bool = False
    ordering_key: bytes = b""

    def fill(self, metadata: MessageMetadata | SingleMessageMetadata) -> None:
        for name, text in self.properties:
            metadata.properties.add(key=name, value=text)
        if self.key is not None:
            is_bytes = isinstance(self.key, bytes)
            metadata.partition_key = base64.b64encode(self.key).decode() if is_bytes else self.key  # type: ignore[arg-type,assignment]
            if is_bytes:
                metadata.partition_key_b64_encoded = True
        if self.has_null_key:
            metadata.null_partition_key = True
        if self.event_ms:
            metadata.event_time = self.event_ms
        if self.value is None:
            metadata.null_value = True
        if self.ordering_key:
            metadata.ordering_key = self.ordering_key


@dataclass(frozen=True)
class EntryFields:
    compression: int = 0
    index: int | None = None
    publish_ms: int = 1_700_000_000_123
    producer: str = "producer-1"
    sequence_id: int = 5
    schema_version: bytes = b""
    has_checksum: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)


USUAL = EntryFields()
DEFAULTS = DecodeOptions()


def batch(messages: Sequence[Sent], fields: EntryFields = USUAL) -> bytes:
    return stored(batch_payload(messages), fields, num_messages_in_batch=len(messages))


def batch_payload(messages: Sequence[Sent]) -> bytes:
    parts: list[bytes] = []
    for message in messages:
        single = SingleMessageMetadata()
        message.fill(single)
        if message.sequence_id is not None:
            single.sequence_id = message.sequence_id
        if message.is_compacted_out:
            single.compacted_out = True
        parts.append(encode_batched_message(single, message.value or b""))
    return b"".join(parts)


def single(message: Sent, fields: EntryFields = USUAL) -> bytes:
    metadata = _metadata(fields)
    message.fill(metadata)
    return _finished(metadata, message.value or b"", fields)


def stored(payload: bytes, fields: EntryFields = USUAL, **more: Any) -> bytes:
    metadata = _metadata(fields)
    for name, value in more.items():
        setattr(metadata, name, value)
    return _finished(metadata, payload, fields)


def _metadata(fields: EntryFields) -> MessageMetadata:
    metadata = MessageMetadata(
        producer_name=fields.producer, sequence_id=fields.sequence_id, publish_time=fields.publish_ms, **fields.more
    )
    if fields.schema_version:
        metadata.schema_version = fields.schema_version
    return metadata


def _finished(metadata: MessageMetadata, payload: bytes, fields: EntryFields) -> bytes:
    if fields.compression:
        metadata.compression = fields.compression  # type: ignore[assignment]
        metadata.uncompressed_size = len(payload)
        payload = compress(fields.compression, payload)
    body = with_checksum(metadata.SerializeToString(), payload)
    if not fields.has_checksum:
        body = body[6:]
    head = b"" if fields.index is None else broker_entry_header(fields.index, fields.publish_ms + 1)
    return head + body


def run(entries: Sequence[bytes], **more: Any) -> EntryRun:
    fields = {"topic": TOPIC, "partition": 2, "ledger_id": LEDGER, "first_entry_id": 100, "first_index": 1000, **more}
    return EntryRun(entries=entries, **fields)


def decode(*runs: EntryRun, columns: Columns | None = None, options: DecodeOptions = DEFAULTS) -> list[dict[str, Any]]:
    """All rows, as Python has them."""
    return [row for made in batches(*runs, columns=columns, options=options) for row in plain(made)]


def batches(*runs: EntryRun, columns: Columns | None = None, options: DecodeOptions = DEFAULTS) -> list[pa.RecordBatch]:
    columns = columns or raw_columns(include_headers=True)
    decoder = EntryDecoder(columns, options)
    made = [each for one in runs for each in decoder.feed(one)]
    made += decoder.finish()
    for each in made:
        each.validate(full=True)
        assert each.schema == columns.arrow
    return made


def plain(made: pa.RecordBatch) -> list[dict[str, Any]]:
    rows = made.to_pylist(maps_as_pydicts="strict")
    return [{name: _utc(value) for name, value in row.items()} for row in rows]


def _utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


# --- message by message -----------------------------------------------------------------------------------------------


def reference(one: EntryRun) -> Iterator[dict[str, Any]]:
    """What the raw columns must be. It knows neither chunks nor encryption."""
    next_index = one.first_index
    for entry_id, data in enumerate(one.entries, one.first_entry_id):
        head = parse_entry(data)
        metadata = head.metadata
        count = messages_in(metadata)
        first = next_index if head.index is None else head.index - count + 1
        next_index = first + count
        payload = decompress(metadata.compression, bytes(data[head.payload_offset :]), metadata.uncompressed_size)
        common = {
            "topic": one.topic,
            "partition": one.partition,
            "publish_time": EPOCH + timedelta(milliseconds=metadata.publish_time),
            "producer": metadata.producer_name,
            "redelivery_count": 0,
        }
        place = f"{one.ledger_id}:{entry_id}:{one.partition}"
        if not metadata.HasField("num_messages_in_batch"):
            own = {"message_id": f"{place}:-1", "index": first, "sequence_id": metadata.sequence_id}
            yield {**common, **own, **_of_message(metadata, payload)}
            continue
        for number, (each, value) in enumerate(messages_of_batch(payload, count)):
            if not each.compacted_out:
                sequence_id = each.sequence_id if each.HasField("sequence_id") else metadata.sequence_id
                own = {"message_id": f"{place}:{number}", "index": first + number, "sequence_id": sequence_id}
                yield {**common, **own, **_of_message(each, bytes(value))}


def _of_message(metadata: MessageMetadata | SingleMessageMetadata, payload: bytes) -> dict[str, Any]:
    key: bytes | None = None
    if metadata.HasField("partition_key") and not metadata.null_partition_key:
        key = metadata.partition_key.encode()
        key = base64.b64decode(key) if metadata.partition_key_b64_encoded else key
    return {
        "key": key,
        "value": None if metadata.null_value else payload,
        "event_time": EPOCH + timedelta(milliseconds=metadata.event_time) if metadata.event_time else None,
        "properties": {each.key: each.value for each in metadata.properties},
    }
