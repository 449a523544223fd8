"""Slices: long work on the event loop in short pieces, so that clients are served in between.

    for topic in topics:
        describe(topic)         # Some microseconds of work.
            await slices.turn()     # Returns at once while there is time left, otherwise in a later turn of the loop.

Order:     tasks that wait are served in the order in which they came, one in a turn. State that was read before a
           `turn` may have changed after it.
Limits:    all work that shares one `Slices` gets `BUDGET_S` of a turn of the loop together. A slice also ends after
           `STEPS_MAX` steps. That bounds what a clock with coarse ticks does not see, and makes a simulated run, whose
           clock stands still within a turn, give way at the same points every time.
Threads:   a loop that always has work takes the interpreter's lock back within microseconds, and a thread that waits
           for it, such as a journal's, can lose that race until the whole work is done. So the lock is given away once
           after each slice.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

BUDGET_S: Final = 0.001  # A publish takes about ten turns of the loop, each of which may have a slice: 10 ms together.
STEPS_MAX: Final = 500

T = TypeVar("T")
R = TypeVar("R")


class Slices:
    """Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """The clock is that of the loop, if none is given."""
        self.clock = clock
        self._ends_s: float | None = None
        """The end of this turn's slice; None: the turn has had none yet."""
        self._steps = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_following = False

    async def turn(self) -> None:
        """Ends a step of the work, or a few short ones; waits for a later turn if the slice is used up."""
        loop = asyncio.get_running_loop()
        now = self._now(loop)
        self._steps += 1
        if self._ends_s is None and not self._waiting:
            self._begin(now, loop)
            return
        if self._ends_s is not None and now < self._ends_s and self._steps < STEPS_MAX:
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        self._follow_turns(loop)
        await waiter
        self._begin(self._now(loop), loop)

    async def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Returns the results of a function that takes some microseconds."""
        found = []
        for item in items:
            found.append(function(item))
            await self.turn()
        return found

    def _now(self, loop: asyncio.AbstractEventLoop) -> float:
        return loop.time() if self.clock is None else self.clock()

    def _begin(self, now: float, loop: asyncio.AbstractEventLoop) -> None:
        self._ends_s = now + BUDGET_S
        self._steps = 0
        self._follow_turns(loop)

    def _follow_turns(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_following:
            self._is_following = True
            loop.call_soon(self._on_turn, loop)

    def _on_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs once in every turn of the loop, as long as there is a slice or a waiter."""
        had_slice, self._ends_s = self._ends_s is not None, None
        self._is_following = False
        if had_slice:
            time.sleep(0)  # Lets another thread run.
        if had_slice or self._waiting:
            self._follow_turns(loop)  # Before the waiter is woken: it then runs after the turn has begun.
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # Otherwise its work was cancelled.
                waiter.set_result(None)
                return
