"""Settings of Python's cycle collector: it rests while modules are imported, and runs seldom in a server.

Purpose:   imports make nearly a hundred thousand objects that all stay; to walk them repeatedly would be a quarter of
           the time until a server is ready. The objects of a request form few cycles and are mostly freed without the
           collector. Young ones are looked at less often than Python does by default, and those of the start never.
Limits:    each look stops everything else. An object that stays is looked at once while it is young and once when it is
           older, however many there are in one look: so a look has few.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_YOUNG_MAX: Final = 5_000  # New objects between two looks: a megabyte of garbage at most.
_YOUNG_LOOKS_MAX: Final = 4  # Looks at young objects before one at the older ones, which takes about 5 ms then.
_OLDER_LOOKS_MAX: Final = 500  # Looks at those before one at all objects.


@contextmanager
def importing() -> Iterator[None]:
    """Keeps all objects that are made inside forever."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def expect_long_life() -> None:
    """Keeps all objects that a server has made before it is ready."""
    gc.freeze()
    gc.set_threshold(_YOUNG_MAX, _YOUNG_LOOKS_MAX, _OLDER_LOOKS_MAX)
