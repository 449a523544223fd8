"""Patience of a recovery: pauses between tries, up to the time when another one could not be finished.

So whoever gives up knows why: it was asked, and what it was told is in the error.
"""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.ledger.parts import Parts
from magnetar.runtime.backoff import Backoff

_PAUSE_LONGEST_S: Final = 2.0  # Beside a recovery's patience, short; for a bookie that is asked in vain, long.


class Patience:
    __slots__ = ("_backoff", "_last_try", "_loop")

    def __init__(self, parts: Parts, until: float) -> None:
        """`until`: when it has to be done, in the loop's time."""
        self._backoff = Backoff(parts.entropy.random, longest_s=_PAUSE_LONGEST_S)
        self._last_try = until - parts.config.read_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()

    def next_s(self) -> float | None:
        """How long to wait before the next try; None: no time is left for one."""
        pause_s = self._backoff.next_s()
        return None if self._loop.time() + pause_s > self._last_try else pause_s
