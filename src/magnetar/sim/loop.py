"""SimLoop: an event loop of one thread, virtual time, and many processes, in an order that follows from a seed.

- time: stands still while any process can run, then jumps to the next timer. Many steps without a pause take a little
  time anyway, as they do on any computer: a process that spins does not stop the clock.
- crash: the process is marked dead, and nothing of it ever runs again. Its tasks are kept, not cancelled and not
  collected: their `finally` blocks would repair what a crash breaks.
- end: when the world is over, all tasks that are left are closed, as keeping them would keep every seed in memory.
  Their `finally` blocks meet a loop that accepts everything and does nothing, disks and sockets that are inert, and no
  listeners: no log, no warning.
- missing: whatever asyncio's interface has beyond this raises NotImplementedError: threads, signals, real sockets.

Order:     each step picks a process at random, then takes the first callback of its queue, as real asyncio would.
           `shuffle` is the probability that a task's step lets the next callback of its process go first.
Failure:   what a callback raises, and whatever reaches the exception handler, fails the run at once; so do an endless
           run and one in which nothing is left to do.
Read next: process.py, network.py, world.py; docs/simulation.md
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import struct
import sys
import warnings
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zlib import crc32

from magnetar.sim.process import (
    PROCESS,
    Process,
    SimFuture,
    SimHandle,
    SimTask,
    SimTimer,
    is_task_step,
    name_of,
    waits_at,
)
from magnetar.sim.seeds import seeded

if TYPE_CHECKING:
    from magnetar.sim.network import SimNetwork


_pack_time = struct.Struct("<d").pack
_BUFFER_MAX: Final = 16 * 1024


class Digest:
    """One number that says whether two runs were the same run.

    It covers what was chosen at each step (by birth number), every jump of the clock, every chunk that arrived, and
    what the world noted. `buffer` holds what the sum does not cover yet. The loop appends a byte per step itself: a
    call costs more.
    """

    def __init__(self) -> None:
        self.buffer = bytearray()
        self._crc = 0

    @property
    def value(self) -> int:
        self._sum_up()
        return self._crc

    def add(self, data: bytes) -> None:
        buffer = self.buffer
        buffer += data
        if len(buffer) > _BUFFER_MAX:
            self._sum_up()

    def add_time(self, now: float) -> None:
        self.add(_pack_time(now))

    def _sum_up(self) -> None:
        self._crc = crc32(self.buffer, self._crc)
        self.buffer.clear()


T = TypeVar("T")

EVENTS_MAX: Final = 5_000_000  # A minute of computing: no seed is that long, so it goes round in circles.
_BURST_MAX: Final = 1_000  # This many steps without a pause …
_BURST_S: Final = 0.01  # … take this many seconds.
_CANCELLED_MIN: Final = 100  # Fewer cancelled timers are not worth sorting out.
_CLOSE_TRIES_MAX: Final = 50  # Each gets past one `await` inside a `finally`; what still waits then is left as it is.
_ROUNDS_MAX: Final = 10  # Closing one may make another task.


class SimulationError(Exception):
    """The run has failed; the seed repeats it."""


class SimLoop(asyncio.AbstractEventLoop):
    """Made by `new_sim_loop`; ended by `close`."""

    def __init__(
        self,
        seed: str = "0",
        *,
        shuffle: float = 0.0,
        events_max: int = EVENTS_MAX,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.now = 0.0
        self.events = 0
        self.digest = Digest()
        self.network: SimNetwork | None = None
        self._shuffle = shuffle
        self._events_max = events_max
        self._trace = trace
        self._random = seeded(f"{seed}/schedule").random
        self._births = 0
        self._runnable: list[Process] = []
        self._timers: list[tuple[float, int, SimTimer]] = []  # A heap.
        self._cancelled_timers = 0
        self._processes: list[Process] = []
        self._dropped: list[SimHandle] = []  # Timers of the dead. They hold what may not be collected.
        self._generators: weakref.WeakValueDictionary[int, AsyncGenerator[Any, Any]] = weakref.WeakValueDictionary()
        self._failure: SimulationError | None = None
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._debug = False
        self._is_running = False
        self._is_over = False
        self._is_closed = False
        self._late_tasks: list[SimTask] = []  # Made after the end, by `finally` blocks.
        self.root = self.add_process("world")

    # --- processes ----------------------------------------------------------------------------------------------------

    def add_process(self, name: str, *, rate: float = 1.0) -> Process:
        process = Process(name, len(self._processes), rate)
        self._processes.append(process)
        return process

    def current(self) -> Process:
        return PROCESS.get(self.root)

    def crash(self, process: Process) -> None:
        """It stops where it stands. What it has outside this loop (sockets, disks) is the caller's to stop."""
        assert process is not self.root, "the world itself does not crash"
        assert process is not self.current(), "a process is crashed by another one, between two of its steps"
        if not process.is_alive:
            return
        self.note(f"{process.name} dies")
        if process in self._runnable:
            self._runnable.remove(process)
        process.is_alive = False
        process.abandoned = [task for task in self._pending_tasks() if task.process is process]
        for task in process.abandoned:
            asyncio._unregister_task(task)  # `all_tasks`, and so code that cancels them, does not meet it any more.

    def pause(self, process: Process) -> None:
        """Nothing of it runs until `resume`; what is due meanwhile waits."""
        assert process is not self.root, "the world itself does not pause"
        if process.is_alive and not process.is_paused:
            self.note(f"{process.name} pauses")
            process.is_paused = True
            if process in self._runnable:
                self._runnable.remove(process)

    def resume(self, process: Process) -> None:
        if process.is_alive and process.is_paused:
            self.note(f"{process.name} resumes")
            process.is_paused = False
            if process.ready:
                self._runnable.append(process)

    def note(self, text: str) -> None:
        """Something the world did: a part of the digest and of the trace."""
        self.digest.add(text.encode())
        if self._trace is not None:
            self._trace(f"{self.now:.6f} * {text}")

    def tasks_of(self, process: Process) -> list[SimTask]:
        """Those that have not ended, the oldest first."""
        tasks = self._pending_tasks() if process.is_alive else process.abandoned
        return sorted((task for task in tasks if task.process is process), key=lambda task: task.birth)

    # --- time and callbacks -------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now * PROCESS.get(self.root).rate

    def call_soon(  # type: ignore[override]  # The stubs tie the arguments to the callback's; asyncio does not.
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        if context is None:
            context = copy_context()
        self._births = birth = self._births + 1
        handle = _new_handle(SimHandle)
        handle.callback = callback
        handle.args = args
        handle.context = context
        handle.birth = birth
        handle._cancelled = False
        handle.process = process = context.get(PROCESS, self.root)
        if not process.is_alive or self._is_over:
            handle.cancel()
            return handle
        ready = process.ready
        if not ready and not process.is_paused:
            self._runnable.append(process)
        ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        return self.call_soon(callback, *args, context=context)  # There is one thread.

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimTimer:
        timer = self._timer(callback, args, context)
        rate = timer.process.rate
        when = self.now + delay / rate if delay > 0.0 else self.now
        timer.local_when = when * rate
        self._schedule(when, timer)
        return timer

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimTimer:
        timer = self._timer(callback, args, context)
        timer.local_when = when
        self._schedule(timer.process.world_time(when), timer)
        return timer

    def on_timer_cancelled(self) -> None:
        """For handles. Most timers are timeouts that never fire: without this the heap would be full of them."""
        self._cancelled_timers += 1
        if self._cancelled_timers > _CANCELLED_MIN and self._cancelled_timers * 2 > len(self._timers):
            self._timers[:] = [timer for timer in self._timers if not timer[2]._cancelled]
            heapify(self._timers)
            self._cancelled_timers = 0

    def _timer(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> SimTimer:
        if context is None:
            context = copy_context()
        self._births = birth = self._births + 1
        timer = _new_timer(SimTimer)
        timer.callback = callback
        timer.args = args
        timer.context = context
        timer.birth = birth
        timer._cancelled = False
        timer.process = context.get(PROCESS, self.root)
        timer.sim_loop = self
        timer.in_heap = False
        return timer

    def _schedule(self, when: float, timer: SimTimer) -> None:
        if when <= self.now or self._is_over:
            self._enqueue(timer)
        else:
            timer.in_heap = True
            heappush(self._timers, (when, timer.birth, timer))

    def _enqueue(self, timer: SimTimer) -> None:
        process = timer.process
        if not process.is_alive or self._is_over:
            timer.cancel()
            return
        ready = process.ready
        if not ready and not process.is_paused:
            self._runnable.append(process)
        ready.append(timer)

    # --- futures and tasks --------------------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        future = SimFuture(loop=self)
        self._births = future.birth = self._births + 1
        future.process = PROCESS.get(self.root)
        return future

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        self._births += 1
        task = SimTask(coro, birth=self._births, loop=self, name=name, context=context, **options)
        if self._is_over:
            self._late_tasks.append(task)
        return task

    def _pending_tasks(self) -> list[SimTask]:
        return [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)]

    # --- running ------------------------------------------------------------------------------------------------------

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        if self._is_closed:
            raise RuntimeError("the simulated loop is closed")
        if self._is_running:
            raise RuntimeError("the simulated loop is running already")
        main: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]  # Also generators.
        with self._running():
            while not main.done():
                self._burst(main)
                if self._failure is not None:
                    raise self._failure
                if not main.done():
                    self._jump(main)
        return main.result()

    @contextmanager
    def _running(self) -> Iterator[None]:
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._on_generator, finalizer=self._on_generator_dropped)
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _burst(self, until: asyncio.Future[Any]) -> None:
        """Steps, until nothing can run or a jump of the clock is due."""
        runnable, draw, shuffle, trace = self._runnable, self._random, self._shuffle, self._trace
        add_choice, is_done = self.digest.buffer.append, until.done
        steps = 0
        while runnable and steps < _BURST_MAX and not is_done():
            at = int(draw() * len(runnable))
            process = runnable[at]
            ready = process.ready
            handle = ready.popleft()
            if shuffle and ready and draw() < shuffle:
                handle = _next_one(ready, handle)
            if not ready:
                last = runnable.pop()
                if at < len(runnable):
                    runnable[at] = last
            steps += 1
            if handle._cancelled:
                continue
            add_choice(handle.birth & 0xFF)
            if trace is not None:
                trace(f"{self.now:.6f} {process.name}: {name_of(handle.callback)}")
            try:
                handle.context.run(handle.callback, *handle.args)  # type: ignore[arg-type]  # None only if cancelled.
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._on_raised(handle, error)
            if self._failure is not None:
                break
        self.events += steps

    def _jump(self, main: asyncio.Future[Any]) -> None:
        """To the next timer, and all that are due with it; only a little, if a process can run."""
        if self.events > self._events_max:
            raise SimulationError(f"{self._here()}: no end after {self.events} events; {_progress(main)}")
        timers, runnable = self._timers, self._runnable
        while timers and ((first := timers[0][2])._cancelled or not first.process.is_alive):
            self._drop(heappop(timers)[2])  # The clock does not jump for a timer that does nothing.
        if runnable:
            now = min(self.now + _BURST_S, timers[0][0] if timers else math.inf)
        elif timers:
            now = timers[0][0]
        else:
            raise SimulationError(f"{self._here()}: nothing is left to do, and no timer is set; {_progress(main)}")
        self.now = now
        self.digest.add_time(now)
        while timers and timers[0][0] <= now:
            timer = heappop(timers)[2]
            if timer._cancelled or not timer.process.is_alive:
                self._drop(timer)
            else:
                timer.in_heap = False
                self._enqueue(timer)

    def _drop(self, timer: SimTimer) -> None:
        timer.in_heap = False
        if timer._cancelled:
            self._cancelled_timers -= 1
        else:
            self._dropped.append(timer)

    # --- failures -----------------------------------------------------------------------------------------------------

    def fail(self, message: str, error: BaseException | None = None) -> None:
        """The run ends after this step. The first failure counts."""
        if self._failure is None and not self._is_over:
            self._failure = SimulationError(f"{self._here()}: {self.current().name}: {message}")
            self._failure.__cause__ = error

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        owner = getattr(context.get("future"), "process", None)
        if self._is_over or (owner is not None and not owner.is_alive):
            return  # The process that would have handled the error is dead.
        if self._handler is not None:
            self._handler(self, context)
            return
        error = context.get("exception")
        what = f" ({error!r})" if error is not None else ""
        self.fail(f"{context.get('message', 'an unhandled error')}{what}", error)

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        self._handler = handler

    def get_exception_handler(self) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        return self._handler

    def _on_raised(self, handle: SimHandle, error: BaseException) -> None:
        message = f"an exception in {name_of(handle.callback)}"
        handle.context.run(self.call_exception_handler, {"message": message, "exception": error, "handle": handle})

    def _here(self) -> str:
        return f"seed {self.seed}, at {self.now:.6f} s, event {self.events}"

    # --- asynchronous generators --------------------------------------------------------------------------------------

    def _on_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._births += 1
        self._generators[self._births] = generator

    def _on_generator_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        if self.current().is_alive and not self._is_over:
            self.call_soon(self.create_task, generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        generators = [self._generators[key] for key in sorted(self._generators.keys())]
        for generator in generators:
            try:
                await generator.aclose()
            except Exception as error:  # As asyncio does it. One of a killed process is still running, for example.
                self.call_exception_handler({"message": "closing an asynchronous generator failed", "exception": error})

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        del timeout  # There is none.

    # --- network ------------------------------------------------------------------------------------------------------

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        backlog: int = 100,
        start_serving: bool = True,
        **options: Any,
    ) -> Any:
        _refuse(options, allowed=("family", "flags", "reuse_address", "reuse_port", "keep_alive"))
        server = self._the_network().bind(protocol_factory, host, port or 0, backlog)
        if start_serving:
            await server.start_serving()
        return server

    async def create_connection(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, Any]:
        _refuse(options, allowed=("family", "proto", "flags", "happy_eyeballs_delay", "interleave"))
        if host is None or port is None:
            raise ValueError("a simulated connection needs a host and a port")
        return await self._the_network().connect(protocol_factory, host, port)

    def _the_network(self) -> SimNetwork:
        if self.network is None:
            raise NotImplementedError("this loop has no network: make it through a World, or set `network`")
        return self.network

    # --- the rest of what asyncio asks for ----------------------------------------------------------------------------

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def get_debug(self) -> bool:
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        self._debug = enabled

    def close(self) -> None:
        """Ends the world. What never ended is disposed of silently."""
        if self._is_running:
            raise RuntimeError("the simulated loop is running")
        if self._is_closed:
            return
        self._is_over = True
        with self._running(), _muted():
            self._dispose()
        self._is_closed = True

    def _dispose(self) -> None:
        has_closed = False
        for _ in range(_ROUNDS_MAX):
            tasks = self._take_left_over()
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # As asyncio's own `gather` does it.
                _close(task.get_coro())
            if not tasks:
                break
            has_closed = True
        tasks.clear()
        for process in self._processes:
            process.ready.clear()
        for held in (self._runnable, self._timers, self._dropped):
            held.clear()
        if has_closed:
            gc.collect()  # Here, where warnings of coroutines that never began are not heard.

    def _take_left_over(self) -> list[SimTask]:
        tasks = self._pending_tasks() + self._late_tasks
        self._late_tasks = []
        for process in self._processes:
            tasks += process.abandoned
            process.abandoned = []
        for task in tasks:
            asyncio._unregister_task(task)
        return sorted(dict.fromkeys(tasks), key=lambda task: task.birth)


