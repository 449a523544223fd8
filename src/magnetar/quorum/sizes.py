"""The three numbers of a ledger, and what follows from them: the rule of the ack quorum, and the write sets.

Format:    ensemble E: bookies that share a fragment. Write quorum Qw: bookies that get each entry. Ack quorum Qa:
           bookies that must have stored an entry durably before it counts as written (`is_acknowledged`).
Invariant: entry i is on the Qw positions i mod E, i + 1 mod E, and so on. The absolute entry id counts, not the
           distance from the fragment's first entry; Apache's client stripes the same way.
Limits:    on the hot path, `sets = write_sets(E, Qw)` once per ledger, then `sets[entry_id % E]`: an index into a
           table, no allocation.
Read next: coverage.py, ledger/writing/pending_adds.py (the rule for a whole window of entries)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from magnetar.errors import InvalidQuorumError
from magnetar.ids import BookieId

ENSEMBLE_SIZE_MAX = 255  # Write sets are tables of E times Qw numbers: a wrong number must not fill the memory.


@dataclass(frozen=True, slots=True)
class QuorumSizes:
    """The quorums of a ledger, checked when made: 1 ≤ Qa ≤ Qw ≤ E."""

    ensemble: int
    write: int
    ack: int

    def __post_init__(self) -> None:
        if not 1 <= self.ensemble <= ENSEMBLE_SIZE_MAX:
            raise InvalidQuorumError(f"ensemble size {self.ensemble}: allowed is 1 to {ENSEMBLE_SIZE_MAX}")
        if not 1 <= self.write <= self.ensemble:
            raise InvalidQuorumError(
                f"write quorum {self.write}: allowed is 1 to the ensemble size, here {self.ensemble}"
            )
        if not 1 <= self.ack <= self.write:
            raise InvalidQuorumError(f"ack quorum {self.ack}: allowed is 1 to the write quorum, here {self.write}")

    def is_acknowledged(self, holders: int) -> bool:
        """The rule: whether an entry counts as written if these bookies have stored it, and thus cannot be lost by the
        failure of fewer. `holders` are positions as bits, all of them in the entry's write set."""
        return holders.bit_count() >= self.ack

    @property
    def absence(self) -> int:
        """QC: this many bookies of a write set without an entry leave fewer than Qa that could have stored it."""
        return self.write - self.ack + 1

    @property
    def always_covering(self) -> int:
        """This many answers always cover every write set; fewer may do, depending on the bookies."""
        return self.ensemble - self.ack + 1

    def __str__(self) -> str:
        return f"E{self.ensemble}/Qw{self.write}/Qa{self.ack}"


WriteSet: TypeAlias = tuple[int, ...]
"""Positions in the order in which they are asked: the first is entry id mod E."""

_TABLES_MAX = 64  # Different (E, Qw) in one process: a handful. Each table has at most 255 × 255 numbers.


@lru_cache(maxsize=_TABLES_MAX)
def write_sets(ensemble_size: int, write_quorum: int) -> tuple[WriteSet, ...]:
    """Returns all write sets; that of an entry is at its id mod `ensemble_size`. The sizes are those of a
    `QuorumSizes`."""
    return tuple(
        tuple((first + step) % ensemble_size for step in range(write_quorum)) for first in range(ensemble_size)
    )


@lru_cache(maxsize=_TABLES_MAX)
def write_set_masks(ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Returns the write sets as bits, position p being 1 << p, for counting answers. Equal sets appear once."""
    masks = [sum(1 << position for position in positions) for positions in write_sets(ensemble_size, write_quorum)]
    return tuple(sorted(set(masks)))


def write_set(ensemble_size: int, write_quorum: int, entry_id: int) -> WriteSet:
    """Returns the positions that hold an entry."""
    return write_sets(ensemble_size, write_quorum)[entry_id % ensemble_size]


def write_set_bookies(ensemble: Sequence[BookieId], write_quorum: int) -> tuple[tuple[BookieId, ...], ...]:
    """Returns the bookies of every write set, indexed like `write_sets`."""
    sets = write_sets(len(ensemble), write_quorum)
    return tuple(tuple(ensemble[position] for position in positions) for positions in sets)


def is_held(ensemble_size: int, write_quorum: int, position: int, entry_id: int) -> bool:
    """Reports whether the bookie at this position gets this entry."""
    return (position - entry_id) % ensemble_size < write_quorum


@dataclass(frozen=True, slots=True)
class HeldEntries:
    """The entries of a range that one position holds; at least one."""

    first: int
    last: int
    count: int


def held_entries(
    ensemble_size: int, write_quorum: int, position: int, first_entry: int, last_entry: int
) -> HeldEntries | None:
    """Returns what the position holds of first..last, both included; None if nothing. Constant time."""
    assert 0 <= position < ensemble_size
    assert first_entry >= 0
    first = _next_held(ensemble_size, write_quorum, position, first_entry)
    last = _previous_held(ensemble_size, write_quorum, position, last_entry)
    if first > last:
        return None
    rounds, rest = divmod(last - first, ensemble_size)
    in_last_round = sum(is_held(ensemble_size, write_quorum, position, entry) for entry in range(last - rest, last + 1))
    return HeldEntries(first, last, rounds * write_quorum + in_last_round)


def each_held_entry(
    ensemble_size: int, write_quorum: int, position: int, first_entry: int, last_entry: int
) -> Iterator[int]:
    """Yields the ids of those entries, ascending."""
    return (
        entry for entry in range(first_entry, last_entry + 1) if is_held(ensemble_size, write_quorum, position, entry)
    )


def _next_held(ensemble_size: int, write_quorum: int, position: int, entry_id: int) -> int:
    steps_behind = (position - entry_id) % ensemble_size  # Which member of the entry's row this position is.
    return entry_id + max(0, steps_behind - write_quorum + 1)


def _previous_held(ensemble_size: int, write_quorum: int, position: int, entry_id: int) -> int:
    """May return an id below the range, or below zero: then no entry precedes."""
    steps_behind = (position - entry_id) % ensemble_size
    return entry_id if steps_behind < write_quorum else entry_id - (ensemble_size - steps_behind)
