"""Replacing bookies of a ledger's last ensemble: the new metadata, and how it gets committed.

Entries after the last confirmed one move to the new ensemble, so a new fragment begins right after that entry. If the
last fragment begins there too, it has no confirmed entry and is replaced in place.

A writer commits by compare-and-set against the version that it knows. After a lost race it reads again:

    not open any more                → another client recovers the ledger: this writer is fenced
    our fragment exists already      → an earlier try succeeded, and its answer got lost
    another bookie in an older one   → a repair: ours is put on top of it, and tried again
    the last fragment is another     → only a writer may do that: the ledger was taken over

Recovery makes its changes in memory only; its closing compare-and-set commits them together with the end.

Read next: compare_and_set.py, ledger/writing/repair.py
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

from magnetar.errors import LedgerFencedError
from magnetar.ids import BookieId, EntryId
from magnetar.ledger.metadata.compare_and_set import MetadataContext, compare_and_set
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState, Versioned

# --- decisions --------------------------------------------------------------------------------------------------------


def changed(metadata: LedgerMetadata, first_entry_id: int, ensemble: Sequence[BookieId]) -> LedgerMetadata:
    """Returns the metadata with this ensemble from this entry on."""
    last = metadata.fragments[-1]
    assert last.first_entry_id <= first_entry_id, "a confirmed entry cannot be moved"
    in_place = last.first_entry_id == first_entry_id
    before = metadata.fragments[:-1] if in_place else metadata.fragments
    new = Fragment(EntryId(first_entry_id), tuple(ensemble), last.unknown_fields if in_place else b"")
    return replace(metadata, fragments=(*before, new))


class Conflict(enum.Enum):
    """What it means that the metadata differs from what this client knew."""

    FENCED = "fenced"
    DONE = "done"
    MERGE = "merge"


def resolve(known: LedgerMetadata, wanted: LedgerMetadata, found: LedgerMetadata) -> Conflict:
    """Compares: `wanted` was to replace `known`, and `found` is what is stored."""
    if found.state is not LedgerState.OPEN:
        return Conflict.FENCED
    if _same(found.fragments[-1], wanted.fragments[-1]):
        return Conflict.DONE
    return Conflict.MERGE if _same(found.fragments[-1], known.fragments[-1]) else Conflict.FENCED


def _same(one: Fragment, other: Fragment) -> bool:
    return one.first_entry_id == other.first_entry_id and one.ensemble == other.ensemble


# --- shells -----------------------------------------------------------------------------------------------------------


class EnsembleChange(ABC):
    """Lets a write engine replace bookies that fail: the engine chooses them, and this object commits the change."""

    @property
    @abstractmethod
    def metadata(self) -> LedgerMetadata:
        """The metadata as last known."""

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        return self.metadata.fragments[-1].ensemble

    @abstractmethod
    async def write(self, first_entry_id: int, replacements: Mapping[int, BookieId]) -> None:
        """Puts other bookies at these positions, from this entry on.

        When it returns, the change is committed; when it raises, the writer is finished.
        """

    def _with(self, replacements: Mapping[int, BookieId]) -> tuple[BookieId, ...]:
        return tuple(replacements.get(position, bookie) for position, bookie in enumerate(self.ensemble))


class ChangeInMemory(EnsembleChange):
    """Keeps recovery's changes: they become visible when the ledger is closed."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self._metadata = metadata

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    async def write(self, first_entry_id: int, replacements: Mapping[int, BookieId]) -> None:
        self._metadata = changed(self._metadata, first_entry_id, self._with(replacements))


class CommittedChange(EnsembleChange):
    """Keeps a writer's changes: they are in the metadata before any entry relies on them."""

    def __init__(self, versioned: Versioned[LedgerMetadata], context: MetadataContext) -> None:
        self.versioned = versioned
        self._context = context

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

        self.versioned = await compare_and_set(self.versioned, decide, self._context)


def taken_over(found: LedgerMetadata) -> LedgerFencedError:
    """Returns the error of a writer whose ledger another client has taken over."""
    how = {
        LedgerState.OPEN: "another client changed its last fragment",
        LedgerState.IN_RECOVERY: "another client is recovering it",
        LedgerState.CLOSED: f"another client closed it after entry {found.last_entry_id}",
    }[found.state]
    return LedgerFencedError(
        f"ledger {found.ledger_id} was taken over: {how}; this writer is finished, open the ledger to see what it holds"
    )
