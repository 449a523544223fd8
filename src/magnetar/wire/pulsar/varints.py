"""Protobuf's variable-length integers: seven bits per byte, lowest first, the top bit says that more follow.

Two tables of 14 bits each (1.5 MB, made in a few milliseconds) make most values one look-up, and any other a few.
"""

from __future__ import annotations

_U64 = 2**64 - 1
_LAST = [bytes((value,)) for value in range(0x80)]
_MORE = [bytes((value | 0x80,)) for value in range(0x80)]
LAST_DIGITS = _LAST + [_MORE[low] + _LAST[high] for high in range(1, 0x80) for low in range(0x80)]
LOWER_DIGITS = [_MORE[low] + _MORE[high] for high in range(0x80) for low in range(0x80)]
"""Digits of 14 bits: two bytes that say that more follow. `LAST_DIGITS` say that none do, in one byte if possible."""


def varint(value: int) -> bytes:
    """Encodes an unsigned value below 2^64; a negative one as in int64 and int32 fields, in ten bytes."""
    if 0 <= value < 0x4000:
        return LAST_DIGITS[value]
    if 0 <= value < 0x1000_0000:
        return LOWER_DIGITS[value & 0x3FFF] + LAST_DIGITS[value >> 14]
    return _long_varint(value & _U64)


def _long_varint(value: int) -> bytes:
    out = b""
    while value >= 0x4000:
        out += LOWER_DIGITS[value & 0x3FFF]
        value >>= 14
    return out + LAST_DIGITS[value]
