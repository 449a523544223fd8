"""Requests and responses of protocol v3, in protobuf: a header that names the operation, and the one message of it.

Format:    a response has also a code, which the operation's message repeats. A client takes the inner code only if the
           outer one is EOK: some failures have no content.
Failure:   a frame that does not parse, or lacks a required field, is not of v3: that distinguishes the versions. One
           that parses and cannot be served is a `Refusal`: version other than 3 (EBADVERSION), an operation that has a
           number but no server (EBADREQ: range read, range add, batch read), or no message for the operation
           (EBADREQ).
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, cast

from google.protobuf.message import DecodeError

from magnetar.errors import LocalProtocolError, RemoteProtocolError
from magnetar.wire.bookkeeper.codes import Code, code_of_status
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX, framed
from magnetar.wire.bookkeeper.messages import (
    DEFERRED_SYNC,
    V3,
    AddEntry,
    AddResponse,
    AnyRequest,
    AnyResponse,
    Auth,
    AuthResponse,
    BareResponse,
    BatchRead,
    BatchReadResponse,
    ForceLedger,
    ForceLedgerResponse,
    GetBookieInfo,
    GetBookieInfoResponse,
    ListEntries,
    ListEntriesResponse,
    ReadEntry,
    ReadLac,
    ReadLacResponse,
    ReadResponse,
    Refusal,
    StartTls,
    StartTlsResponse,
    WriteLac,
    WriteLacResponse,
    answer_to,
    problem_with,
)
from magnetar.wire.bookkeeper.proto import bookkeeper_protocol_pb2 as pb

_HIGH_PRIORITY = 100  # Any number above 0 means the same; this is the one that Apache's client sends.
_STATUSES = {code: cast("pb.StatusCode", pb.StatusCode.Value(code.name)) for code in Code}


class _Operation(NamedTuple):
    request: type[Any]
    request_field: str
    response: type[Any]
    response_field: str


_OPERATIONS: dict[int, _Operation] = {
    pb.ADD_ENTRY: _Operation(AddEntry, "addRequest", AddResponse, "addResponse"),
    pb.READ_ENTRY: _Operation(ReadEntry, "readRequest", ReadResponse, "readResponse"),
    pb.READ_LAC: _Operation(ReadLac, "readLacRequest", ReadLacResponse, "readLacResponse"),
    pb.WRITE_LAC: _Operation(WriteLac, "writeLacRequest", WriteLacResponse, "writeLacResponse"),
    pb.FORCE_LEDGER: _Operation(ForceLedger, "forceLedgerRequest", ForceLedgerResponse, "forceLedgerResponse"),
    pb.GET_BOOKIE_INFO: _Operation(
        GetBookieInfo, "getBookieInfoRequest", GetBookieInfoResponse, "getBookieInfoResponse"
    ),
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: _Operation(
        ListEntries, "getListOfEntriesOfLedgerRequest", ListEntriesResponse, "getListOfEntriesOfLedgerResponse"
    ),
    pb.AUTH: _Operation(Auth, "authRequest", AuthResponse, "authResponse"),
    pb.START_TLS: _Operation(StartTls, "startTLSRequest", StartTlsResponse, "startTLSResponse"),
}
_NUMBERS = {kind: number for number, row in _OPERATIONS.items() for kind in (row.request, row.response)}
_NAMES = {
    "ledger_id": "ledgerId",
    "entry_id": "entryId",
    "master_key": "masterKey",
    "body": "body",
    "previous_lac": "previousLAC",
    "timeout_ms": "timeOut",
    "lac": "lac",
    "requested": "requested",
    "plugin": "authPluginName",
    "payload": "payload",
    "max_lac": "maxLAC",
    "lac_updated_ms": "lacUpdateTimestamp",
    "lac_body": "lacBody",
    "last_entry_body": "lastEntryBody",
    "total_disk_bytes": "totalDiskCapacity",
    "free_disk_bytes": "freeDiskSpace",
    "availability": "availabilityOfEntriesOfLedger",
}
_FIELDS = {
    kind: [(field.name, _NAMES[field.name]) for field in dataclasses.fields(kind) if field.name in _NAMES]
    for kind in _NUMBERS
}
"""The fields that a request or a response has in common with its message in protobuf, with both names."""


def _fill(inner: Any, value: AnyRequest | AnyResponse) -> None:
    inner.SetInParent()
    for name, field in _FIELDS[type(value)]:
        content = getattr(value, name)
        if content is not None:
            setattr(inner, field, bytes(content) if type(content) is memoryview else content)


def _content(kind: type[Any], inner: Any) -> dict[str, Any]:
    content = {name: getattr(inner, field) for name, field in _FIELDS[kind] if inner.HasField(field)}
    if not isinstance(content.get("plugin", ""), str):  # Some protobuf libraries give bytes if it is not UTF-8.
        raise RemoteProtocolError("an auth message whose plugin name is not text")
    return content


# --- requests ---------------------------------------------------------------------------------------------------------


def encode_request(request: AnyRequest, limit: int = FRAME_BYTES_MAX) -> bytes:
    """Encodes the whole frame."""
    if isinstance(request, BatchRead):
        raise LocalProtocolError("protocol v3 has no batch read: use v2 for it")
    number = _NUMBERS[type(request)]
    message = pb.Request()
    message.header.version = pb.VERSION_THREE
    message.header.operation = cast("pb.OperationType", number)
    message.header.txnId = request.txn_id
    if request.high_priority:
        message.header.priority = _HIGH_PRIORITY
    inner = getattr(message, _OPERATIONS[number].request_field)
    _fill(inner, request)
    if isinstance(request, AddEntry):
        if request.recovery:
            inner.flag = pb.AddRequest.RECOVERY_ADD
        if request.deferred_sync:
            inner.writeFlags = DEFERRED_SYNC
    elif isinstance(request, ReadEntry):
        _flag_read(inner, request)
    return framed(message.SerializeToString(), limit)


def _flag_read(read: pb.ReadRequest, request: ReadEntry) -> None:
    if request.fence and (request.previous_lac is not None or request.master_key is None):
        raise LocalProtocolError("a fencing read needs the ledger's master key and cannot be a long poll")
    if request.previous_lac is None and (request.piggyback or request.timeout_ms is not None):
        raise LocalProtocolError("a long poll needs the LAC that the reader knows already")
    if request.fence:
        read.flag = pb.ReadRequest.FENCE_LEDGER
    elif request.piggyback:
        read.flag = pb.ReadRequest.ENTRY_PIGGYBACK


def decode_request(body: memoryview) -> AnyRequest | Refusal | None:
    """Decodes one frame, without its length; None if it is not of this version."""
    message = pb.Request()
    try:
        message.ParseFromString(bytes(body))
    except (DecodeError, UnicodeDecodeError):
        return None
    if not message.IsInitialized():  # An operation of an unknown number counts as missing.
        return None
    header = message.header
    operation = _OPERATIONS.get(header.operation)
    if operation is None:
        return _bare_refusal(header, "no server has this operation")
    if not message.HasField(operation.request_field):
        return _bare_refusal(header, f"the request has no {operation.request_field}")
    inner = getattr(message, operation.request_field)
    try:
        content = _content(operation.request, inner) | _flags(inner)
    except RemoteProtocolError as error:
        return _bare_refusal(header, str(error))
    request: AnyRequest = operation.request(**content, txn_id=header.txnId, high_priority=header.priority > 0)
    if header.version != V3 and not isinstance(request, Auth | StartTls):
        return _refused(request, Code.EBADVERSION, f"protobuf is for protocol version 3, not {int(header.version)}")
    problem = problem_with(request)
    return request if problem is None else _refused(request, *problem)


def _flags(inner: Any) -> dict[str, Any]:
    """Returns what has another form in protobuf, or other values if it is missing."""
    match inner:
        case pb.AddRequest():
            is_recovery = inner.HasField("flag") and inner.flag == pb.AddRequest.RECOVERY_ADD
            return {"recovery": is_recovery, "deferred_sync": bool(inner.writeFlags & DEFERRED_SYNC)}
        case pb.ReadRequest():
            flag = inner.flag if inner.HasField("flag") else None
            fence = flag == pb.ReadRequest.FENCE_LEDGER
            polls = inner.HasField("previousLAC") and not fence
            return {
                "fence": fence,
                "previous_lac": inner.previousLAC if polls else None,
                "timeout_ms": max(0, inner.timeOut) if polls and inner.HasField("timeOut") else None,
                # Without a LAC to compare with, it is a plain read.
                "piggyback": polls and flag == pb.ReadRequest.ENTRY_PIGGYBACK,
            }
        case pb.GetBookieInfoRequest():
            return {"requested": inner.requested}
        case _:
            return {}


def _bare_refusal(header: pb.BKPacketHeader, reason: str) -> Refusal:
    answer = BareResponse(Code.EBADREQ, int(header.operation), txn_id=header.txnId)
    return Refusal(Code.EBADREQ, f"operation {int(header.operation)}: {reason}", encode_response(answer))


def _refused(request: AnyRequest, code: Code, reason: str) -> Refusal:
    return Refusal(code, reason, encode_response(answer_to(request, code)))


# --- responses --------------------------------------------------------------------------------------------------------


def encode_response(response: AnyResponse, limit: int = FRAME_BYTES_MAX) -> bytes:
    """Encodes the whole frame."""
    if isinstance(response, BatchReadResponse):
        raise LocalProtocolError("protocol v3 has no batch read")
    message = pb.Response()
    header = message.header
    header.version = pb.VERSION_THREE
    number = response.operation if isinstance(response, BareResponse) else _NUMBERS[type(response)]
    header.operation = cast("pb.OperationType", number)
    header.txnId = response.txn_id
    message.status = _STATUSES[response.code]
    if isinstance(response, BareResponse) or (isinstance(response, StartTlsResponse) and response.code is not Code.EOK):
        return framed(message.SerializeToString(), limit)  # This failure has nothing but its code.
    inner = getattr(message, _OPERATIONS[number].response_field)
    _fill(inner, response)
    if not isinstance(response, AuthResponse | StartTlsResponse):
        inner.status = message.status
    if isinstance(response, ReadResponse) and not response.body:
        inner.ClearField("body")
    return framed(message.SerializeToString(), limit)


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
    number, txn_id = message.header.operation, message.header.txnId
    code = code_of_status(message.status)
    operation = _OPERATIONS.get(number)
    if operation is None or not message.HasField(operation.response_field):
        if code is Code.EOK:
            raise RemoteProtocolError(f"a response to operation {number} says EOK and has no content")
        if number == pb.START_TLS:  # Its refusal never has content.
            return StartTlsResponse(code, txn_id=txn_id)
        return BareResponse(code, int(number), txn_id=txn_id)
    inner = getattr(message, operation.response_field)
    if code is Code.EOK and hasattr(inner, "status"):
        code = code_of_status(inner.status)
    response: AnyResponse = operation.response(code, **_content(operation.response, inner), txn_id=txn_id)
    return response


# --- authentication, in both protocols --------------------------------------------------------------------------------


def encode_auth_message(message: Auth | AuthResponse) -> bytes:
    inner = pb.AuthMessage()
    _fill(inner, message)
    return inner.SerializeToString()


def decode_auth_message(data: memoryview) -> tuple[str, bytes]:
    """Returns the plugin's name, and its data."""
    message = pb.AuthMessage()
    try:
        message.ParseFromString(bytes(data))
    except (DecodeError, UnicodeDecodeError):
        raise RemoteProtocolError("an invalid auth message") from None
    if not message.IsInitialized():
        raise RemoteProtocolError("an auth message without plugin name or payload")
    content = _content(Auth, message)
    return content["plugin"], content["payload"]
