"""Requests and responses as values. Both protocol versions decode to these and encode from these.

Invariant: a decoded request can be served as it is: ids are in range, the ids inside an add's body are those outside,
           a fencing read has a master key, keys have 20 bytes, and an entry fits the answer to any read. A request
           that breaks this is a `Refusal`, with its answer ready to be sent. `problem_with` decides, for both versions.
           It is stricter than Apache's server, which stores any entry: an entry with an id below zero would be taken
           for one of the journal's own marks, and an add whose body names another ledger would be stored there past
           that ledger's key.
Format:    every message has the version it travels in: 0 to 2 is the compact form, 3 is protobuf. A response has
           that of its request, and its `txn_id` (always 0 in the compact form, where ids link the two instead).
Limits:    protobuf sets no bound on bytes. Clients send one length or a few: a master key is a SHA-1, whatever the
           digest and the password; an explicit LAC is two numbers and a digest. Storage relies on it, so any other
           length is refused here, before it can be stored.
Read next: docs/bookkeeper-protocol.md (the operations of each version)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import ENTRY_BYTES_MAX, IDS, LAST_ENTRY, MASTER_KEY_BYTES, Buffer

V2 = 2
V3 = 3
DEFERRED_SYNC = 1
"""Write flag: answer the add before it is durable; `ForceLedger` then waits for the disk."""
TOTAL_DISK_CAPACITY = 1
FREE_DISK_SPACE = 2
AUTH_DISABLED = "AuthDisabledPlugin"
"""The plugin name with which a bookie without authentication answers every request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    version: int = V3
    txn_id: int = 0


# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Message):
    high_priority: bool = False
    """It overtakes others, and a read-only bookie with reserved room accepts it."""


@dataclass(frozen=True, slots=True)
class AddEntry(Request):
    ledger_id: int
    entry_id: int
    master_key: bytes
    body: bytes
    """As it is stored and read back: ledger id, entry id, LAC, length, digest, payload."""
    recovery: bool = False
    """It is accepted although the ledger is fenced: the client that fenced it repairs its end."""
    deferred_sync: bool = False


@dataclass(frozen=True, slots=True)
class ReadEntry(Request):
    ledger_id: int
    entry_id: int
    """`LAST_ENTRY` asks for the last one here."""
    fence: bool = False
    master_key: bytes | None = None
    previous_lac: int | None = None
    """Long poll: answer once the LAC is beyond this, or when `timeout_ms` is over. Not together with `fence`."""
    timeout_ms: int | None = None
    """Never negative, but as long as the client likes: the server sets the bound."""
    piggyback: bool = False
    """Long poll: send the entry after `previous_lac` along."""


@dataclass(frozen=True, slots=True)
class BatchRead(Request):
    ledger_id: int
    entry_id: int
    request_id: int
    """It is sent back: in the compact form this alone links request and response."""
    entries_max: int
    """0 or less: only `bytes_max` counts."""
    bytes_max: int
    """The limit of the response's frame; the first entry is sent even if it is larger."""
    fence: bool = False
    master_key: bytes | None = None


@dataclass(frozen=True, slots=True)
class ReadLac(Request):
    ledger_id: int


@dataclass(frozen=True, slots=True)
class WriteLac(Request):
    ledger_id: int
    lac: int
    master_key: bytes
    body: bytes
    """Ledger id, LAC, digest: stored and sent back as it is."""


@dataclass(frozen=True, slots=True)
class ForceLedger(Request):
    ledger_id: int


@dataclass(frozen=True, slots=True)
class GetBookieInfo(Request):
    requested: int = TOTAL_DISK_CAPACITY | FREE_DISK_SPACE


@dataclass(frozen=True, slots=True)
class ListEntries(Request):
    ledger_id: int


@dataclass(frozen=True, slots=True)
class Auth(Request):
    plugin: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class StartTls(Request):
    pass


AnyRequest: TypeAlias = (
    AddEntry | ReadEntry | BatchRead | ReadLac | WriteLac | ForceLedger | GetBookieInfo | ListEntries | Auth | StartTls
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was understood well enough to be answered, and no further."""

    code: Code
    reason: str
    answer: bytes
    """The whole response frame."""


# --- responses --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Response(Message):
    code: Code


@dataclass(frozen=True, slots=True)
class AddResponse(Response):
    ledger_id: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class ReadResponse(Response):
    ledger_id: int
    entry_id: int
    body: Buffer = b""
    max_lac: int | None = None
    """v3 only: the LAC that the bookie knows."""
    lac_updated_ms: int | None = None
    """v3 only: wall clock of the bookie when that LAC came."""


@dataclass(frozen=True, slots=True)
class BatchReadResponse(Response):
    ledger_id: int
    entry_id: int
    request_id: int
    bodies: Sequence[Buffer] = ()
    """Entries from `entry_id` on, without a gap."""


@dataclass(frozen=True, slots=True)
class ReadLacResponse(Response):
    ledger_id: int
    lac_body: bytes | None = None
    last_entry_body: Buffer | None = None


@dataclass(frozen=True, slots=True)
class WriteLacResponse(Response):
    ledger_id: int


@dataclass(frozen=True, slots=True)
class ForceLedgerResponse(Response):
    ledger_id: int


@dataclass(frozen=True, slots=True)
class GetBookieInfoResponse(Response):
    total_disk_bytes: int | None = None
    free_disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ListEntriesResponse(Response):
    ledger_id: int
    availability: bytes | None = None
    """availability.py reads it."""


@dataclass(frozen=True, slots=True)
class AuthResponse(Response):
    plugin: str = AUTH_DISABLED
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class StartTlsResponse(Response):
    pass


@dataclass(frozen=True, slots=True)
class BareResponse(Response):
    """v3 only: a failure with nothing but its code. `operation` is the number that the request had."""

    operation: int


AnyResponse: TypeAlias = (
    AddResponse
    | ReadResponse
    | BatchReadResponse
    | ReadLacResponse
    | WriteLacResponse
    | ForceLedgerResponse
    | GetBookieInfoResponse
    | ListEntriesResponse
    | AuthResponse
    | StartTlsResponse
    | BareResponse
)


_RESPONSES: dict[type[AnyRequest], tuple[type[Any], tuple[str, ...]]] = {
    AddEntry: (AddResponse, ("ledger_id", "entry_id")),
    ReadEntry: (ReadResponse, ("ledger_id", "entry_id")),
    BatchRead: (BatchReadResponse, ("ledger_id", "entry_id", "request_id")),
    ReadLac: (ReadLacResponse, ("ledger_id",)),
    WriteLac: (WriteLacResponse, ("ledger_id",)),
    ForceLedger: (ForceLedgerResponse, ("ledger_id",)),
    GetBookieInfo: (GetBookieInfoResponse, ()),
    ListEntries: (ListEntriesResponse, ("ledger_id",)),
    Auth: (AuthResponse, ()),
    StartTls: (StartTlsResponse, ()),
}
"""The response to each request, and the fields that it repeats."""


def answer_to(request: AnyRequest, code: Code = Code.EOK, **content: Any) -> AnyResponse:
    """Returns the response to a request, in the form in which the client waits for it."""
    kind, repeated = _RESPONSES[type(request)]
    ids = {name: getattr(request, name) for name in repeated}
    answer: AnyResponse = kind(code=code, **ids | content, version=request.version, txn_id=request.txn_id)
    return answer


# --- what can be served -----------------------------------------------------------------------------------------------

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