_new_handle: Callable[[type[SimHandle]], SimHandle] = object.__new__
_new_timer: Callable[[type[SimTimer]], SimTimer] = object.__new__


def new_sim_loop(seed: str = "0", **options: Any) -> SimLoop:
    """`options` are those of `SimLoop`. The stubs call it abstract; what is missing raises when it is called."""
    return SimLoop(seed, **options)  # type: ignore[abstract]


def _close(coroutine: Any) -> None:
    for _ in range(_CLOSE_TRIES_MAX):
        try:
            coroutine.close()
        except RuntimeError:  # It awaited something while it ended, or raised; if it has ended, the next try says so.
            continue
        except BaseException:  # noqa: S112 - what the code of a dead process raises has no effect
            continue
        return


@contextmanager
def _muted() -> Iterator[None]:
    hook, level = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = lambda _: None
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
        logging.disable(level)


def _next_one(ready: deque[SimHandle], handle: SimHandle) -> SimHandle:
    """A task's step goes to the end of the queue: a task has one step at a time, so its own order stays."""
    if not is_task_step(handle.callback):
        return handle
    ready.append(handle)
    return ready.popleft()


def _refuse(options: dict[str, Any], allowed: tuple[str, ...]) -> None:
    for name, value in options.items():
        if value and name not in allowed:
            raise NotImplementedError(f"the simulated network has no {name}")


def _progress(main: asyncio.Future[Any]) -> str:
    if isinstance(main, asyncio.Task):
        return f"{main.get_name()!r} waits at {waits_at(main.get_coro())}"
    return "the awaited future is not done"
