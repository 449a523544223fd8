"""Requests and responses of protocol v2, the compact form.

Format:    length u32 | word u32 | rest; the word is frames.py's.
           add: master_key 20 bytes | entry, which begins with ledger_id i64, entry_id i64, LAC i64
           read: ledger_id i64 | entry_id i64 | master_key if it fences and the version is 2
           batch read: ledger_id i64 | entry_id i64 | request_id i64 | entries_max i32 | bytes_max i64 | master_key as
           above
           Further bytes are ignored, as in Apache's server: its client appends the key to some plain reads.
           response: length u32 | word u32 (flags 0) | code i32 | ledger_id i64 | entry_id i64 | rest
           rest of an add: nothing; of a read: the entry, nothing if it failed; of a batch read: request_id i64, then
           for each entry its length u32 and itself.
           auth, in both directions: length u32 | word u32 | AuthMessage (protobuf). The response has no code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from magnetar.errors import LocalProtocolError, RemoteProtocolError
from magnetar.wire.bookkeeper.codes import Code, code_of_number
from magnetar.wire.bookkeeper.frames import (
    FRAME_BYTES_MAX,
    IDS,
    MASTER_KEY_BYTES,
    PREFIX,
    VERSION_MAX,
    WORD,
    Buffer,
    Flag,
    Operation,
    PacketHeader,
    check_outgoing,
    framed,
)
from magnetar.wire.bookkeeper.messages import (
    AddEntry,
    AddResponse,
    AnyRequest,
    AnyResponse,
    Auth,
    AuthResponse,
    BatchRead,
    BatchReadResponse,
    ReadEntry,
    ReadResponse,
    Refusal,
    answer_to,
    problem_with,
)
from magnetar.wire.bookkeeper.v3 import decode_auth_message, encode_auth_message

HEADER = struct.Struct(">IIiqq")  # With the length prefix.
HEADER_BODY_BYTES: Final = HEADER.size - PREFIX.size
BATCH_HEADER = struct.Struct(">IIiqqq")  # As above. `BatchRead.bytes_max` is for this, and each entry with 4 more.
BATCH_ENTRY_HEAD_BYTES: Final = PREFIX.size
_BODY = struct.Struct(">iqq")
_REQUEST_ID = struct.Struct(">q")


def response_parts(response: AnyResponse, limit: int = FRAME_BYTES_MAX) -> list[Buffer]:
    """Returns one frame as buffers to be written one after the other; entries are not copied."""
    match response:
        case AddResponse():
            return [_header(response, Operation.ADD, 0, limit)]
        case ReadResponse(body=body):
            header = _header(response, Operation.READ, len(body), limit)
            return [header, body] if body else [header]
        case BatchReadResponse():
            return _batch_parts(response, limit)
        case AuthResponse():
            return [_auth_frame(response, limit)]
        case _:
            raise LocalProtocolError(f"protocol v2 has no {type(response).__name__}")


def _header(response: AddResponse | ReadResponse, operation: Operation, extra_bytes: int, limit: int) -> bytes:
    size = HEADER_BODY_BYTES + extra_bytes
    check_outgoing(size, limit)
    word = PacketHeader(response.version, operation, 0).word()
    return HEADER.pack(size, word, response.code, response.ledger_id, response.entry_id)


def _batch_parts(response: BatchReadResponse, limit: int) -> list[Buffer]:
    size = BATCH_HEADER.size - PREFIX.size + sum(map(len, response.bodies))
    size += BATCH_ENTRY_HEAD_BYTES * len(response.bodies)
    check_outgoing(size, limit)
    word = PacketHeader(response.version, Operation.BATCH_READ, 0).word()
    ids = (response.ledger_id, response.entry_id, response.request_id)
    parts: list[Buffer] = [BATCH_HEADER.pack(size, word, response.code, *ids)]
    for body in response.bodies:
        parts += (PREFIX.pack(len(body)), body)
    return parts


def _auth_frame(response: AuthResponse, limit: int) -> bytes:
    if response.code is not Code.EOK:
        raise LocalProtocolError("an auth response of protocol v2 cannot carry a failure: close the connection")
    message = encode_auth_message(response)
    size = WORD.size + len(message)
    check_outgoing(size, limit)
    return PREFIX.pack(size) + WORD.pack(PacketHeader(response.version, Operation.AUTH, 0).word()) + message


# --- decoding ---------------------------------------------------------------------------------------------------------


def decode_response(body: memoryview) -> AnyResponse:
    """Decodes one frame, without its length."""
    try:
        return _decoded(body)
    except struct.error:
        raise RemoteProtocolError(f"a response of {len(body)} bytes is cut short") from None


def _decoded(body: memoryview) -> AnyResponse:
    header = PacketHeader.of(WORD.unpack_from(body)[0])
    if not header.version_is_known:
        raise RemoteProtocolError(f"a response of protocol version {header.version} on a v2 connection")
    if header.operation == Operation.AUTH:
        return _decoded_auth(header, body[WORD.size :])
    number, ledger_id, entry_id = _BODY.unpack_from(body, WORD.size)
    rest = body[WORD.size + _BODY.size :]
    version = header.version
    match header.operation:
        case Operation.ADD:
            return AddResponse(code_of_number(number), ledger_id, entry_id, version=version)
        case Operation.READ:
            return ReadResponse(code_of_number(number), ledger_id, entry_id, bytes(rest), version=version)
        case Operation.BATCH_READ:
            (request_id,) = _REQUEST_ID.unpack_from(rest)
            bodies = _decoded_bodies(rest[_REQUEST_ID.size :])
            code = code_of_number(number)
            return BatchReadResponse(code, ledger_id, entry_id, request_id, bodies, version=version)
        case _:
            raise RemoteProtocolError(f"operation {header.operation} is unknown in protocol v2")


def _decoded_bodies(rest: memoryview) -> list[bytes]:
    bodies = []
    position, end = 0, len(rest)
    while position < end:
        (size,) = PREFIX.unpack_from(rest, position)
        position += PREFIX.size
        if size > end - position:
            raise RemoteProtocolError(f"an entry of {size} bytes in a batch that has {end - position} left")
        bodies.append(bytes(rest[position : position + size]))
        position += size
    return bodies


def _decoded_auth(header: PacketHeader, message: memoryview) -> AuthResponse:
    plugin, payload = decode_auth_message(message)
    return AuthResponse(Code.EOK, plugin, payload, version=header.version)


_BATCH = struct.Struct(">qqqiq")
_FENCING_VERSION_MIN = 2  # Older versions have no room for the key.


# --- encoding ---------------------------------------------------------------------------------------------------------


def encode_request(request: AnyRequest, limit: int = FRAME_BYTES_MAX) -> bytes:
    """Encodes the whole frame. Many adds are encoded by `hot_path.AddEncoder` instead."""
    match request:
        case AddEntry():
            if request.deferred_sync:
                raise LocalProtocolError("protocol v2 has no deferred sync: use v3 for this ledger")
            operation, rest = Operation.ADD, _key(request.master_key) + request.body
        case ReadEntry():
            if request.previous_lac is not None:
                raise LocalProtocolError("protocol v2 has no long poll: use v3 for it")
            operation, rest = Operation.READ, IDS.pack(request.ledger_id, request.entry_id) + _fencing_key(request)
        case BatchRead():
            fixed = _BATCH.pack(
                request.ledger_id, request.entry_id, request.request_id, request.entries_max, request.bytes_max
            )
            operation, rest = Operation.BATCH_READ, fixed + _fencing_key(request)
        case Auth():
            operation = Operation.AUTH
            rest = encode_auth_message(request)
        case _:
            raise LocalProtocolError(f"protocol v2 has no {type(request).__name__}: use v3 for it")
    return framed(WORD.pack(PacketHeader(request.version, operation, _flags(request)).word()) + rest, limit)


def _flags(request: AnyRequest) -> int:
    flags: int = Flag.HIGH_PRIORITY if request.high_priority else Flag.NONE
    if isinstance(request, ReadEntry | BatchRead) and request.fence:
        flags |= Flag.DO_FENCING
    if isinstance(request, AddEntry) and request.recovery:
        flags |= Flag.RECOVERY_ADD
    if flags and request.version == 0:
        raise LocalProtocolError("protocol version 0 has no flags: use version 2")
    return flags


def _fencing_key(request: ReadEntry | BatchRead) -> bytes:
    if not request.fence:
        return b""
    if request.master_key is None or request.version < _FENCING_VERSION_MIN:
        raise LocalProtocolError("a fencing read needs the ledger's master key and protocol version 2")
    return _key(request.master_key)


def _key(master_key: bytes) -> bytes:
    if len(master_key) != MASTER_KEY_BYTES:
        raise LocalProtocolError(f"a master key has {MASTER_KEY_BYTES} bytes, not {len(master_key)}")
    return master_key


# --- decoding ---------------------------------------------------------------------------------------------------------


def decode_request(body: memoryview) -> AnyRequest | Refusal:
    """Decodes one frame, without its length."""
    try:
        header = PacketHeader.of(WORD.unpack_from(body)[0])
        decode = _DECODERS.get(header.operation)
        if decode is None:
            raise RemoteProtocolError(f"operation {header.operation} is unknown in protocol v2")
        request = decode(header, body[WORD.size :])
    except struct.error:
        raise RemoteProtocolError(f"a request of {len(body)} bytes is cut short") from None
    if not header.version_is_known and not isinstance(request, Auth):
        return _refused(request, Code.EBADVERSION, f"protocol version {header.version} is newer than {VERSION_MAX}")
    problem = problem_with(request)
    return request if problem is None else _refused(request, *problem)


def _refused(request: AnyRequest, code: Code, reason: str) -> Refusal:
    return Refusal(code, reason, b"".join(response_parts(answer_to(request, code))))


def _add(header: PacketHeader, rest: memoryview) -> AddEntry:
    entry = rest[MASTER_KEY_BYTES:]
    ledger_id, entry_id = IDS.unpack_from(entry)
    return AddEntry(
        ledger_id,
        entry_id,
        bytes(rest[:MASTER_KEY_BYTES]),
        bytes(entry),
        recovery=bool(header.flags & Flag.RECOVERY_ADD),
        version=header.version,
        high_priority=bool(header.flags & Flag.HIGH_PRIORITY),
    )


def _read(header: PacketHeader, rest: memoryview) -> ReadEntry:
    ledger_id, entry_id = IDS.unpack_from(rest)
    return ReadEntry(
        ledger_id,
        entry_id,
        fence=bool(header.flags & Flag.DO_FENCING),
        master_key=_read_key(header, rest[IDS.size :]),
        version=header.version,
        high_priority=bool(header.flags & Flag.HIGH_PRIORITY),
    )


def _batch_read(header: PacketHeader, rest: memoryview) -> BatchRead:
    ledger_id, entry_id, request_id, entries_max, bytes_max = _BATCH.unpack_from(rest)
    return BatchRead(
        ledger_id,
        entry_id,
        request_id,
        entries_max,
        bytes_max,
        fence=bool(header.flags & Flag.DO_FENCING),
        master_key=_read_key(header, rest[_BATCH.size :]),
        version=header.version,
        high_priority=bool(header.flags & Flag.HIGH_PRIORITY),
    )


def _auth(header: PacketHeader, rest: memoryview) -> Auth:
    plugin, payload = decode_auth_message(rest)
    return Auth(plugin, payload, version=min(header.version, VERSION_MAX))  # It is answered whatever version it claims.


def _read_key(header: PacketHeader, rest: memoryview) -> bytes | None:
    if not header.flags & Flag.DO_FENCING or header.version < _FENCING_VERSION_MIN:
        return None
    if len(rest) < MASTER_KEY_BYTES:
        raise struct.error("the master key is cut short")
    return bytes(rest[:MASTER_KEY_BYTES])


_DECODERS: dict[int, Callable[[PacketHeader, memoryview], AnyRequest]] = {
    Operation.ADD: _add,
    Operation.READ: _read,
    Operation.BATCH_READ: _batch_read,
    Operation.AUTH: _auth,
}
