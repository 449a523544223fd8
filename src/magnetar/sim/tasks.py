"""What the simulated loop hands out: handles, futures and tasks that hash alike in every run.

Why:       asyncio keeps tasks and futures in sets (`wait`, `TaskGroup`, `all_tasks`). Hashed by address, these would be
           walked in another order in every run; hashed by birth number, in the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

from magnetar.sim.process import PROCESS, Process

if TYPE_CHECKING:
    from magnetar.sim.loop import SimLoop


class SimHandle(asyncio.TimerHandle):
    """For now and for later. Its own constructor: the inherited one does more than half a step costs."""

    __slots__ = ("args", "birth", "callback", "context", "in_heap", "local_when", "process", "sim_loop")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context,
        process: Process,
        birth: int,
        loop: SimLoop,
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.process = process
        self.birth = birth
        self.sim_loop = loop
        self.local_when = 0.0
        self.in_heap = False
        self._cancelled = False

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self.callback = None
            self.args = ()
            if self.in_heap:
                self.sim_loop.on_timer_cancelled()

    def when(self) -> float:
        return self.local_when

    def __hash__(self) -> int:
        return self.birth

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<handle {self.birth} of {self.process.name}: {name_of(self.callback)}>"


class SimFuture(asyncio.Future[Any]):
    birth = 0
    process: Process | None = None
    """Who made it, and would look at its error."""

    def __hash__(self) -> int:
        return self.birth


class SimTask(asyncio.Task[Any]):
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
    """For people: which task goes on, or what is called."""
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
