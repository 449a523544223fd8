"""Checks whether a well-formed request can be served. The checks are the same for both protocol versions.

Purpose:   they are stricter than Apache's server, which stores any entry: an entry with an id below zero would be taken
           for one of the journal's own marks, and an add whose body names another ledger would be stored there past
           that ledger's key.
Limits:    protobuf sets no bound on bytes. Clients send one length or a few: a master key is a SHA-1, whatever the
           digest and the password; an explicit LAC is two numbers and a digest. Storage relies on it, so any other
           length is refused here, before it can be stored.
"""

from __future__ import annotations

from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import ENTRY_BYTES_MAX, IDS, LAST_ENTRY, MASTER_KEY_BYTES
from magnetar.wire.bookkeeper.messages import AddEntry, AnyRequest, BatchRead, ReadEntry, WriteLac

ENTRY_BYTES_MIN = 24
"""Ledger id, entry id, LAC: the part of an entry that a bookie reads."""
LAC_BYTES_MAX = 1024
"""The limit of an explicit LAC: 16 bytes and the digest, at most 20 bytes today. Longer ones have room."""

Problem = tuple[Code, str]


def problem_with(request: AnyRequest) -> Problem | None:
    """Returns why the request must be refused, or None if it can be served."""
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
    if len(request.body) > ENTRY_BYTES_MAX:
        return Code.EBADREQ, f"an entry of {len(request.body)} bytes could not be read back, {ENTRY_BYTES_MAX} can be"
    if IDS.unpack_from(request.body) != (request.ledger_id, request.entry_id):
        return Code.EBADREQ, "the ids inside the entry are not those of the request"
    return _of_key(request.master_key)


def _of_read(request: ReadEntry) -> Problem | None:
    if request.entry_id < LAST_ENTRY:
        return Code.EBADREQ, "the entry id is negative"
    if request.piggyback and request.previous_lac is not None and request.entry_id != LAST_ENTRY:
        return Code.EBADREQ, "only a poll of the last entry can carry an entry along"
    return _of_fencing(fence=request.fence, master_key=request.master_key)


def _of_fencing(*, fence: bool, master_key: bytes | None) -> Problem | None:
    if not fence:
        return None  # Apache's client adds a key to some plain reads; it is ignored.
    if master_key is None:
        return Code.EUA, "fencing needs the ledger's master key"
    return _of_key(master_key)


def _of_write_lac(request: WriteLac) -> Problem | None:
    if len(request.body) < IDS.size:
        return Code.EBADREQ, f"a LAC of {len(request.body)} bytes is too short"
    if len(request.body) > LAC_BYTES_MAX:
        return Code.EBADREQ, f"a LAC of {len(request.body)} bytes is too long"
    if IDS.unpack_from(request.body) != (request.ledger_id, request.lac):
        return Code.EBADREQ, "the ledger id or the LAC inside the body is not that of the request"
    return _of_key(request.master_key)


def _of_key(master_key: bytes) -> Problem | None:
    if len(master_key) != MASTER_KEY_BYTES:
        return Code.EBADREQ, f"a master key has {MASTER_KEY_BYTES} bytes, not {len(master_key)}"
    return None
