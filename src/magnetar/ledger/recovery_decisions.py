"""What recovery decides, without doing anything: where it begins, what the closed ledger looks like, who was faster.

Invariant: a ledger is closed once. Whoever loses the closing compare-and-set takes what is there for the truth.
Whether one entry is kept, missing or undecided: quorum/coverage.py.
Read next: recovery.py
"""

from __future__ import annotations

import enum
from dataclasses import replace

from magnetar.ids import EntryId
from magnetar.ledger.lac import lac_floor
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState


def first_to_read(metadata: LedgerMetadata, lac: int) -> EntryId:
    """Everything before it is committed: by the LAC, or by being in a fragment that another one follows.

    An older fragment is never read by recovery: its entries have their copies, and rewriting them would need an
    ensemble change in the middle of the ledger.
    """
    return EntryId(max(lac, lac_floor(metadata)) + 1)


def in_recovery(metadata: LedgerMetadata) -> LedgerMetadata:
    """From here on the old writer's ensemble changes fail."""
    assert metadata.state is LedgerState.OPEN
    return replace(metadata, state=LedgerState.IN_RECOVERY)


def closed(metadata: LedgerMetadata, last_entry_id: int, length: int) -> LedgerMetadata:
    return replace(metadata, state=LedgerState.CLOSED, last_entry_id=EntryId(last_entry_id), length=length)


# --- a lost compare-and-set -------------------------------------------------------------------------------------------


class Lost(enum.Enum):
    """What it means for a recovery that the metadata is not what it was when it began."""

    OTHERS_CLOSED = "another client closed the ledger: that is the truth, also if it differs"
    MERGE = "a bookie of an older fragment was swapped: the close goes on top of that"
    BEGIN_AGAIN = "the end of the ledger is another: nothing that was found counts"


def resolve(began: LedgerMetadata, found: LedgerMetadata) -> Lost:
    """`began` is what this recovery read, in state IN_RECOVERY; `found` is what is stored now."""
    if found.is_closed:
        return Lost.OTHERS_CLOSED
    same_end = found.state is began.state and _same(found.fragments[-1], began.fragments[-1])
    return Lost.MERGE if same_end else Lost.BEGIN_AGAIN


def merge(began: LedgerMetadata, changed: LedgerMetadata, found: LedgerMetadata) -> LedgerMetadata:
    """`found`, with the fragments that this recovery made of the last one: `changed` is `began` with them."""
    assert resolve(began, found) is Lost.MERGE
    own_from = len(began.fragments) - 1
    return replace(found, fragments=(*found.fragments[:-1], *changed.fragments[own_from:]))


def _same(one: Fragment, other: Fragment) -> bool:
    return one.first_entry_id == other.first_entry_id and one.ensemble == other.ensemble
