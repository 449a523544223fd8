"""What makes a well-formed request one that cannot be served. The same for both protocol versions.

Stricter than Apache's server, which stores what it gets: an entry with an id below zero would be mistaken for one of
the journal's own marks, and an add whose body names another ledger would be stored there past that ledger's key.
"""

from __future__ import annotations

from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.messages import AddEntry, AnyRequest, BatchRead, ReadEntry, WriteLac
from magnetar.wire.bookkeeper.packet import IDS, LAST_ENTRY

ENTRY_BYTES_MIN = 24
"""Ledger id, entry id, LAC: what a bookie reads of an entry."""

Problem = tuple[Code, str]


def problem_with(request: AnyRequest) -> Problem | None:
    """Why the request must be refused, or None if it can be served."""
    if getattr(request, "ledger_id", 0) < 0:
        return Code.EBADREQ, "the ledger id is negative"
    match request:
        case AddEntry():
            return _of_add(request)
        case ReadEntry():
            return _of_read(request)
        case BatchRead() if request.entry_id < 0:
            return Code.EBADREQ, "the entry id is negative"
        case BatchRead():
            return _of_fencing(fence=request.fence, master_key=request.master_key)
        case WriteLac():
            return _of_write_lac(request)
        case _:
            return None


def _of_add(request: AddEntry) -> Problem | None:
    if request.entry_id < 0:
        return Code.EBADREQ, "the entry id is negative"
    if len(request.body) < ENTRY_BYTES_MIN:
        return Code.EBADREQ, f"an entry of {len(request.body)} bytes has no room for its own header"
    if IDS.unpack_from(request.body) != (request.ledger_id, request.entry_id):
        return Code.EBADREQ, "the ids inside the entry are not those of the request"
    return None


def _of_read(request: ReadEntry) -> Problem | None:
    if request.entry_id < LAST_ENTRY:
        return Code.EBADREQ, "the entry id is negative"
    if request.piggyback and request.previous_lac is not None and request.entry_id != LAST_ENTRY:
        return Code.EBADREQ, "only a poll of the last entry can carry an entry along"
    return _of_fencing(fence=request.fence, master_key=request.master_key)


def _of_fencing(*, fence: bool, master_key: bytes | None) -> Problem | None:
    if fence and master_key is None:
        return Code.EUA, "fencing needs the ledger's master key"
    return None


def _of_write_lac(request: WriteLac) -> Problem | None:
    if len(request.body) < IDS.size:
        return Code.EBADREQ, f"a LAC of {len(request.body)} bytes is too short"
    if IDS.unpack_from(request.body) != (request.ledger_id, request.lac):
        return Code.EBADREQ, "the ledger id or the LAC inside the body is not that of the request"
    return None
