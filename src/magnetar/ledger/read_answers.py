"""Runs of v2 reads, to bytes; and runs of their answers, over one received region.

Shape:     as wire/bookkeeper/hot_path.py: one loop, parallel lists, no object per entry. A run ends at the first frame
           that is of another kind, incomplete or malformed; whoever asked hands that one to `decode_response`, which
           knows every case.
Frames:    wire/bookkeeper/requests_v2.py, responses_v2.py
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX, PREFIX_BYTES, Buffer
from magnetar.wire.bookkeeper.packet import VERSION_MAX, Operation, PacketHeader
from magnetar.wire.bookkeeper.responses_v2 import HEADER, HEADER_BODY_BYTES

_WORD: Final = PacketHeader(VERSION_MAX, Operation.READ, 0).word()  # In a plain read and in every answer.
_READ = struct.Struct(">IIqq")
_READ_SIZE: Final = _READ.size - PREFIX_BYTES


def encode_reads(ledger_id: int, entry_ids: Iterable[int]) -> bytes:
    """Plain reads, one frame behind the other."""
    pack = _READ.pack
    return b"".join([pack(_READ_SIZE, _WORD, ledger_id, entry_id) for entry_id in entry_ids])


class ReadResponseRun(NamedTuple):
    end: int
    keys: list[tuple[int, int]]
    """(ledger id, entry id)"""
    codes: list[int]
    """Numbers as received."""
    bodies: list[Buffer]


def scan_read_responses(buffer: bytearray, start: int, end: int, *, is_ours: bool) -> ReadResponseRun:
    """All answers to v2 reads from `start` on. Bodies are copies, or views of the buffer if it `is_ours`."""
    keys: list[tuple[int, int]] = []
    codes: list[int] = []
    bodies: list[Buffer] = []
    add_key, add_code, add_body = keys.append, codes.append, bodies.append
    unpack = HEADER.unpack_from
    header_bytes = HEADER.size
    view = memoryview(buffer)
    last = end - header_bytes
    at = start
    while at <= last:
        size, word, code, ledger_id, entry_id = unpack(buffer, at)
        following = at + PREFIX_BYTES + size
        if word != _WORD or following > end or size < HEADER_BODY_BYTES or following - at > FRAME_BYTES_MAX:
            break
        body = view[at + header_bytes : following]
        add_key((ledger_id, entry_id))
        add_code(code)
        add_body(body if is_ours else bytes(body))
        at = following
    return ReadResponseRun(at, keys, codes, bodies)
