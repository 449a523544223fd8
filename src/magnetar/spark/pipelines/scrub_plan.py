"""What a scrub has to read: for every ledger and every position of its ensembles, the entries that are kept there.

Range:     entries first … last of one ledger at one position of its ensemble, as far as that position holds them: one
           bookie's work, in the order in which its disk has it. Cut to a size that a task reads in a second or so.
End:       a closed ledger's last entry; of one that is still written, what was confirmed when the plan was made.
Bookie:    follows from metadata and position. One that is replaced meanwhile is replaced at its position, so a range
           stays right when the metadata changes under it.
Read next: scrub_reads.py
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
_ENTRY_BYTES_GUESSED: Final = 4096  # Of a ledger that is still written: its metadata has no length yet.


@dataclass(frozen=True, slots=True)
class ReplicaRange:
    ledger_id: int
    position: int
    first_entry: int
    last_entry: int
    entries: int
    """How many of them this position holds."""
    entry_bytes: int
    """Of one entry, as far as can be said before it is read."""

    @property
    def size_bytes(self) -> int:
        return self.entries * self.entry_bytes


def replica_ranges(metadata: LedgerMetadata, last_entry: int, range_bytes: int = RANGE_BYTES) -> Iterator[ReplicaRange]:
    """All of a ledger up to this entry, fragment by fragment."""
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
