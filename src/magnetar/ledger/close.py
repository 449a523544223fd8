"""Closing a ledger as its writer: from then on everybody agrees where it ends.

End:       the last entry that the writer confirmed. Nothing behind it was acknowledged, and nothing will be: the writer
           gave its window up before.
Conflict:  closed already at the same end                    → an earlier try of ours, or a recovery that found the same
           closed at another end                             → taken over; what the other found is the truth
           open or being recovered, otherwise as it may be   → closed on top of it. That is safe during a recovery too:
                it has told nobody of its findings yet, and will find the ledger closed when it wants to.
"""

from __future__ import annotations

from dataclasses import replace

from magnetar.ids import EntryId
from magnetar.ledger.compare_and_set import MetadataParts, compare_and_set
from magnetar.ledger.ensemble_change import taken_over
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.metadata.bookkeeper.versioned import Versioned


def closed(found: LedgerMetadata, last_entry_id: int, length: int) -> LedgerMetadata | None:
    """The metadata of the closed ledger; None if it is closed like that already. LedgerFencedError if differently."""
    if not found.is_closed:
        return replace(found, state=LedgerState.CLOSED, last_entry_id=EntryId(last_entry_id), length=length)
    if (found.last_entry_id, found.length) == (last_entry_id, length):
        return None
    raise taken_over(found)


async def close_ledger(
    known: Versioned[LedgerMetadata], last_entry_id: int, length: int, parts: MetadataParts
) -> Versioned[LedgerMetadata]:
    """`length` is that of all payloads up to the last entry, which is -1 for an empty ledger."""
    return await compare_and_set(known, lambda found: closed(found, last_entry_id, length), parts)
