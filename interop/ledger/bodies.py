"""The bytes of an entry, as interop/java/LedgerClient.java makes them: whoever reads can tell whether they are right.

They follow from ledger and entry id by Java's SplittableRandom, which is a counter and a mixing function.
"""

from __future__ import annotations

import struct
from typing import Final

_MASK: Final = 2**64 - 1
_STEP: Final = 0x9E3779B97F4A7C15


def body(ledger_id: int, entry_id: int, size: int) -> bytes:
    seed = (ledger_id * 1_000_003 + entry_id) & _MASK
    count = (size + 7) // 8
    words = [_mix((seed + n * _STEP) & _MASK) for n in range(1, count + 1)]
    return struct.pack(f"<{count}Q", *words)[:size]


def _mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31
