"""Replacing bookies of a ledger's last ensemble: who takes their place, and how that becomes the truth.

Rule:      entries after the last confirmed one move to the new ensemble, so a new fragment begins right behind it. If
           the last fragment begins there too, it has no confirmed entry and is replaced in place.
Commit:    by compare-and-set against the version we know. Losing the race means reading again:
             not open any more                → somebody recovers the ledger: this writer is fenced
             our fragment is there already    → an earlier try of ours was done although nobody told us
             another bookie in an older one   → a repair: ours is put on top of it, and tried again
             the last fragment is another     → nobody but the writer may do that: the ledger was taken over
Recovery:  makes its changes in memory only; its closing compare-and-set commits them together with the end.
Read next: compare_and_set.py, repair.py
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

from magnetar.errors import LedgerFencedError
from magnetar.ids import BookieId, EntryId
from magnetar.ledger.compare_and_set import MetadataParts, compare_and_set
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.metadata.bookkeeper.versioned import Versioned

# --- decisions --------------------------------------------------------------------------------------------------------


def changed(metadata: LedgerMetadata, first_entry_id: int, ensemble: Sequence[BookieId]) -> LedgerMetadata:
    """The metadata with this ensemble from this entry on."""
    last = metadata.fragments[-1]
    assert last.first_entry_id <= first_entry_id, "a confirmed entry cannot be moved"
    in_place = last.first_entry_id == first_entry_id
    before = metadata.fragments[:-1] if in_place else metadata.fragments
    new = Fragment(EntryId(first_entry_id), tuple(ensemble), last.unknown_fields if in_place else b"")
    return replace(metadata, fragments=(*before, new))


class Conflict(enum.Enum):
    """What it means that the metadata is not what we thought."""

    FENCED = "fenced"
    DONE = "done"
    MERGE = "merge"


def resolve(known: LedgerMetadata, wanted: LedgerMetadata, found: LedgerMetadata) -> Conflict:
    """`wanted` was to replace `known`, and `found` is what is stored."""
    if found.state is not LedgerState.OPEN:
        return Conflict.FENCED
    if _same(found.fragments[-1], wanted.fragments[-1]):
        return Conflict.DONE
    return Conflict.MERGE if _same(found.fragments[-1], known.fragments[-1]) else Conflict.FENCED


def _same(one: Fragment, other: Fragment) -> bool:
    return one.first_entry_id == other.first_entry_id and one.ensemble == other.ensemble


# --- shells -----------------------------------------------------------------------------------------------------------


class EnsembleChange(ABC):
    """What a write engine needs to go on when bookies fail: it says who, and hears when it is true."""

    @property
    @abstractmethod
    def metadata(self) -> LedgerMetadata:
        """As far as is known."""

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        return self.metadata.fragments[-1].ensemble

    @abstractmethod
    async def write(self, first_entry_id: int, replacements: Mapping[int, BookieId]) -> None:
        """From this entry on, other bookies are at these positions. When it returns, that is so for everybody who has
        to know; when it raises, the writer is finished."""

    def _with(self, replacements: Mapping[int, BookieId]) -> tuple[BookieId, ...]:
        return tuple(replacements.get(position, bookie) for position, bookie in enumerate(self.ensemble))


class ChangeInMemory(EnsembleChange):
    """Recovery's: nobody sees it before the ledger is closed."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self._metadata = metadata

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    async def write(self, first_entry_id: int, replacements: Mapping[int, BookieId]) -> None:
        self._metadata = changed(self._metadata, first_entry_id, self._with(replacements))


class CommittedChange(EnsembleChange):
    """A writer's: in the metadata before any entry counts on it."""

    def __init__(self, versioned: Versioned[LedgerMetadata], parts: MetadataParts) -> None:
        self.versioned = versioned
        self._parts = parts

    @property
    def metadata(self) -> LedgerMetadata:
        return self.versioned.value

    async def write(self, first_entry_id: int, replacements: Mapping[int, BookieId]) -> None:
        known = self.metadata
        ensemble = self._with(replacements)
        wanted = changed(known, first_entry_id, ensemble)

        def decide(found: LedgerMetadata) -> LedgerMetadata | None:
            match resolve(known, wanted, found):
                case Conflict.FENCED:
                    raise taken_over(found)
                case Conflict.DONE:
                    return None
                case Conflict.MERGE:
                    return changed(found, first_entry_id, ensemble)

        self.versioned = await compare_and_set(self.versioned, decide, self._parts)


def taken_over(found: LedgerMetadata) -> LedgerFencedError:
    """For a writer that finds its ledger in other hands."""
    how = {
        LedgerState.OPEN: "its last fragment was changed by somebody else",
        LedgerState.IN_RECOVERY: "another client is recovering it",
        LedgerState.CLOSED: f"another client closed it after entry {found.last_entry_id}",
    }[found.state]
    return LedgerFencedError(
        f"ledger {found.ledger_id} was taken over: {how}; this writer is finished, open the ledger to see what it holds"
    )
