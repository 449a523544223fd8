"""Requests in protobuf: a header that names the operation, and the one message that belongs to it.

Failure:   a frame that does not parse, or lacks a required field, is not of v3: that distinguishes the versions. One
           that parses and cannot be served is a `Refusal`: version other than 3 (EBADVERSION), an operation that has a
           number but no server (EBADREQ: range read, range add, batch read), or no message for the operation
           (EBADREQ).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from magnetar.errors import LocalProtocolError, RemoteProtocolError
from magnetar.wire.bookkeeper.auth_message import fields_of
from magnetar.wire.bookkeeper.checks import problem_with
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX, framed
from magnetar.wire.bookkeeper.messages import (
    DEFERRED_SYNC,
    V3,
    AddEntry,
    AnyRequest,
    Auth,
    BareResponse,
    BatchRead,
    ForceLedger,
    GetBookieInfo,
    ListEntries,
    ReadEntry,
    ReadLac,
    Refusal,
    StartTls,
    WriteLac,
    failure,
)
from magnetar.wire.bookkeeper.proto import bookkeeper_protocol_pb2 as pb
from magnetar.wire.bookkeeper.responses_v3 import encode_response

_HIGH_PRIORITY = 100  # Any number above 0 means the same; this is the one that Apache's client sends.
_OPERATIONS: dict[type[AnyRequest], pb.OperationType] = {
    AddEntry: pb.ADD_ENTRY,
    ReadEntry: pb.READ_ENTRY,
    ReadLac: pb.READ_LAC,
    WriteLac: pb.WRITE_LAC,
    ForceLedger: pb.FORCE_LEDGER,
    GetBookieInfo: pb.GET_BOOKIE_INFO,
    ListEntries: pb.GET_LIST_OF_ENTRIES_OF_LEDGER,
    Auth: pb.AUTH,
    StartTls: pb.START_TLS,
}


# --- encoding ---------------------------------------------------------------------------------------------------------


def encode_request(request: AnyRequest, limit: int = FRAME_BYTES_MAX) -> bytes:
    """Encodes the whole frame."""
    if isinstance(request, BatchRead):
        raise LocalProtocolError("protocol v3 has no batch read: use v2 for it")
    message = pb.Request()
    message.header.version = pb.VERSION_THREE
    message.header.operation = _OPERATIONS[type(request)]
    message.header.txnId = request.txn_id
    if request.high_priority:
        message.header.priority = _HIGH_PRIORITY
    _fill(message, request)
    return framed(message.SerializeToString(), limit)


def _fill(message: pb.Request, request: AnyRequest) -> None:
    match request:
        case AddEntry():
            _fill_add(message.addRequest, request)
        case ReadEntry():
            _fill_read(message.readRequest, request)
        case WriteLac(ledger_id=ledger_id, lac=lac, master_key=key, body=body):
            message.writeLacRequest.MergeFrom(pb.WriteLacRequest(ledgerId=ledger_id, lac=lac, masterKey=key, body=body))
        case ReadLac(ledger_id=ledger_id):
            message.readLacRequest.ledgerId = ledger_id
        case ForceLedger(ledger_id=ledger_id):
            message.forceLedgerRequest.ledgerId = ledger_id
        case ListEntries(ledger_id=ledger_id):
            message.getListOfEntriesOfLedgerRequest.ledgerId = ledger_id
        case GetBookieInfo(requested=requested):
            message.getBookieInfoRequest.requested = requested
        case Auth(plugin=plugin, payload=payload):
            message.authRequest.MergeFrom(pb.AuthMessage(authPluginName=plugin, payload=payload))
        case _:
            message.startTLSRequest.SetInParent()


def _fill_add(add: pb.AddRequest, request: AddEntry) -> None:
    add.ledgerId = request.ledger_id
    add.entryId = request.entry_id
    add.masterKey = request.master_key
    add.body = request.body
    if request.recovery:
        add.flag = pb.AddRequest.RECOVERY_ADD
    if request.deferred_sync:
        add.writeFlags = DEFERRED_SYNC


def _fill_read(read: pb.ReadRequest, request: ReadEntry) -> None:
    if request.fence and (request.previous_lac is not None or request.master_key is None):
        raise LocalProtocolError("a fencing read needs the ledger's master key and cannot be a long poll")
    if request.previous_lac is None and (request.piggyback or request.timeout_ms is not None):
        raise LocalProtocolError("a long poll needs the LAC that the reader knows already")
    read.ledgerId = request.ledger_id
    read.entryId = request.entry_id
    if request.fence:
        read.flag = pb.ReadRequest.FENCE_LEDGER
    elif request.piggyback:
        read.flag = pb.ReadRequest.ENTRY_PIGGYBACK
    if request.master_key is not None:
        read.masterKey = request.master_key
    if request.previous_lac is not None:
        read.previousLAC = request.previous_lac
    if request.timeout_ms is not None:
        read.timeOut = request.timeout_ms


# --- decoding ---------------------------------------------------------------------------------------------------------


def decode_request(body: memoryview) -> AnyRequest | Refusal | None:
    """Decodes one frame, without its length; None if it is not of this version."""
    message = pb.Request()
    try:
        message.ParseFromString(bytes(body))
    except (DecodeError, UnicodeDecodeError):
        return None
    if not message.IsInitialized():  # An operation of an unknown number counts as missing.
        return None
    return _decoded(message)


def _decoded(message: pb.Request) -> AnyRequest | Refusal:
    header = message.header
    field, decode = _DECODERS.get(header.operation, ("", None))
    if decode is None:
        return _bare_refusal(header, "no server has this operation")
    if not message.HasField(field):
        return _bare_refusal(header, f"the request has no {field}")
    try:
        request = decode(header.txnId, header.priority > 0, getattr(message, field))
    except RemoteProtocolError as error:
        return _bare_refusal(header, str(error))
    if header.version != V3 and not isinstance(request, Auth | StartTls):
        return _refused(request, Code.EBADVERSION, f"protobuf is for protocol version 3, not {int(header.version)}")
    problem = problem_with(request)
    return request if problem is None else _refused(request, *problem)


def _bare_refusal(header: pb.BKPacketHeader, reason: str) -> Refusal:
    answer = BareResponse(Code.EBADREQ, int(header.operation), txn_id=header.txnId)
    return Refusal(Code.EBADREQ, f"operation {int(header.operation)}: {reason}", encode_response(answer))


def _refused(request: AnyRequest, code: Code, reason: str) -> Refusal:
    return Refusal(code, reason, encode_response(failure(request, code)))


def _add(txn_id: int, high: bool, add: pb.AddRequest) -> AddEntry:
    return AddEntry(
        add.ledgerId,
        add.entryId,
        add.masterKey,
        add.body,
        recovery=add.HasField("flag") and add.flag == pb.AddRequest.RECOVERY_ADD,
        deferred_sync=bool(add.writeFlags & DEFERRED_SYNC),
        txn_id=txn_id,
        high_priority=high,
    )


def _read(txn_id: int, high: bool, read: pb.ReadRequest) -> ReadEntry:
    flag = read.flag if read.HasField("flag") else None
    fence = flag == pb.ReadRequest.FENCE_LEDGER
    polls = read.HasField("previousLAC") and not fence
    return ReadEntry(
        read.ledgerId,
        read.entryId,
        fence=fence,
        master_key=read.masterKey if read.HasField("masterKey") else None,
        previous_lac=read.previousLAC if polls else None,
        timeout_ms=max(0, read.timeOut) if polls and read.HasField("timeOut") else None,
        piggyback=polls
        and flag == pb.ReadRequest.ENTRY_PIGGYBACK,  # Without a LAC to compare with, it is a plain read.
        txn_id=txn_id,
        high_priority=high,
    )


def _write_lac(txn_id: int, high: bool, request: pb.WriteLacRequest) -> WriteLac:
    return WriteLac(request.ledgerId, request.lac, request.masterKey, request.body, txn_id=txn_id, high_priority=high)


def _read_lac(txn_id: int, high: bool, request: pb.ReadLacRequest) -> ReadLac:
    return ReadLac(request.ledgerId, txn_id=txn_id, high_priority=high)


def _force(txn_id: int, high: bool, request: pb.ForceLedgerRequest) -> ForceLedger:
    return ForceLedger(request.ledgerId, txn_id=txn_id, high_priority=high)


def _info(txn_id: int, high: bool, request: pb.GetBookieInfoRequest) -> GetBookieInfo:
    return GetBookieInfo(request.requested, txn_id=txn_id, high_priority=high)


def _list(txn_id: int, high: bool, request: pb.GetListOfEntriesOfLedgerRequest) -> ListEntries:
    return ListEntries(request.ledgerId, txn_id=txn_id, high_priority=high)


def _auth(txn_id: int, high: bool, request: pb.AuthMessage) -> Auth:
    return Auth(*fields_of(request), txn_id=txn_id, high_priority=high)


def _start_tls(txn_id: int, high: bool, _request: pb.StartTLSRequest) -> StartTls:
    return StartTls(txn_id=txn_id, high_priority=high)


_DECODERS: dict[int, tuple[str, Callable[[int, bool, Any], AnyRequest]]] = {
    pb.ADD_ENTRY: ("addRequest", _add),
    pb.READ_ENTRY: ("readRequest", _read),
    pb.READ_LAC: ("readLacRequest", _read_lac),
    pb.WRITE_LAC: ("writeLacRequest", _write_lac),
    pb.FORCE_LEDGER: ("forceLedgerRequest", _force),
    pb.GET_BOOKIE_INFO: ("getBookieInfoRequest", _info),
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: ("getListOfEntriesOfLedgerRequest", _list),
    pb.AUTH: ("authRequest", _auth),
    pb.START_TLS: ("startTLSRequest", _start_tls),
}
