"""Process: one incarnation of a node, and how code is known to belong to it.

Carried:   in a ContextVar. Callbacks, timers, tasks and accepted connections copy the context of whoever made them, so
           that no code passes a node's name, and a crash knows what to stop.
Shared:    an object of one process that another calls directly (a metadata store's watcher) would run as the other's
           code, and outlive the crash of its owner: `bound` hands the call over.
Clock:     `rate` is how fast this process sees the loop's time pass; 1.01 gains a hundredth.
Read next: loop.py
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Final, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from magnetar.sim.tasks import SimHandle, SimTask

Args = TypeVarTuple("Args")

PROCESS: Final[ContextVar[Process]] = ContextVar("simulated process")


class Process:
    """Made by the loop. `name` is the node's; the same node has another process after a restart."""

    __slots__ = ("abandoned", "context", "is_alive", "is_paused", "name", "number", "rate", "ready")

    def __init__(self, name: str, number: int, rate: float = 1.0) -> None:
        self.name = name
        self.number = number
        self.rate = rate
        self.is_alive = True
        self.is_paused = False
        self.ready: deque[SimHandle] = deque()
        self.abandoned: list[SimTask] = []  # What it was doing when it died. Nobody may collect that as garbage.
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        state = "dead" if not self.is_alive else "paused" if self.is_paused else "alive"
        return f"<process {self.number} of {self.name}, {state}>"

    def world_time(self, local: float) -> float:
        """The earliest moment at which this process's clock shows at least `local`."""
        if self.rate == 1.0:
            return local
        moment = local / self.rate
        while moment * self.rate < local:  # A timer that fires early would be set again, for ever, for no time at all.
            moment = math.nextafter(moment, math.inf)
        return moment


def bound(callback: Callable[[Unpack[Args]], object]) -> Callable[[Unpack[Args]], None]:
    """The same callback, run by the process that asks now, in order; never, when that is dead."""
    context = copy_context()

    def hand_over(*args: *Args) -> None:
        asyncio.get_running_loop().call_soon(callback, *args, context=context)

    return hand_over
