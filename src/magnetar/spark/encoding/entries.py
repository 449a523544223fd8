"""Entries: a run of encoded messages with the metadata of their batch before them, as a producer sends it.

Cut:       an entry takes messages until the next one would exceed `entry_bytes`, whatever batches they came in: the
           same rows are cut in the same way again. What is no full entry yet waits for more, and is copied out of its
           arrays so that a few bytes do not keep megabytes.
Number:    every entry takes the next number of its destination's counter, or of the task's (`Numbers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from crc32c import crc32c

from magnetar.spark.encoding.messages import EncodedMessages, MessageKey, Messages
from magnetar.wire.pulsar.checksum import CHECKSUM, CHECKSUM_MAGIC
from magnetar.wire.pulsar.compression import compress
from magnetar.wire.pulsar.frames import SIZE
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import NONE, MessageMetadata

_ViewOrBytes = memoryview | bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """What a producer would send, and what a sink must know of it."""

    topic: str
    body: bytes
    rows: int
    """0 for all chunks of a message but the last."""
    sequence_id: int
    highest_sequence_id: int


@dataclass(frozen=True, slots=True)
class Seal:
    """What all entries of a task share."""

    producer_name: str
    publish_ms: int
    compression: int = NONE
    entry_bytes: int = 512 * 2**10
    """Of messages in an entry, before compression; one that is larger is alone in its entry."""
    message_bytes_max: int = 5 * 2**20
    """Beyond which the broker takes no entry."""
    is_by_key: bool = False
    """Messages of different keys are never in one entry: Key_Shared subscriptions look at an entry's first key only."""


class Numbers(Protocol):
    """Gives entries their sequence ids."""

    def take(self, rows: int) -> tuple[int, int]:
        """The ids of the first and of the last of so many rows."""


class EntryBuilder:
    """Collects the messages of one destination."""

    def __init__(self, topic: str, seal: Seal, schema_version: bytes, numbers: Numbers) -> None:
        self.topic = topic
        self.seal = seal
        self.schema_version = schema_version
        self.numbers = numbers
        self.pending_bytes = 0
        self._pieces: list[_ViewOrBytes] = []
        self._rows = 0
        self._key: MessageKey | None = None

    def add(self, messages: EncodedMessages, first: int, end: int, rows: Messages) -> Iterator[Entry]:
        """Messages `first` up to `end`, which is not among them; `rows` are what they were made of. Gives the entries
        that are full."""
        offsets = messages.offsets
        while first < end:
            room = self.seal.entry_bytes - self.pending_bytes
            stop = int(np.searchsorted(offsets[first : end + 1], offsets[first] + room, "right")) - 1 + first
            if stop <= first and not self._rows:
                stop = first + 1  # Larger than an entry: alone in its own.
            if stop > first:
                self._take(messages, first, stop, rows)
                first = stop
            if first < end:
                yield from self.flush()
        if self._pieces:
            self._pieces[-1] = bytes(self._pieces[-1])

    def _take(self, messages: EncodedMessages, first: int, stop: int, rows: Messages) -> None:
        if not self._rows:
            self._key = rows.key_of(first)
        start, end = int(messages.offsets[first]), int(messages.offsets[stop])
        self._pieces.append(messages.data[start:end])
        self._rows += stop - first
        self.pending_bytes += end - start

    def flush(self) -> Iterator[Entry]:
        """What is left, if there is something."""
        if not self._rows:
            return
        pieces, rows, key = self._pieces, self._rows, self._key
        first, last = self.numbers.take(rows)
        metadata = start_metadata(self.seal, self.schema_version, first)
        metadata.num_messages_in_batch = rows
        if last != first:
            metadata.highest_sequence_id = last
        if key is not None:
            metadata.partition_key = key.text
            if key.is_base64:
                metadata.partition_key_b64_encoded = True
        body = seal_pieces(self.seal, metadata, pieces, self.pending_bytes)
        self._pieces, self._rows, self.pending_bytes = [], 0, 0
        yield Entry(self.topic, body, rows, first, last)


def start_metadata(seal: Seal, schema_version: bytes, sequence_id: int) -> MessageMetadata:
    metadata = MessageMetadata(producer_name=seal.producer_name, sequence_id=sequence_id, publish_time=seal.publish_ms)
    if schema_version:
        metadata.schema_version = schema_version
    return metadata


def seal_pieces(seal: Seal, metadata: MessageMetadata, pieces: list[_ViewOrBytes], size: int) -> bytes:
    """The entry of a payload in pieces; compressed as the seal says."""
    metadata.uncompressed_size = size
    if seal.compression != NONE:
        metadata.compression = seal.compression  # type: ignore[assignment]  # A number of the enum.
        pieces = [compress(seal.compression, pieces[0] if len(pieces) == 1 else b"".join(pieces))]
    return seal_payload(metadata, pieces)


def seal_payload(metadata: MessageMetadata, pieces: list[_ViewOrBytes]) -> bytes:
    """Copied once: into the entry."""
    described = metadata.SerializeToString()
    head = SIZE.pack(len(described)) + described
    checksum = crc32c(head)
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return b"".join((CHECKSUM.pack(CHECKSUM_MAGIC, checksum), head, *pieces))
