"""When Python's cycle collector works: not while modules are imported, and in a server seldom.

Importing: makes nearly a hundred thousand objects that all stay; walking them again and again would be a quarter of the
           time until a server is ready.
Serving:   the objects of a request form few cycles and mostly go by themselves. Young ones are looked at less often
           than Python does by default, and what was there at the start never: each look stops everything else.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_YOUNG_MAX: Final = 10_000  # New objects between two looks: a few megabytes of garbage at most.
_YOUNG_LOOKS_MAX: Final = 20  # Before those that are left are looked at again.
_OLDER_LOOKS_MAX: Final = 50


@contextmanager
def importing() -> Iterator[None]:
    """What is made inside stays for good."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def expect_long_life() -> None:
    """For a server that is ready: what it has made so far stays."""
    gc.freeze()
    gc.set_threshold(_YOUNG_MAX, _YOUNG_LOOKS_MAX, _OLDER_LOOKS_MAX)
