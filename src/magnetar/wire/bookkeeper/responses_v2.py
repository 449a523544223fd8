"""Responses in the compact form.

Format:    length u32 | word u32 (flags 0) | code i32 | ledger_id i64 | entry_id i64 | rest
           rest of an add: nothing; of a read: the entry, nothing if it failed; of a batch read: request_id i64, then
           for each entry its length u32 and itself.
           auth: length u32 | word u32 | AuthMessage. It has no code.
"""

from __future__ import annotations

import struct
from typing import Final

from magnetar.errors import LocalProtocolError, RemoteProtocolError
from magnetar.wire.bookkeeper.auth_message import decode_auth_message, encode_auth_message
from magnetar.wire.bookkeeper.codes import Code, code_of_number
from magnetar.wire.bookkeeper.frames import (
    FRAME_BYTES_MAX,
    PREFIX,
    WORD,
    Buffer,
    Operation,
    PacketHeader,
    check_outgoing,
)
from magnetar.wire.bookkeeper.messages import (
    AddResponse,
    AnyResponse,
    AuthResponse,
    BatchReadResponse,
    ReadResponse,
)

HEADER = struct.Struct(">IIiqq")  # With the length prefix.
HEADER_BODY_BYTES: Final = HEADER.size - PREFIX.size
BATCH_HEADER = struct.Struct(
    ">IIiqqq"
)  # With the length prefix. `BatchRead.bytes_max` is for this, and for each entry 4 and itself.
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
            return [_auth(response, limit)]
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


def _auth(response: AuthResponse, limit: int) -> bytes:
    if response.code is not Code.EOK:
        raise LocalProtocolError("an auth response of protocol v2 cannot carry a failure: close the connection")
    message = encode_auth_message(response.plugin, response.payload)
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
