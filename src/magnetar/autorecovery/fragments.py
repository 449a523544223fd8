"""Which parts of a ledger may be repaired, what is wrong with them, and what has to be done: pure decisions.

Format:    a fragment's entries are first … last, both included; the bookie at a position holds those of its write sets.
Invariant: an open ledger's last fragment is never touched, nor the one before it while the LAC is below its last entry:
           its writer may still change them. If something is wrong there, the ledger must be fenced and closed first.
           A bookie is only put into a fragment in place of another one, at its position, and never one that the
           fragment has already. The change is refused if the position has another bookie by now, or if the fragment has
           become one that may not be touched.
Read next: repair.py, docs/autorecovery.md
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from magnetar.errors import RepairOvertakenError
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.quorum.sizes import HeldEntries, each_held_entry, held_entries, is_held, write_set

TEXT_RANGES_MAX: Final = 200  # Of a list of lost entries, as it is stored and shown.


@dataclass(frozen=True, slots=True)
class FragmentRange:
    """A fragment whose entries are known."""

    number: int
    first: int
    last: int
    ensemble: tuple[BookieId, ...]
    write_quorum: int

    @property
    def positions(self) -> range:
        return range(len(self.ensemble))

    def held(self, position: int) -> HeldEntries | None:
        return held_entries(len(self.ensemble), self.write_quorum, position, self.first, self.last)

    def each_held(self, position: int) -> Iterator[int]:
        return each_held_entry(len(self.ensemble), self.write_quorum, position, self.first, self.last)

    def is_held(self, position: int, entry_id: int) -> bool:
        return is_held(len(self.ensemble), self.write_quorum, position, entry_id)

    def holders(self, entry_id: int) -> tuple[int, ...]:
        return write_set(len(self.ensemble), self.write_quorum, entry_id)


def settled_fragments(metadata: LedgerMetadata, reported_lac: int) -> list[FragmentRange]:
    """Returns the fragments that may be repaired, those without entries left out. The LAC counts for open ledgers only:
    as the bookies report it, not as the metadata implies it."""
    starts = [int(fragment.first_entry_id) for fragment in metadata.fragments]
    if metadata.is_closed:
        ends = [start - 1 for start in starts[1:]] + [int(metadata.last_entry_id)]
        ends = [min(end, int(metadata.last_entry_id)) for end in ends]
    else:
        ends = [start - 1 for start in starts[1:]]
        if ends and reported_lac < ends[-1]:
            ends.pop()
    return [
        FragmentRange(number, start, end, metadata.fragments[number].ensemble, metadata.write_quorum)
        for number, (start, end) in enumerate(zip(starts, ends, strict=False))
        if start <= end
    ]


def unsettled_numbers(metadata: LedgerMetadata, reported_lac: int) -> range:
    """Returns the numbers of the fragments that their writer may still change."""
    count = len(metadata.fragments)
    if metadata.is_closed:
        return range(count, count)
    last_is_alone = count == 1 or reported_lac >= metadata.fragments[-1].first_entry_id - 1
    return range(count - 1 if last_is_alone else count - 2, count)


def bookies_with_entries(metadata: LedgerMetadata) -> frozenset[BookieId]:
    """Returns the bookies that hold entries of the ledger, or may get some. A closed ledger that is empty has none."""
    found: set[BookieId] = set()
    if not metadata.is_closed:
        for number in range(len(metadata.fragments)):
            found.update(bookies_of_fragment(metadata, number))
        return frozenset(found)
    for part in settled_fragments(metadata, metadata.last_entry_id):
        found.update(part.ensemble[position] for position in part.positions if part.held(position))
    return frozenset(found)


def bookies_of_fragment(metadata: LedgerMetadata, number: int) -> tuple[BookieId, ...]:
    """Returns the bookies of an open ledger's fragment that hold entries of it, or may get some."""
    fragment = metadata.fragments[number]
    if number == len(metadata.fragments) - 1:
        return fragment.ensemble
    last = metadata.fragments[number + 1].first_entry_id - 1
    part = FragmentRange(number, fragment.first_entry_id, last, fragment.ensemble, metadata.write_quorum)
    return tuple(part.ensemble[position] for position in part.positions if part.held(position))


# --- what is wrong, and what follows ----------------------------------------------------------------------------------


class Fault(enum.StrEnum):
    """What is wrong with the copies at one position."""

    LOST = "the bookie is not registered"
    DRAINING = "the bookie is being decommissioned"
    MISSING = "entries are missing or damaged"
    """Also those that a bookie in limbo does not have: it takes copies, and has them then."""
    SILENT = "the bookie does not answer"


