"""The first word of a v2 frame: version u8 | operation u8 | flags u16. In version 0 the whole word is the operation.

Versions 0 to 2 share every format but for the master key of a fencing read, which only version 2 has.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

VERSION_MAX = 2
"""The compact protocol's newest version, which is what clients send; "v2" in this folder means 0 to 2."""
MASTER_KEY_BYTES = 20
LAST_ENTRY = -1
"""As an entry id in a read: the last entry held here, whose LAC is what the reader is after."""

WORD = struct.Struct(">I")
IDS = struct.Struct(">qq")


class Operation(enum.IntEnum):
    """BookKeeper also numbers READ_LAC 4, WRITE_LAC 5 and GET_BOOKIE_INFO 6; no server decodes them."""

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
