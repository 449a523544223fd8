"""The inputs of a decoder: entries as a reader hands them over, and options, which do not change the columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from magnetar.schemas.data import SchemaData
from magnetar.wire.pulsar.frames import Buffer

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
    """Whether a chunked message with lost chunks is an error; otherwise it is skipped and counted. Chunks that
    retention removed are no loss."""
    entries_before: EntriesBefore | None = None
    """Finds the first chunks of a message whose last one is in this split. None: such a message is incomplete."""
    writer_schema: WriterSchema | None = None
    """Needed for typed columns alone. None: every message has the schema of the columns."""
    rows_max: int = 10_000
    """The limit of rows in a batch. Spark takes 1,000 rows a batch as fast as more."""
    bytes_max: int = 4 * 2**20
    """A batch is complete when its payloads have this many bytes; one large message may exceed it."""
    index_min: int | None = None
    """Messages with a lower index are left out."""
    index_end: int | None = None
    """Messages from this index on are left out."""
    publish_ms_min: int | None = None
    """Messages published earlier are left out."""
    publish_ms_end: int | None = None
    """Messages published at this time or later are left out."""
