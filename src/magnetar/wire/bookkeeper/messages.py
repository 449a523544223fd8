"""Requests and responses as values. Both protocol versions decode to these and encode from these.

Invariant: a decoded request can be served as it is: ids are in range, the ids inside an add's body are those outside,
           a fencing read has a master key, keys have 20 bytes, and an entry fits the answer to any read. A request
           that breaks this is a `Refusal`, with its answer ready to be sent.
Format:    every message has the version it travels in: 0 to 2 is the compact form, 3 is protobuf. A response has
           that of its request, and its `txn_id` (always 0 in the compact form, where ids link the two instead).
Read next: docs/bookkeeper-protocol.md (the operations of each version)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import Buffer

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


def failure(request: AnyRequest, code: Code) -> AnyResponse:
    """Returns the response for a failure, in the form in which the client waits for it."""
    assert code is not Code.EOK
    version, txn_id = request.version, request.txn_id
    match request:
        case AddEntry():
            return AddResponse(code, request.ledger_id, request.entry_id, version=version, txn_id=txn_id)
        case ReadEntry():
            return ReadResponse(code, request.ledger_id, request.entry_id, version=version, txn_id=txn_id)
        case BatchRead():
            return BatchReadResponse(
                code, request.ledger_id, request.entry_id, request.request_id, version=version, txn_id=txn_id
            )
        case GetBookieInfo():
            return GetBookieInfoResponse(code, version=version, txn_id=txn_id)
        case Auth():
            return AuthResponse(code, version=version, txn_id=txn_id)
        case StartTls():
            return StartTlsResponse(code, version=version, txn_id=txn_id)
        case _:
            of_ledger = _LEDGER_RESPONSES[type(request)]
            return of_ledger(code, request.ledger_id, version=version, txn_id=txn_id)


_LEDGER_RESPONSES: dict[
    type[Request],
    type[ReadLacResponse | WriteLacResponse | ForceLedgerResponse | ListEntriesResponse],
] = {
    ReadLac: ReadLacResponse,
    WriteLac: WriteLacResponse,
    ForceLedger: ForceLedgerResponse,
    ListEntries: ListEntriesResponse,
}
