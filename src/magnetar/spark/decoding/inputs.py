"""The inputs of a decoder: entries as a reader hands them over, options, and large messages joined from their chunks.

Invariant: a chunked message belongs to the split that has its last chunk. Chunks whose last one does not come are
           dropped silently, and a split that begins in the middle of a message looks back for its first chunks.
Order:     a producer that reconnects may send chunks again. A repeated chunk is ignored; a last chunk that comes again
           after its message was complete makes no second message.
Failure:   chunks before the topic's beginning were removed by retention: the message is skipped and logged, as in
           Pulsar's consumers. Missing chunks in the middle of the topic are a loss.
"""

from __future__ import annotations

import enum
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from magnetar.errors import DataLossError, MalformedEntryError
from magnetar.schemas.data import SchemaData
from magnetar.wire.pulsar.entry import parse_entry
from magnetar.wire.pulsar.frames import Buffer, verify_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata

WriterSchema: TypeAlias = Callable[[str, bytes], SchemaData]
"""Returns the schema of a topic's version, from a message's metadata. Called once for each version; raises SchemaError
if it is missing."""


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Entries of one ledger in a row, as stored: with the broker's header in front, if it has one."""

    topic: str
    """The name of the partition, for a partitioned topic."""
    partition: int
    """-1: the topic is not partitioned."""
    ledger_id: int
    first_entry_id: int
    entries: Sequence[Buffer]
    first_index: int = 0
    """The index of the first message, for entries without one; later ones are counted from it."""
    first_batch_index: int = 0
    """Messages of the first entry before this one are left out: a range may begin inside a batch."""
    end_batch_index: int | None = None
    """Messages of the last entry from this one on are left out. None: all belong to the range."""
    is_verified: bool = False
    """Whether a digest over whole entries was checked already: then the producer's checksum need not be."""


class StoredEntry(NamedTuple):
    ledger_id: int
    entry_id: int
    data: Buffer


EntriesBefore: TypeAlias = Callable[[str, int, int], Iterable[StoredEntry]]
"""Returns, for topic, ledger and entry, the entries of that topic before this one, the nearest first, also those of
earlier ledgers, to the topic's beginning. It is read lazily, and no further than a message's first chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    encrypted: Literal["refuse", "raw"] = "refuse"
    """With "fail", an encrypted message is an error; otherwise its value is the encrypted bytes (one row for a
    batch)."""
    fail_on_data_loss: bool = True
    """Whether a chunked message with lost chunks is an error; otherwise it is skipped and logged. Chunks that
    retention removed are no loss."""
    entries_before: EntriesBefore | None = None
    """Finds the first chunks of a message whose last one is in this split. None: such a message is incomplete."""
    writer_schema: WriterSchema | None = None
    """Needed for typed columns alone. None: every message has the schema of the columns."""
    rows_max: int = 10_000
    """The limit of rows in a batch. Spark takes 1,000 rows a batch as fast as more."""
    bytes_max: int = 4 * 2**20
    """A batch is complete when its payloads have this many bytes; one large message may exceed it."""
    publish_ms_min: int | None = None
    """Messages published earlier are left out."""
    publish_ms_end: int | None = None
    """Messages published at this time or later are left out."""


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
    def __init__(self, entries_before: EntriesBefore | None, *, fail_on_data_loss: bool) -> None:
        self._entries_before = entries_before
        self._fail_on_data_loss = fail_on_data_loss
        self._incomplete: OrderedDict[tuple[str, str], list[Buffer]] = OrderedDict()
        self._kept_bytes = 0

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
            while len(self._incomplete) > INCOMPLETE_MAX or (
                self._kept_bytes > INCOMPLETE_BYTES_MAX and len(self._incomplete) > 1
            ):
                self._drop(next(iter(self._incomplete)))
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
