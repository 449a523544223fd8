"""SyncSites: from where durability was asked for, and which of these places are to be disobeyed.

Use:       run once and read `counts`: every place that calls `sync`, `append_and_sync` or `sync_dir`. Put one of them
           in `ignored` and run again: its syncs answer OK and do nothing. If no test fails, it was not needed or is not
           tested.
Site:      `storage/journal/journal.py:120:Journal.commit`: the nearest caller that is not part of the seam.
"""

from __future__ import annotations

import sys
from functools import cache
from types import CodeType
from typing import Final

_SEAM: Final = ("magnetar.runtime", "magnetar.sim")


class SyncSites:
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.ignored: set[str] = set()

    def here(self) -> str:
        """Notes the caller's place. To be called when the sync is asked for: a coroutine's caller is unknown later."""
        frame = sys._getframe(1)
        while (code := frame.f_code) in _SEAM_CODES or _is_seam(code, frame.f_globals.get("__name__", "")):
            assert frame.f_back is not None, "a sync has a caller"
            frame = frame.f_back
        site = _named(code, frame.f_lineno)
        self.counts[site] = self.counts.get(site, 0) + 1
        return site


_SEAM_CODES: Final[dict[CodeType, None]] = {}


def _is_seam(code: CodeType, module: str) -> bool:
    is_one = any(module == part or module.startswith(f"{part}.") for part in _SEAM)
    if is_one:
        _SEAM_CODES[code] = None
    return is_one


@cache
def _named(code: CodeType, line: int) -> str:
    _, package, inside = code.co_filename.rpartition("/magnetar/")
    file = inside if package else code.co_filename.rpartition("/")[2]
    return f"{file}:{line}:{code.co_qualname}"
