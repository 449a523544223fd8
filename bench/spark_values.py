"""What the Spark rows write and read: a number of fixed width, then characters that are the same in every value."""

from __future__ import annotations

import base64
import random
from typing import Final

DIGITS: Final = 16
_SEED: Final = 20_261_116


def filler(size: int) -> bytes:
    """What follows the number in a value of this size; the same in every process."""
    wanted = size - DIGITS
    if wanted < 0:
        raise ValueError(f"a value has at least {DIGITS} bytes, not {size}")
    return base64.b64encode(random.Random(_SEED).randbytes(wanted))[:wanted]


def value_of(number: int, size: int) -> bytes:
    return b"%0*d" % (DIGITS, number) + filler(size)
