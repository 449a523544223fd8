"""The lines of a child's pipe, one at a time, with a limit on each wait.

Reads the descriptor itself: of two lines that came at once, a buffered file hands out one and keeps the other, and
`select` then waits for something that is here already.
"""

from __future__ import annotations

import os
import select
import time
from typing import IO, Final

_CHUNK_BYTES: Final = 65_536


class Lines:
    """Nobody else may read from the pipe."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._descriptor = pipe.fileno()
        self._unread = b""
        self._is_over = False

    def is_next_here(self) -> bool:
        """Whether `next` would not wait: there is a whole line, or nothing comes any more."""
        while not self._has_line and self._take(0):
            pass
        return self._has_line or self._is_over

    def next(self, timeout: float) -> str | None:
        """Without what ends it. None: no whole line came within so many seconds, or none comes any more."""
        deadline = time.monotonic() + timeout
        while not self._has_line:
            if not self._take(max(0.0, deadline - time.monotonic())):
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode().strip()

    @property
    def _has_line(self) -> bool:
        return b"\n" in self._unread

    def _take(self, timeout: float) -> bool:
        """Whether there was more."""
        if self._is_over or not select.select([self._descriptor], [], [], timeout)[0]:
            return False
        more = os.read(self._descriptor, _CHUNK_BYTES)
        self._unread += more
        self._is_over = not more
        return bool(more)
