"""The payload of a batch: single messages, one after the other, each with metadata of its own.

Format:    (metadata_size u32 | SingleMessageMetadata | payload of the size it says) …; compressed and encrypted as a
           whole, by the caller. The number of messages is in the entry's metadata; bytes after the last one are
           ignored, as in Pulsar.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from magnetar.errors import MalformedEntryError
from magnetar.wire.pulsar.frames import SIZE, SIZE_BYTES, Buffer, missing_fields
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import SingleMessageMetadata


class BatchedMessage(NamedTuple):
    metadata: SingleMessageMetadata
    payload: memoryview
    """A view of the batch's payload."""


def messages_of_batch(payload: Buffer, count: int) -> Iterator[BatchedMessage]:
    """Yields the `count` messages of a decompressed payload, in order. Raises where it ends too early."""
    view = memoryview(payload)
    position = 0
    for _ in range(count):
        message, position = _message_at(view, position)
        yield message


def _message_at(view: memoryview, position: int) -> tuple[BatchedMessage, int]:
    start = position + SIZE_BYTES
    if start > len(view):
        raise MalformedEntryError(f"a batch ends at byte {len(view)}, before a message that it counts")
    end = start + int(SIZE.unpack_from(view, position)[0])
    if end > len(view):
        raise MalformedEntryError(f"metadata up to byte {end} in a batch of {len(view)}")
    try:
        metadata = SingleMessageMetadata.FromString(view[start:end])  # type: ignore[arg-type]
    except DecodeError as error:
        raise MalformedEntryError(f"metadata in a batch that is not protobuf: {error}") from None
    if not metadata.IsInitialized():
        raise MalformedEntryError(f"metadata in a batch without {missing_fields(metadata)}")
    following = end + metadata.payload_size
    if not end <= following <= len(view):
        raise MalformedEntryError(f"a message of {metadata.payload_size} bytes in a batch of {len(view)}")
    return BatchedMessage(metadata, view[end:following]), following


def encode_batched_message(metadata: SingleMessageMetadata, payload: Buffer) -> bytes:
    """Encodes one message of a batch. Sets the metadata's payload size."""
    metadata.payload_size = len(payload)
    head = metadata.SerializeToString()
    return b"".join((SIZE.pack(len(head)), head, payload))
