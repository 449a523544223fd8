"""Framing of both protocol versions: a length, then that many bytes; and the first word of a v2 frame.

Format:    length u32, big-endian, not counting itself | body
           A v2 body begins with version u8 | operation u8 | flags u16. In version 0 the whole word is the operation.
           Versions 0 to 2 share every format but for the master key of a fencing read, which only version 2 has.
Invariant: a length beyond the limit is refused as soon as it is read, so a peer cannot make us wait for, or keep,
           more than one frame of the limit.
Order:     functions take a buffer and the region `start` to `end` of it that holds received bytes; their results are
           positions in the same buffer. The owner of the buffer moves the rest after the last whole frame to the front,
           or lets the buffer grow to `frame_end`.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple, TypeAlias

from magnetar.errors import LocalProtocolError, RemoteProtocolError

VERSION_MAX = 2
"""The compact protocol's newest version, which is what clients send; "v2" in this folder means 0 to 2."""
MASTER_KEY_BYTES = 20
LAST_ENTRY = -1
"""As an entry id in a read: the last entry held here, whose LAC the reader wants."""

WORD = struct.Struct(">I")
IDS = struct.Struct(">qq")


class Operation(enum.IntEnum):
    """The operations. BookKeeper also numbers READ_LAC 4, WRITE_LAC 5 and GET_BOOKIE_INFO 6; no server decodes them."""

    ADD = 1
    READ = 2
    AUTH = 3
    BATCH_READ = 7


class Flag:
    """Plain numbers: `&` with an `enum.IntFlag` takes longer than the rest of decoding a read."""

    NONE: Final = 0
    DO_FENCING: Final = 1
    RECOVERY_ADD: Final = 2
    HIGH_PRIORITY: Final = 4
    ALL: Final = DO_FENCING | RECOVERY_ADD | HIGH_PRIORITY
    """The bits that have a meaning; clients may send others, which are ignored."""


class PacketHeader(NamedTuple):
    version: int
    operation: int
    flags: int

    @property
    def version_is_known(self) -> bool:
        return self.version <= VERSION_MAX

    def word(self) -> int:
        if self.version == 0:
            return self.operation
        return self.version << 24 | self.operation << 16 | self.flags

    @staticmethod
    def of(word: int) -> PacketHeader:
        version = word >> 24
        if version == 0:
            return PacketHeader(0, word & 0xFF, 0)
        return PacketHeader(version, word >> 16 & 0xFF, word & 0xFFFF)


Buffer: TypeAlias = bytes | bytearray | memoryview

PREFIX = struct.Struct(">I")
PREFIX_BYTES = PREFIX.size
FRAME_BYTES_MAX = 5 * 2**20 + 10 * 2**10
"""The limit of a frame, prefix included, as set on Pulsar's bookies: its largest message of 5 MiB, with room for
headers and digest. BookKeeper's own default is 5 MiB flat."""
ENTRY_BYTES_MAX = FRAME_BYTES_MAX - 64
"""The limit of an entry as it is stored. 64 bytes are for its surroundings in the answer to any read, in either version
and with ids of any size: an accepted entry can be sent back. The frame of an add would have room for a few more."""
_BODY_BYTES_MIN = 4  # The first word of a v2 frame; no v3 message is that short.


def frame_end(buffer: Buffer, start: int, end: int, limit: int = FRAME_BYTES_MAX) -> int | None:
    """Returns the end of the frame at `start`, which may lie beyond `end`; None if not even its length has arrived."""
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
    """Refuses a longer frame: the peer would close the connection, and with it every request in flight."""
    if body_bytes + PREFIX_BYTES > limit:
        raise LocalProtocolError(f"a frame of {body_bytes + PREFIX_BYTES} bytes exceeds the limit of {limit}")
