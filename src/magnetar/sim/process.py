"""Process: one incarnation of a node, how code is known to belong to it, and what the loop hands out to that code.

- carried: in a ContextVar. Callbacks, timers, tasks and accepted connections copy the context of their maker, so that
  no code passes a node's name, and a crash knows what to stop.
- shared: an object of one process that another calls directly (a metadata store's watcher) would run as the other's
  code, and outlive the crash of its owner: `bound` hands the call over.
- clock: `rate` is how fast this process sees the loop's time pass; 1.01 gains a hundredth.
- hashes: asyncio keeps tasks and futures in sets (`wait`, `TaskGroup`, `all_tasks`). Hashed by address, these would be
  walked in another order in every run. The loop's handles, futures and tasks are hashed by birth number, so the order
  is the same in every run.

Read next: loop.py
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from magnetar.sim.loop import SimLoop


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
        self.abandoned: list[SimTask] = []  # What it was doing when it died, kept from garbage collection.
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
        while moment * self.rate < local:  # A timer that fires early would be set again, forever, for no time at all.
            moment = math.nextafter(moment, math.inf)
        return moment


def bound(callback: Callable[[Unpack[Args]], object]) -> Callable[[Unpack[Args]], None]:
    """The same callback, run by the process that asks now, in order; never, when that is dead."""
    context = copy_context()

    def hand_over(*args: *Args) -> None:
        asyncio.get_running_loop().call_soon(callback, *args, context=context)

    return hand_over


# --- what the loop hands out ------------------------------------------------------------------------------------------


class SimHandle(asyncio.TimerHandle):
    """A callback that is due. The loop makes one per event: it sets the fields itself, as a constructor costs more."""

    __slots__ = ("args", "birth", "callback", "context", "process")

    args: tuple[Any, ...]
    birth: int
    callback: Callable[..., object] | None
    context: Context
    process: Process

    def cancel(self) -> None:
        self._cancelled = True
        self.callback = None
        self.args = ()

    def when(self) -> float:
        return 0.0

    def __hash__(self) -> int:
        return self.birth

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<handle {self.birth} of {self.process.name}: {name_of(self.callback)}>"


class SimTimer(SimHandle):
    """A callback that is due later, by the clock of its process."""

    __slots__ = ("in_heap", "local_when", "sim_loop")

    in_heap: bool
    local_when: float
    sim_loop: SimLoop

    def cancel(self) -> None:
        if not self._cancelled:
            super().cancel()
            if self.in_heap:
                self.sim_loop.on_timer_cancelled()

    def when(self) -> float:
        return self.local_when


class SimFuture(asyncio.Future[Any]):
    __slots__ = ("birth", "process")

    birth: int
    process: Process
    """The one that made it, and would look at its error."""

    def __hash__(self) -> int:
        return self.birth


class SimTask(asyncio.Task[Any]):
    __slots__ = ("birth", "process")

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        birth: int,
        loop: SimLoop,
        name: str | None,
        context: Context | None,
        **options: Any,
    ) -> None:
        self.birth = birth  # First: the base class puts the task into a set.
        current = PROCESS.get(None) if context is None else context.get(PROCESS)
        self.process = current or loop.root
        super().__init__(coro, loop=loop, name=name or f"task {birth}", context=context, **options)

    def __hash__(self) -> int:
        return self.birth


def is_task_step(callback: Callable[..., object] | None) -> bool:
    return isinstance(getattr(callback, "__self__", None), asyncio.Task)


def name_of(callback: Callable[..., object] | None) -> str:
    """For people: which task continues, or what is called."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {owner.get_name()!r}"
    callback = getattr(callback, "func", callback)
    return str(getattr(callback, "__qualname__", None) or type(callback).__name__)


def waits_at(coroutine: object) -> str:
    """The lines at which a suspended coroutine stands, the innermost last."""
    places: list[str] = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        code = frame.f_code
        places.append(f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_qualname}")
        coroutine = getattr(coroutine, "cr_await", None)
    return " > ".join(places) or "an unknown place"
