"""Settings of Python's cycle collector: it rests while modules are imported, and runs seldom in a server.

Purpose:   imports make nearly a hundred thousand objects that all stay; to walk them repeatedly would be a quarter of
           the time until a server is ready. The objects of a request form few cycles and are mostly freed without the
           collector. Young ones are looked at less often than Python does by default, and those of the start never:
           each look stops everything else.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_YOUNG_MAX: Final = 10_000  # New objects between two looks: a few megabytes of garbage at most.
_YOUNG_LOOKS_MAX: Final = 20  # Looks at young objects before one at the older ones.
_OLDER_LOOKS_MAX: Final = 50


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
