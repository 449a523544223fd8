"""Entries as a reader hands them to the decoder, and as the decoder asks for more of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from magnetar.wire.pulsar.frames import Buffer


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
