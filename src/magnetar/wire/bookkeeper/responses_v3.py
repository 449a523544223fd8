"""Responses in protobuf: header, code, and a message of the operation that repeats the code.

Invariant: a client takes the inner code only if the outer one is EOK: some failures have no content.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from google.protobuf.message import DecodeError

from magnetar.errors import LocalProtocolError, RemoteProtocolError
from magnetar.wire.bookkeeper.auth_message import fields_of
from magnetar.wire.bookkeeper.codes import Code, code_of_status
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX, framed
from magnetar.wire.bookkeeper.messages import (
    AddResponse,
    AnyResponse,
    AuthResponse,
    BareResponse,
    BatchReadResponse,
    ForceLedgerResponse,
    GetBookieInfoResponse,
    ListEntriesResponse,
    ReadLacResponse,
    ReadResponse,
    StartTlsResponse,
    WriteLacResponse,
)
from magnetar.wire.bookkeeper.proto import bookkeeper_protocol_pb2 as pb

_OPERATIONS: dict[type[AnyResponse], pb.OperationType] = {
    AddResponse: pb.ADD_ENTRY,
    ReadResponse: pb.READ_ENTRY,
    ReadLacResponse: pb.READ_LAC,
    WriteLacResponse: pb.WRITE_LAC,
    ForceLedgerResponse: pb.FORCE_LEDGER,
    GetBookieInfoResponse: pb.GET_BOOKIE_INFO,
    ListEntriesResponse: pb.GET_LIST_OF_ENTRIES_OF_LEDGER,
    AuthResponse: pb.AUTH,
    StartTlsResponse: pb.START_TLS,
}
_STATUSES = {code: cast("pb.StatusCode", pb.StatusCode.Value(code.name)) for code in Code}


# --- encoding ---------------------------------------------------------------------------------------------------------


def encode_response(response: AnyResponse, limit: int = FRAME_BYTES_MAX) -> bytes:
    """Encodes the whole frame."""
    if isinstance(response, BatchReadResponse):
        raise LocalProtocolError("protocol v3 has no batch read")
    message = pb.Response()
    header = message.header
    header.version = pb.VERSION_THREE
    if isinstance(response, BareResponse):
        header.operation = cast("pb.OperationType", response.operation)
    else:
        header.operation = _OPERATIONS[type(response)]
    header.txnId = response.txn_id
    message.status = _STATUSES[response.code]
    _fill(message, response)
    return framed(message.SerializeToString(), limit)


def _fill(message: pb.Response, response: AnyResponse) -> None:
    status = message.status
    match response:
        case AddResponse(ledger_id=ledger_id, entry_id=entry_id):
            message.addResponse.MergeFrom(pb.AddResponse(status=status, ledgerId=ledger_id, entryId=entry_id))
        case ReadResponse():
            _fill_read(message, response)
        case ReadLacResponse(ledger_id=ledger_id, lac_body=lac_body, last_entry_body=last):
            entry = None if last is None else bytes(last)
            message.readLacResponse.MergeFrom(
                pb.ReadLacResponse(status=status, ledgerId=ledger_id, lacBody=lac_body, lastEntryBody=entry)
            )
        case WriteLacResponse(ledger_id=ledger_id):
            message.writeLacResponse.MergeFrom(pb.WriteLacResponse(status=status, ledgerId=ledger_id))
        case ForceLedgerResponse(ledger_id=ledger_id):
            message.forceLedgerResponse.MergeFrom(pb.ForceLedgerResponse(status=status, ledgerId=ledger_id))
        case GetBookieInfoResponse(total_disk_bytes=total, free_disk_bytes=free):
            message.getBookieInfoResponse.MergeFrom(
                pb.GetBookieInfoResponse(status=status, totalDiskCapacity=total, freeDiskSpace=free)
            )
        case ListEntriesResponse(ledger_id=ledger_id, availability=availability):
            message.getListOfEntriesOfLedgerResponse.MergeFrom(
                pb.GetListOfEntriesOfLedgerResponse(
                    status=status, ledgerId=ledger_id, availabilityOfEntriesOfLedger=availability
                )
            )
        case AuthResponse(plugin=plugin, payload=payload):
            message.authResponse.MergeFrom(pb.AuthMessage(authPluginName=plugin, payload=payload))
        case StartTlsResponse(code=Code.EOK):
            message.startTLSResponse.SetInParent()
        case _:
            pass  # This failure has nothing but its code.


def _fill_read(message: pb.Response, response: ReadResponse) -> None:
    read = message.readResponse
    read.status = message.status
    read.ledgerId = response.ledger_id
    read.entryId = response.entry_id
    if response.body:
        read.body = bytes(response.body)
    if response.max_lac is not None:
        read.maxLAC = response.max_lac
    if response.lac_updated_ms is not None:
        read.lacUpdateTimestamp = response.lac_updated_ms


# --- decoding ---------------------------------------------------------------------------------------------------------


def decode_response(body: memoryview) -> AnyResponse:
    """Decodes one frame, without its length."""
    message = pb.Response()
    try:
        message.ParseFromString(bytes(body))
        if not message.IsInitialized():
            raise RemoteProtocolError("a response without a required field, or with an unknown code")
        return _decoded(message)
    except (DecodeError, UnicodeDecodeError):
        raise RemoteProtocolError("a response that is not of protocol v3") from None


def _decoded(message: pb.Response) -> AnyResponse:
    operation = message.header.operation
    code = code_of_status(message.status)
    field, decode = _DECODERS.get(operation, ("", None))
    if decode is None or not message.HasField(field):
        if code is Code.EOK:
            raise RemoteProtocolError(f"a response to operation {operation} says EOK and has no content")
        if operation == pb.START_TLS:  # Its refusal never has content.
            return StartTlsResponse(code, txn_id=message.header.txnId)
        return BareResponse(code, int(operation), txn_id=message.header.txnId)
    inner = getattr(message, field)
    if code is Code.EOK and hasattr(inner, "status"):
        code = code_of_status(inner.status)
    return decode(code, message.header.txnId, inner)


def _add(code: Code, txn_id: int, inner: pb.AddResponse) -> AddResponse:
    return AddResponse(code, inner.ledgerId, inner.entryId, txn_id=txn_id)


def _read(code: Code, txn_id: int, inner: pb.ReadResponse) -> ReadResponse:
    return ReadResponse(
        code,
        inner.ledgerId,
        inner.entryId,
        inner.body,
        inner.maxLAC if inner.HasField("maxLAC") else None,
        inner.lacUpdateTimestamp if inner.HasField("lacUpdateTimestamp") else None,
        txn_id=txn_id,
    )


def _read_lac(code: Code, txn_id: int, inner: pb.ReadLacResponse) -> ReadLacResponse:
    return ReadLacResponse(
        code,
        inner.ledgerId,
        inner.lacBody if inner.HasField("lacBody") else None,
        inner.lastEntryBody if inner.HasField("lastEntryBody") else None,
        txn_id=txn_id,
    )


def _write_lac(code: Code, txn_id: int, inner: pb.WriteLacResponse) -> WriteLacResponse:
    return WriteLacResponse(code, inner.ledgerId, txn_id=txn_id)


def _force(code: Code, txn_id: int, inner: pb.ForceLedgerResponse) -> ForceLedgerResponse:
    return ForceLedgerResponse(code, inner.ledgerId, txn_id=txn_id)


def _info(code: Code, txn_id: int, inner: pb.GetBookieInfoResponse) -> GetBookieInfoResponse:
    return GetBookieInfoResponse(
        code,
        inner.totalDiskCapacity if inner.HasField("totalDiskCapacity") else None,
        inner.freeDiskSpace if inner.HasField("freeDiskSpace") else None,
        txn_id=txn_id,
    )


def _list(code: Code, txn_id: int, inner: pb.GetListOfEntriesOfLedgerResponse) -> ListEntriesResponse:
    held = inner.availabilityOfEntriesOfLedger if inner.HasField("availabilityOfEntriesOfLedger") else None
    return ListEntriesResponse(code, inner.ledgerId, held, txn_id=txn_id)


def _auth(code: Code, txn_id: int, inner: pb.AuthMessage) -> AuthResponse:
    return AuthResponse(code, *fields_of(inner), txn_id=txn_id)


def _start_tls(code: Code, txn_id: int, _inner: pb.StartTLSResponse) -> StartTlsResponse:
    return StartTlsResponse(code, txn_id=txn_id)


_DECODERS: dict[int, tuple[str, Callable[[Code, int, Any], AnyResponse]]] = {
    pb.ADD_ENTRY: ("addResponse", _add),
    pb.READ_ENTRY: ("readResponse", _read),
    pb.READ_LAC: ("readLacResponse", _read_lac),
    pb.WRITE_LAC: ("writeLacResponse", _write_lac),
    pb.FORCE_LEDGER: ("forceLedgerResponse", _force),
    pb.GET_BOOKIE_INFO: ("getBookieInfoResponse", _info),
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: ("getListOfEntriesOfLedgerResponse", _list),
    pb.AUTH: ("authResponse", _auth),
    pb.START_TLS: ("startTLSResponse", _start_tls),
}
