"""Value types that travel through every layer.

They are plain numbers and strings at run time (`NewType` costs nothing on the hot path); the type checker
keeps a ledger id from being passed where an entry id is meant.
"""

from __future__ import annotations

import re
from typing import NewType

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)

LEDGER_ID_MAX = 2**63 - 1

_BOOKIE_ID = re.compile(r"[A-Za-z0-9:.\-_]+")
_RESERVED_BOOKIE_ID = "readonly"  # A child of the registration node, so no bookie may have this name.


def ledger_id(value: int) -> LedgerId:
    """The checked way in for numbers from outside."""
    if not 0 <= value <= LEDGER_ID_MAX:
        raise ValueError(f"a ledger id is between 0 and {LEDGER_ID_MAX}, not {value}")
    return LedgerId(value)


def bookie_id(value: str) -> BookieId:
    """The checked way in for names that we give out, `host:port` being the usual form; BookKeeper reads a few more."""
    if not _BOOKIE_ID.fullmatch(value) or value.lower() == _RESERVED_BOOKIE_ID:
        raise ValueError(
            f"{value!r} is not a bookie id: use letters, digits, and : . - _ (and not the reserved name 'readonly')"
        )
    return BookieId(value)
