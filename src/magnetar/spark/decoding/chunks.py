"""Joins large messages that were sent in chunks, also if only the last chunk is in the split that is read.

Invariant: a message belongs to the split that has its last chunk. Chunks whose last one does not come are dropped
           silently, and a split that begins in the middle of a message looks back for its first chunks.
Order:     a producer that reconnects may send chunks again. A repeated chunk is ignored; a last chunk that comes again
           after its message was complete makes no second message.
Failure:   chunks before the topic's beginning were removed by retention: the message is skipped and counted, as in
           Pulsar's consumers. Missing chunks in the middle of the topic are a loss.
"""

from __future__ import annotations

import enum
import logging
from collections import OrderedDict
from typing import Final, NamedTuple

from magnetar.errors import DataLossError, MalformedEntryError
from magnetar.spark.decoding.inputs import EntriesBefore, StoredEntry
from magnetar.wire.pulsar.entry import parse_entry, verify_checksum
from magnetar.wire.pulsar.frames import Buffer
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata

log = logging.getLogger(__name__)

INCOMPLETE_MAX: Final = 100
"""The limit of incomplete messages; the oldest is given up, and found again by looking back."""
INCOMPLETE_BYTES_MAX: Final = 256 * 2**20
LOOK_BACK_ENTRIES_MAX: Final = 100_000
"""The limit of entries between chunks of one message: they are sent in a row, with others' messages in between."""
MESSAGE_BYTES_MAX: Final = 1 << 30


class Place(NamedTuple):
    topic: str
    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.topic}, entry {self.ledger_id}:{self.entry_id}"


class _Missing(enum.Enum):
    TRIMMED = "retention took its first chunks"
    REPEATED = "it was complete before"
    LOST = "not all of its chunks exist"


def is_chunk(metadata: MessageMetadata) -> bool:
    return metadata.num_chunks_from_msg > 1


class ChunkJoiner:
    """Joins the chunks of one split."""

    def __init__(self, entries_before: EntriesBefore | None, *, fail_on_data_loss: bool) -> None:
        self._entries_before = entries_before
        self._fail_on_data_loss = fail_on_data_loss
        self._incomplete: OrderedDict[tuple[str, str], list[Buffer]] = OrderedDict()
        self._kept_bytes = 0
        self.incomplete_messages = 0
        """Messages whose last chunk came, and others did not."""

    def add(self, place: Place, metadata: MessageMetadata, payload: Buffer) -> list[Buffer] | None:
        """Returns the payloads of all chunks if this is the last one. Raises DataLossError if chunks are lost."""
        name = (place.topic, metadata.uuid)
        number = metadata.chunk_id
        parts = self._parts(name, number)
        is_last = number == metadata.num_chunks_from_msg - 1
        if parts is not None and number == len(parts):
            parts.append(payload)
            self._kept_bytes += len(payload)
            if is_last:
                return self._drop(name)
            self._give_up_oldest()
            return None
        if parts is not None and number > len(parts):
            self._drop(name)  # A chunk before it is missing, at least in this split.
            parts = None
        return self._look_back(place, metadata, payload) if is_last and parts is None else None

    def _parts(self, name: tuple[str, str], number: int) -> list[Buffer] | None:
        if number == 0:
            self._drop(name)
            self._incomplete[name] = []
        return self._incomplete.get(name)

    def _drop(self, name: tuple[str, str]) -> list[Buffer]:
        parts = self._incomplete.pop(name, [])
        self._kept_bytes -= sum(map(len, parts))
        return parts

    def _give_up_oldest(self) -> None:
        while len(self._incomplete) > INCOMPLETE_MAX or (
            self._kept_bytes > INCOMPLETE_BYTES_MAX and len(self._incomplete) > 1
        ):
            self._drop(next(iter(self._incomplete)))

    # --- chunks before the split --------------------------------------------------------------------------------------

    def _look_back(self, place: Place, last: MessageMetadata, payload: Buffer) -> list[Buffer] | None:
        found = self._before(place, last)
        if isinstance(found, list):
            return [*found, payload]
        if found is _Missing.REPEATED:
            return None
        if found is _Missing.LOST and self._fail_on_data_loss:
            raise DataLossError(
                f"{place}: a message of {last.num_chunks_from_msg} chunks ends here, and not all of them are in the "
                "topic; failOnDataLoss=false skips such messages"
            )
        self.incomplete_messages += 1
        log.warning("%s: a message of %d chunks is skipped: %s", place, last.num_chunks_from_msg, found.value)
        return None

    def _before(self, place: Place, last: MessageMetadata) -> list[Buffer] | _Missing:
        if self._entries_before is None or last.total_chunk_msg_size > MESSAGE_BYTES_MAX:
            return _Missing.LOST
        parts: list[Buffer] = []
        expected = last.chunk_id - 1
        entries = self._entries_before(*place)
        for seen, entry in enumerate(entries):
            if seen >= LOOK_BACK_ENTRIES_MAX:
                return _Missing.LOST
            chunk = _chunk_of(place.topic, entry, last.uuid)
            if chunk is None or expected < chunk[0] < last.chunk_id:
                continue  # It belongs to another message, or was sent twice.
            number, payload = chunk
            if number != expected:
                return _Missing.REPEATED if number == last.chunk_id else _Missing.LOST
            parts.append(payload)
            expected -= 1
            if expected < 0:
                return parts[::-1]
        return _Missing.TRIMMED


def _chunk_of(topic: str, entry: StoredEntry, uuid: str) -> tuple[int, Buffer] | None:
    place = Place(topic, entry.ledger_id, entry.entry_id)
    try:
        head = parse_entry(entry.data)
    except MalformedEntryError as error:
        raise MalformedEntryError(f"{place}: {error}") from None
    if not is_chunk(head.metadata) or head.metadata.uuid != uuid:
        return None
    view = memoryview(entry.data)
    if not verify_checksum(view[head.body_offset :]):
        raise MalformedEntryError(f"{place}: the checksum is wrong, the entry is damaged")
    return head.metadata.chunk_id, view[head.payload_offset :]
