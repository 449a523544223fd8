"""Ledger flags: what a bookie must remember of a ledger besides its entries.

Invariant: a fence stays forever. A deleted ledger that was fenced leaves a tombstone: its flags with the time of the
           deletion, kept for `storage.tombstone_days`, so that a late writer is still refused.
Limits:    lengths are checked when flags are made, which fails one request; if a flush failed because of them, it would
           stop the bookie, and again after every start.
Format:    version u8 | bits u8 | deleted_at_ms u64 | master key length u8, bytes | explicit LAC length u16, bytes
           | crc32c u32 of the ledger id and the value, little-endian
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from magnetar.errors import IndexDamagedError
from magnetar.storage.index.extents import REMEDY

_VERSION: Final = 1
_FENCED: Final = 1
_LIMBO: Final = 2
_HAS_LAC: Final = 4
KEY_BYTES_MAX: Final = 2**8 - 1
EXPLICIT_LAC_BYTES_MAX: Final = 2**16 - 1
"""What the value has room for; clients are allowed far less."""
_KEY = struct.Struct(">Q")
_FIXED = struct.Struct("<BBQB")
_LAC_BYTES = struct.Struct("<H")
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFlags:
    master_key: bytes | None = None
    """None before the first write, such as for a ledger that was fenced before its first entry came."""
    fenced: bool = False
    limbo: bool = False
    """This node may have forgotten entries of the ledger: it must not answer "no such entry"."""
    explicit_lac: bytes | None = None
    """As the client sealed it."""
    deleted_at_ms: int | None = None
    """Set: a tombstone."""

    def __post_init__(self) -> None:
        assert len(self.master_key or b"") <= KEY_BYTES_MAX, "a master key that cannot be stored"
        assert len(self.explicit_lac or b"") <= EXPLICIT_LAC_BYTES_MAX, "an explicit LAC that cannot be stored"


NO_FLAGS: Final = LedgerFlags()


def encode_flags(ledger_id: int, flags: LedgerFlags) -> bytes:
    """Returns the value. It never fails."""
    bits = _FENCED * flags.fenced | _LIMBO * flags.limbo | _HAS_LAC * (flags.explicit_lac is not None)
    master_key = flags.master_key if flags.master_key is not None else b""
    explicit_lac = flags.explicit_lac if flags.explicit_lac is not None else b""
    body = (
        _FIXED.pack(_VERSION, bits, flags.deleted_at_ms or 0, len(master_key))
        + master_key
        + _LAC_BYTES.pack(len(explicit_lac))
        + explicit_lac
    )
    return body + _CHECKSUM.pack(crc32c(body, crc32c(_KEY.pack(ledger_id))))


def decode_flags(ledger_id: int, value: bytes) -> LedgerFlags:
    body, checksum = value[: -_CHECKSUM.size], value[-_CHECKSUM.size :]
    if _CHECKSUM.pack(crc32c(body, crc32c(_KEY.pack(ledger_id)))) != checksum:
        raise IndexDamagedError(f"location index: the flags of ledger {ledger_id} have a wrong checksum; {REMEDY}")
    try:
        return _decoded(ledger_id, body)
    except struct.error:
        raise IndexDamagedError(f"location index: the flags of ledger {ledger_id} are cut short; {REMEDY}") from None


def _decoded(ledger_id: int, body: bytes) -> LedgerFlags:
    version, bits, deleted_at_ms, key_bytes = _FIXED.unpack_from(body)
    if version != _VERSION:
        raise IndexDamagedError(
            f"location index: the flags of ledger {ledger_id} have version {version}, this program knows {_VERSION}: "
            "a newer one wrote them; start that one"
        )
    lac_at = _FIXED.size + key_bytes
    (lac_bytes,) = _LAC_BYTES.unpack_from(body, lac_at)
    explicit_lac = body[lac_at + _LAC_BYTES.size :]
    if lac_bytes != len(explicit_lac):
        raise IndexDamagedError(f"location index: the flags of ledger {ledger_id} have a wrong length; {REMEDY}")
    return LedgerFlags(
        master_key=body[_FIXED.size : lac_at] if key_bytes else None,
        fenced=bool(bits & _FENCED),
        limbo=bool(bits & _LIMBO),
        explicit_lac=explicit_lac if bits & _HAS_LAC else None,
        deleted_at_ms=deleted_at_ms or None,
    )
