"""The plan of a scrub: for every ledger and every position of its ensembles, the entries that are kept there.

Format:    a range is entries first … last of one ledger at one position of its ensemble, as far as that position holds
           them: one bookie's work, in the order in which its disk has it. It is cut to a size that a task reads in a
           second or so.
Invariant: the end is a closed ledger's last entry; for an open one, the last that was confirmed when the plan was made.
           The bookie follows from metadata and position. A bookie that is replaced is replaced at its position, so a
           range stays right when the metadata changes.
Read next: replicas.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from magnetar.ids import BookieId, EntryId
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.quorum.write_sets import held_entries

RANGE_BYTES: Final = 64 * 2**20
RANGE_ENTRIES_MAX: Final = 200_000
_ENTRY_BYTES_GUESSED: Final = 4096  # For a ledger that is still written: its metadata has no length yet.


@dataclass(frozen=True, slots=True)
class ReplicaRange:
    ledger_id: int
    position: int
    first_entry: int
    last_entry: int
    entries: int
    """The number of them that this position holds."""
    entry_bytes: int
    """The size of one entry, as far as it is known before it is read."""

    @property
    def size_bytes(self) -> int:
        return self.entries * self.entry_bytes


def replica_ranges(metadata: LedgerMetadata, last_entry: int, range_bytes: int = RANGE_BYTES) -> Iterator[ReplicaRange]:
    """Yields all of a ledger up to this entry, fragment by fragment."""
    entry_bytes = max(1, metadata.length // (last_entry + 1)) if metadata.is_closed else _ENTRY_BYTES_GUESSED
    step = min(RANGE_ENTRIES_MAX, max(1, range_bytes // entry_bytes))
    starts = [fragment.first_entry_id for fragment in metadata.fragments]
    ends = [start - 1 for start in starts[1:]] + [last_entry]
    for start, end in zip(starts, ends, strict=True):
        for position in range(metadata.ensemble_size):
            for first in range(start, min(end, last_entry) + 1, step):
                last = min(first + step - 1, end, last_entry)
                held = held_entries(metadata.ensemble_size, metadata.write_quorum, position, first, last)
                if held is not None:
                    yield ReplicaRange(metadata.ledger_id, position, held.first, held.last, held.count, entry_bytes)


def bookie_of(metadata: LedgerMetadata, position: int, entry_id: int) -> BookieId:
    return metadata.fragment_of(EntryId(entry_id)).ensemble[position]
