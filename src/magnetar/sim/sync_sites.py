"""SyncSites: from where durability was asked for, and which of these places are to be disobeyed.

Use:       run once and read `counts`: every place that calls `sync`, `append_and_sync` or `sync_dir`. Put one of them
           in `ignored` and run again: its syncs answer OK and do nothing. If no test fails, it was not needed or is not
           tested.
Site:      `storage/journal.py:120:Journal.commit`: the nearest caller that is not part of the seam.
"""

from __future__ import annotations

import sys
from typing import Final

_SEAM: Final = ("magnetar.runtime", "magnetar.sim")


class SyncSites:
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.ignored: set[str] = set()

    def here(self) -> str:
        """Notes the caller's place. To be called when the sync is asked for: a coroutine's caller is unknown later."""
        site = _call_site()
        self.counts[site] = self.counts.get(site, 0) + 1
        return site


def _call_site() -> str:
    frame = sys._getframe(1)
    while _is_seam(frame.f_globals.get("__name__", "")):
        assert frame.f_back is not None, "a sync has a caller"
        frame = frame.f_back
    _, package, inside = frame.f_code.co_filename.rpartition("/magnetar/")
    file = inside if package else frame.f_code.co_filename.rpartition("/")[2]
    return f"{file}:{frame.f_lineno}:{frame.f_code.co_qualname}"


def _is_seam(module: str) -> bool:
    return any(module == part or module.startswith(f"{part}.") for part in _SEAM)
