"""SimOffload: a lane without a thread. Calls run inline, one after the other, and finish after a virtual delay.

- stage: a call is one or more stages; each takes its delay, and has its effect at a random moment of it. So a crash
  finds calls that had no effect yet, and calls that had it without the caller's knowledge.
- crash: `die` makes the lane inert: what was handed over never finishes, nothing runs any more, and every later call
  waits forever. Tasks of a dead process stand still; they are not cancelled, for their `finally` blocks would repair
  what a crash breaks. The lane keeps their futures, so that no collection of garbage ends them either. `release` lets
  them go when the test is over.
- process: its timers belong to the process that used it first, whichever process resumes it: a paused process has
  paused lanes.

Read next: magnetar/runtime/runtime.py for the promises
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, TypeVarTuple, Unpack

from magnetar.errors import ClosedError
from magnetar.runtime.runtime import Offload
from magnetar.runtime.system import LANE_CALLS_MAX
from magnetar.sim.seeds import NO_DELAY, Delay, seeded

T = TypeVar("T")
Args = TypeVarTuple("Args")

_Future: TypeAlias = asyncio.Future[Any]


class Stage:
    __slots__ = ("delay_s", "interrupt", "run")

    def __init__(
        self, run: Callable[[], Any], delay_s: Callable[[], float], interrupt: Callable[[], None] | None = None
    ) -> None:
        """`interrupt`: what a crash that comes before the effect leaves of it; nothing, if None."""
        self.run = run
        self.delay_s = delay_s
        self.interrupt = interrupt


class _Call:
    __slots__ = ("future", "result", "stages")

    def __init__(self, future: _Future, stages: Sequence[Stage]) -> None:
        self.future = future
        self.stages = deque(stages)
        self.result: Any = _NOTHING_YET
        """The result of the first stage."""


_NOTHING_YET: Final = object()


class SimOffload(Offload):
    def __init__(self, name: str, *, seed: str = "", delay: Delay = NO_DELAY) -> None:
        self._name = name
        self._seed = f"{seed}/{name}"
        self._draw: Callable[[], float] | None = None  # Most lanes of most processes are never used.
        self._delay = delay
        self._queue: deque[_Call] = deque()
        self._current: _Call | None = None
        self._ahead: Stage | None = None  # The stage of the current call whose effect is still to come.
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: Context | None = None
        self._ended: asyncio.Future[None] | None = None
        self._is_closed = False
        self._is_paused = False
        self._withheld: tuple[Callable[..., None], tuple[Any, ...]] | None = None
        self._is_dead = False
        self._is_released = False
        self._abandoned: list[_Future] = []

    async def __call__(self, function: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        stage = Stage(partial(function, *args), self._delay_s)
        future: asyncio.Future[T] = self.hand_over(stage)
        return await future

    def hand_over(self, *stages: Stage) -> asyncio.Future[Any]:
        """The stages run in order with no other call between them; the first that raises ends them.

        The future has the result of the first one.
        """
        if self._is_dead:
            return self._never()
        if self._is_closed:
            raise ClosedError(f"lane {self._name!r} is closed")
        assert len(self._queue) < LANE_CALLS_MAX, f"lane {self._name!r}: {len(self._queue)} calls wait"
        future: _Future = self._running_loop().create_future()
        self._queue.append(_Call(future, stages))
        if self._current is None:
            self._next_call()
        return future

    async def aclose(self) -> None:
        if self._is_dead:
            await self._never()
        self._is_closed = True
        if self._current is None:
            return
        if self._ended is None:
            self._ended = self._running_loop().create_future()
        await asyncio.shield(self._ended)

    # --- what the world does to it ---

    def pause(self) -> None:
        """Nothing has its effect and nothing finishes until `resume`: a stuck device or a stopped process."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        if self._withheld is not None:
            (callback, args), self._withheld = self._withheld, None
            self._later(0.0, callback, *args)

    def die(self) -> None:
        if self._is_dead:
            return
        self._is_dead = True
        if self._timer is not None:
            self._timer.cancel()
        if self._ahead is not None and self._ahead.interrupt is not None:
            self._ahead.interrupt()
        unfinished = [self._current, *self._queue] if self._current is not None else []
        self._abandoned.extend(call.future for call in unfinished)
        if self._ended is not None:
            self._abandoned.append(self._ended)
        self._current = self._ahead = self._withheld = None
        self._queue.clear()

    def release(self) -> None:
        """Ends the calls of a dead lane by cancelling them; later ones are refused as by a closed lane."""
        assert self._is_dead, f"lane {self._name!r} is alive"
        self._is_released = True
        for future in self._abandoned:
            future.cancel()
        self._abandoned.clear()

    # --- one call after the other ---

    def _next_call(self) -> None:
        self._current = self._queue.popleft() if self._queue else None
        if self._current is not None:
            self._begin_stage(self._current)
        elif self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _begin_stage(self, call: _Call) -> None:
        stage = self._ahead = call.stages.popleft()
        delay_s = stage.delay_s()
        before_s = delay_s * self._random() if delay_s else 0.0
        self._later(before_s, self._do_stage, call, stage, delay_s - before_s)

    def _do_stage(self, call: _Call, stage: Stage, after_s: float) -> None:
        self._ahead = None
        try:
            result = stage.run()
        except StopIteration as error:  # A future cannot carry it; neither can a coroutine.
            wrapped = RuntimeError("the function raised StopIteration")
            wrapped.__cause__ = error
            self._later(after_s, self._finish, call, wrapped)
            return
        except BaseException as error:
            self._later(after_s, self._finish, call, error)
            return
        if call.result is _NOTHING_YET:
            call.result = result
        if call.stages:
            self._later(after_s, self._begin_stage, call)
        else:
            self._later(after_s, self._finish, call, None)

    def _finish(self, call: _Call, error: BaseException | None) -> None:
        if not call.future.done():  # Else its caller was cancelled.
            if error is None:
                call.future.set_result(call.result)
            else:
                call.future.set_exception(error)
        self._next_call()

    def _later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(delay_s, self._on_timer, callback, args, context=self._context)

    def _on_timer(self, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._timer = None
        if self._is_paused:
            self._withheld = callback, args
        elif not self._is_dead:
            callback(*args)

    def _delay_s(self) -> float:
        delay = self._delay
        return delay.min_s + (delay.max_s - delay.min_s) * self._random() if delay.max_s else 0.0

    def _random(self) -> float:
        if self._draw is None:
            self._draw = seeded(self._seed).random
        return self._draw()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._context = copy_context()
        assert self._loop is loop, "a lane belongs to one event loop"
        return loop

    def _never(self) -> _Future:
        if self._is_released:
            raise ClosedError(f"lane {self._name!r} belonged to a process that crashed")
        future: _Future = asyncio.get_running_loop().create_future()
        self._abandoned.append(future)
        return future
