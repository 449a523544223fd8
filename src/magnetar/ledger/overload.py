"""Overload: a bookie that answers "too many requests" is slow, not broken.

Why:       what overloads one bookie (a burst, a flush that takes long) mostly overloads all of them, and is over soon.
           To replace it at once is to send everything to another one that refuses too, and to write metadata meanwhile.
Rest:      what it refused is owed to it, and so is what comes meanwhile. After a pause all of that is sent again; the
           pauses grow until it takes entries. What others confirmed before it refused cannot be sent again.
Patience:  the writer waits for it as for any slow bookie. One that still refuses `slow_bookie_wait_ms` after it began
           to is taken for failed, and then another one is asked.
Read next: write_engine.py, seats.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from magnetar.ledger.pending_adds import PendingAdds
from magnetar.ledger.seats import Seat
from magnetar.runtime.backoff import Backoff

_PAUSE_FIRST_S: Final = 0.02
_PAUSE_LONGEST_S: Final = 0.5


class Overload:
    """Of one write engine, for all of its seats."""

    def __init__(self, pending: PendingAdds[Any], random: Random, on_rested: Callable[[Seat], None]) -> None:
        """`on_rested`: what the seat is owed is to be sent."""
        self._pending = pending
        self._random = random
        self._on_rested = on_rested
        self._loop = asyncio.get_running_loop()

    def on_refused(self, seat: Seat, entry_ids: Sequence[int]) -> None:
        """The bookie takes these later, perhaps."""
        pending = self._pending
        for entry_id in entry_ids:
            if pending.first_entry_id <= entry_id < pending.next_entry_id:  # Else: confirmed meanwhile by others.
                seat.owe(pending.frames(seat.position, entry_id, entry_id + 1), 1)
        seat.is_on_trial = True
        if seat.refusals is None or seat.refused_since is None:
            seat.refusals = Backoff(self._random, _PAUSE_FIRST_S, _PAUSE_LONGEST_S)
            seat.refused_since = self._loop.time()
        # Not when it was last noticed: between two refusals it may have nothing to do, and pass for quick.
        seat.slow_since = min(seat.refused_since, seat.slow_since or seat.refused_since)
        if seat.rest is None:
            seat.rest = self._loop.call_later(seat.refusals.next_s(), self._try_again, seat)

    def _try_again(self, seat: Seat) -> None:
        seat.rest = None
        self._on_rested(seat)
