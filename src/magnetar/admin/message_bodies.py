"""A message as HTTP: its payload is the body, everything else is in headers of Pulsar's names.

A batch comes as it is stored, uncompressed: clients take it apart, as `X-Pulsar-num-batch-message` tells them to.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from magnetar.admin.call import Reply
from magnetar.admin.errors import UNPROCESSABLE, RestError
from magnetar.admin.stats.times import iso
from magnetar.errors import MalformedEntryError
from magnetar.topic.log_entry import LogEntry
from magnetar.wire.pulsar.compression import decompress
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import CompressionType, MessageMetadata
from magnetar.wire.pulsar.text import text_of

_PAYLOAD_BYTES_MAX = 128 * 2**20
_TIMES = (("publish_time", "publish-time"), ("event_time", "event-time"), ("deliver_at_time", "deliver-at-time"))
_PLAIN = (
    ("null_value", "null-value"),
    ("producer_name", "producer-name"),
    ("sequence_id", "sequence-id"),
    ("replicated_from", "replicated-from"),
    ("partition_key", "partition-key"),
    ("uncompressed_size", "uncompressed-size"),
    ("encryption_algo", "encryption-algo"),
    ("partition_key_b64_encoded", "partition-key-b64-encoded"),
    ("marker_type", "marker-type"),
    ("txnid_least_bits", "txnid-least-bits"),
    ("txnid_most_bits", "txnid-most-bits"),
    ("highest_sequence_id", "highest-sequence-id"),
    ("uuid", "uuid"),
    ("num_chunks_from_msg", "num-chunks-from-msg"),
    ("total_chunk_msg_size", "total-chunk-msg-size"),
    ("chunk_id", "chunk-id"),
    ("null_partition_key", "null-partition-key"),
)
_BINARY = (
    ("encryption_param", "Base64-encryption-param"),
    ("schema_version", "Base64-schema-version"),
    ("ordering_key", "Base64-ordering-key"),
)
_COMPRESSION = (("compression", "compression"),)


def message_reply(entry: LogEntry) -> Reply:
    head = entry.head
    metadata = head.metadata
    payload = bytes(memoryview(entry.data)[head.payload_offset :])
    headers = {f"X-Pulsar-{name}": _safe(value) for name, value in _headers(entry, metadata)}
    return Reply(_plain_payload(metadata, payload), "application/octet-stream", headers=headers)


def _headers(entry: LogEntry, metadata: MessageMetadata) -> Iterator[tuple[str, Any]]:
    yield "Message-ID", f"{entry.position.ledger_id}:{entry.position.entry_id}"
    yield "PROPERTY", json.dumps({text_of(each.key): text_of(each.value) for each in metadata.properties})
    yield from _broker_headers(entry)
    yield from _composition(entry, metadata)
    yield "Is-Encrypted", bool(metadata.encryption_keys)
    for key in metadata.encryption_keys:
        yield "Base64-encryption-keys", base64.b64encode(key.SerializeToString()).decode()
    for fields, shown in ((_TIMES, iso), (_PLAIN, _same), (_BINARY, _base64), (_COMPRESSION, CompressionType.Name)):
        for field, name in fields:
            if metadata.HasField(field):
                yield name, shown(getattr(metadata, field))
    yield "txn-uncommitted", False


def _broker_headers(entry: LogEntry) -> Iterator[tuple[str, Any]]:
    if entry.head.broker_ms is not None:
        yield "Broker-Entry-METADATA-timestamp", iso(entry.head.broker_ms)
    if entry.head.index is not None:
        yield "Broker-Entry-METADATA-index", entry.head.index


def _composition(entry: LogEntry, metadata: MessageMetadata) -> Iterator[tuple[str, Any]]:
    if metadata.HasField("num_messages_in_batch"):
        yield "num-batch-message", metadata.num_messages_in_batch
        yield "batch-size", len(entry.data) - metadata.ByteSize()
    if metadata.HasField("num_chunks_from_msg"):
        yield "PROPERTY-TOTAL-CHUNKS", metadata.num_chunks_from_msg
        yield "PROPERTY-CHUNK-ID", metadata.chunk_id


def _same(value: Any) -> Any:
    return text_of(value) if isinstance(value, bytes) else value


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _safe(value: Any) -> str:
    """A header is one line of Latin characters."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(each if " " <= each <= "~" else "?" for each in text)


def _plain_payload(metadata: MessageMetadata, payload: bytes) -> bytes:
    if metadata.encryption_keys or not metadata.compression:
        return payload
    try:
        return decompress(metadata.compression, payload, metadata.uncompressed_size, _PAYLOAD_BYTES_MAX)
    except MalformedEntryError as error:
        raise RestError(UNPROCESSABLE, f"the message cannot be decompressed: {error}") from None