@dataclass(frozen=True, slots=True)
class Defect:
    position: int
    fault: Fault
    entries: tuple[int, ...] = ()
    """The entries that are known to be missing or damaged there."""
    why: str = ""

    @property
    def is_replaceable(self) -> bool:
        """Whether another bookie has to take the position."""
        return self.fault is not Fault.MISSING


@dataclass(frozen=True, slots=True)
class Targets:
    """Where copies of a fragment's entries have to go."""

    fragment: FragmentRange
    swaps: Mapping[int, BookieId] = field(default_factory=dict)
    """Position → the bookie that takes it; it gets every entry of the position."""
    fills: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Position → entries that its own bookie gets again."""

    def entries(self) -> Iterator[tuple[int, tuple[BookieId, ...]]]:
        """Yields each entry to copy, ascending, with the bookies that get it."""
        fragment = self.fragment
        if self.swaps:
            filled = {position: frozenset(entries) for position, entries in self.fills.items()}
            for entry_id in range(fragment.first, fragment.last + 1):
                to = [bookie for position, bookie in self.swaps.items() if fragment.is_held(position, entry_id)]
                to += [fragment.ensemble[position] for position, ids in filled.items() if entry_id in ids]
                if to:
                    yield entry_id, tuple(to)
            return
        wanted: dict[int, list[BookieId]] = {}
        for position, entries in self.fills.items():
            for entry_id in entries:
                wanted.setdefault(entry_id, []).append(fragment.ensemble[position])
        for entry_id in sorted(wanted):
            yield entry_id, tuple(wanted[entry_id])

    def count(self) -> int:
        """Returns how many copies that makes."""
        swapped = sum(held.count for position in self.swaps if (held := self.fragment.held(position)) is not None)
        return swapped + sum(len(entries) for entries in self.fills.values())

    def sources(self, entry_id: int) -> list[int]:
        """Returns the positions that may have the entry, the likely ones first."""
        holders = self.fragment.holders(entry_id)
        return sorted(holders, key=lambda position: position in self.swaps)  # Stable.


def swapped(found: LedgerMetadata, targets: Targets) -> LedgerMetadata | None:
    """Returns the metadata with the new bookies in the fragment; None if it has them already. Raises
    RepairOvertakenError if that would not be right any more."""
    fragment = targets.fragment
    number = next((n for n, each in enumerate(found.fragments) if each.first_entry_id == fragment.first), None)
    if number is None:
        raise RepairOvertakenError(f"ledger {found.ledger_id} has no fragment at entry {fragment.first} any more")
    current = found.fragments[number]
    if all(current.ensemble[position] == bookie for position, bookie in targets.swaps.items()):
        return None
    if not found.is_closed and number == len(found.fragments) - 1:
        raise RepairOvertakenError(f"ledger {found.ledger_id} is written again in the fragment at {fragment.first}")
    _check_positions(found, current.ensemble, targets)
    ensemble = tuple(targets.swaps.get(position, bookie) for position, bookie in enumerate(current.ensemble))
    fragments = list(found.fragments)
    fragments[number] = replace(current, ensemble=ensemble)
    return replace(found, fragments=tuple(fragments))


def _check_positions(found: LedgerMetadata, ensemble: Sequence[BookieId], targets: Targets) -> None:
    for position, bookie in targets.swaps.items():
        if ensemble[position] != targets.fragment.ensemble[position]:
            raise RepairOvertakenError(
                f"another worker replaced bookie {targets.fragment.ensemble[position]} of ledger {found.ledger_id}"
            )
        if bookie in ensemble:
            raise RepairOvertakenError(f"bookie {bookie} is in the fragment of ledger {found.ledger_id} already")


def entries_without(fragment: FragmentRange, is_usable: Callable[[BookieId], bool]) -> Iterator[int]:
    """Yields the entries of which no bookie is usable."""
    usable = [is_usable(bookie) for bookie in fragment.ensemble]
    size = len(fragment.ensemble)
    hopeless = [not any(usable[p] for p in fragment.holders(residue)) for residue in range(size)]
    if any(hopeless):
        yield from (entry for entry in range(fragment.first, fragment.last + 1) if hopeless[entry % size])


def ranges_text(entries: Iterable[int]) -> str:
    """Returns ascending entries as `3-7,12`; what is beyond the limit only as a number."""
    ranges: list[list[int]] = []
    beyond = 0
    for entry in entries:
        if ranges and entry == ranges[-1][1] + 1 and not beyond:
            ranges[-1][1] = entry
        elif len(ranges) < TEXT_RANGES_MAX:
            ranges.append([entry, entry])
        else:
            beyond += 1
    text = ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
    return f"{text} and {beyond} more" if beyond else text
