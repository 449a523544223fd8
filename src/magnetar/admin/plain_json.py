"""JSON that a client sends: taken only if it can be stored, and sent on, as it is.

Python reads more than that: halves of surrogate pairs, which no encoding has; numbers that are none; and what is nested
so deeply that whoever goes through it fails. Refused once, here, no handler need think of it.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

DEPTH_MAX: Final = 100  # As deep as an Avro schema may be; nothing else that is sent comes near.


def read_json(text: bytes | str) -> Any:
    """ValueError says what is wrong with it."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    _check(found, 0)
    return found


def _check(value: Any, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise _too_deep()
    match value:
        case str():
            _check_text(value)
        case float() if not math.isfinite(value):
            raise ValueError(f"{value} is not a number that JSON has")
        case list():
            for each in value:
                _check(each, depth + 1)
        case dict():
            for name, each in value.items():
                _check_text(name)
                _check(each, depth + 1)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the half of a surrogate pair, {error.object[error.start]!a}, is not a character") from None


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {DEPTH_MAX} levels deep")
