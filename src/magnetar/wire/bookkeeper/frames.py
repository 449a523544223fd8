"""Framing of both protocol versions: a length, then that many bytes.

Format:    length u32, big-endian, not counting itself | body
Invariant: a length beyond the limit is refused as soon as it is read, so a peer cannot make us wait for, or keep,
           more than one frame of the limit.
Regions:   functions take a buffer and the region `start` to `end` of it that holds received bytes; what they return
           are positions in the same buffer. What is left after the last whole frame is moved to the front, or the
           buffer grows to `frame_end`, by whoever owns the buffer.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from magnetar.errors import LocalProtocolError, RemoteProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

PREFIX = struct.Struct(">I")
PREFIX_BYTES = PREFIX.size
FRAME_BYTES_MAX = 5 * 2**20 + 10 * 2**10
"""Prefix included. What Pulsar's bookies are set to: its largest message of 5 MiB, and room for headers and digest.
BookKeeper's own default is 5 MiB flat."""
ENTRY_BYTES_MAX = FRAME_BYTES_MAX - 64
"""Of an entry as it is stored. 64 bytes are for what stands around it in the answer to any read, in either version and
with ids of any size: what was accepted can be sent back. The frame of an add would have room for a few bytes more."""
_BODY_BYTES_MIN = 4  # The first word of a v2 frame; no v3 message is that short.


def frame_end(buffer: Buffer, start: int, end: int, limit: int = FRAME_BYTES_MAX) -> int | None:
    """Where the frame at `start` ends, which may lie beyond `end`; None if not even its length is there yet."""
    if end - start < PREFIX_BYTES:
        return None
    (size,) = PREFIX.unpack_from(buffer, start)
    if size + PREFIX_BYTES > limit:
        raise RemoteProtocolError(f"a frame of {size + PREFIX_BYTES} bytes exceeds the limit of {limit}")
    if size < _BODY_BYTES_MIN:
        raise RemoteProtocolError(f"a frame of {size} bytes is too short for any message")
    return start + PREFIX_BYTES + int(size)


def framed(body: bytes, limit: int = FRAME_BYTES_MAX) -> bytes:
    check_outgoing(len(body), limit)
    return PREFIX.pack(len(body)) + body


def check_outgoing(body_bytes: int, limit: int = FRAME_BYTES_MAX) -> None:
    """The peer would close the connection on a longer one, and with it every request in flight."""
    if body_bytes + PREFIX_BYTES > limit:
        raise LocalProtocolError(f"a frame of {body_bytes + PREFIX_BYTES} bytes exceeds the limit of {limit}")
