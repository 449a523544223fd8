"""SystemRuntime: the real machine's disks and lanes, with the system's randomness and wall clock.

Invariant: every call on a lane (`SystemOffload`) either resolves its future on the loop or, when the loop has ended, is
           dropped; the thread outlives neither its lane nor its loop's work.
Order:     a finished call joins a list; the loop is woken once for all that finish before it looks, so a burst of
           short calls costs one `call_soon_threadsafe` per loop turn and a lone call is not delayed.
Threads:   a lane is one daemon thread, started by the first call: it does not keep a dying process alive. To the data
           that is a crash like any other, and all formats on disk are made for that.
Read next: runtime.py for the promises
"""

from __future__ import annotations

import asyncio
import queue
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, TypeVarTuple, Unpack

from magnetar.errors import ClosedError
from magnetar.runtime.disk import Disk
from magnetar.runtime.runtime import Entropy, Offload, Runtime
from magnetar.runtime.system_disk import SystemDisk

T = TypeVar("T")
Args = TypeVarTuple("Args")

_Future: TypeAlias = asyncio.Future[Any]
_Call: TypeAlias = tuple[_Future, Callable[..., Any], tuple[Any, ...]]
_Outcome: TypeAlias = tuple[_Future, Any, BaseException | None]

LANE_CALLS_MAX = 65_536  # Callers limit what they have in flight; a lane this long means that one of them does not.


class SystemOffload(Offload):
    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()  # None: the end.
        self._finished: deque[_Outcome] = deque()
        self._loop_is_woken = False  # Set by the thread, cleared by the loop before it takes what is finished.
        self._in_flight = 0
        self._ended: asyncio.Future[None] | None = None
        self._closed = False

    async def __call__(self, function: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        future: asyncio.Future[T] = self._hand_over(function, args)
        return await future

    async def aclose(self) -> None:
        self._closed = True
        thread = self._thread
        if thread is None:
            return
        assert self._loop is asyncio.get_running_loop(), "a lane belongs to one event loop"
        if self._ended is None:
            self._ended = self._loop.create_future()
            self._calls.put(None)
        await asyncio.shield(self._ended)
        thread.join()  # It ends at once: waking the loop is the last thing the thread does.

    def _hand_over(self, function: Callable[..., T], args: tuple[Any, ...]) -> asyncio.Future[T]:
        if self._closed:
            raise ClosedError(f"lane {self._name!r} is closed")
        assert self._in_flight < LANE_CALLS_MAX, f"lane {self._name!r}: {self._in_flight} calls wait"
        loop = self._running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._in_flight += 1
        self._calls.put((future, function, args))
        return future

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._loop = loop
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        assert self._loop is loop, "a lane belongs to one event loop"
        return loop

    def _deliver(self) -> None:
        self._loop_is_woken = False  # Before looking: calls that finish from now on wake the loop again.
        while self._finished:
            future, result, error = self._finished.popleft()
            self._in_flight -= 1
            if future.done():  # Its caller was cancelled.
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _end(self) -> None:
        self._deliver()
        assert self._ended is not None
        if not self._ended.done():
            self._ended.set_result(None)

    def _run(self) -> None:
        while (call := self._next_call()) is not None:
            self._finished.append(_outcome(*call))
            del call  # While the thread waits it must not hold a finished call's buffers.
            if not self._loop_is_woken:
                self._loop_is_woken = True
                self._tell(self._deliver)
        self._tell(self._end)

    def _next_call(self) -> _Call | None:
        assert self._loop is not None
        if not self._loop.is_closed():
            return self._calls.get()
        try:
            return self._calls.get_nowait()  # No caller is left: run the remaining calls, then end.
        except queue.Empty:
            return None

    def _tell(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            assert self._loop.is_closed()  # No receiver is left.


def _outcome(future: _Future, function: Callable[..., Any], args: tuple[Any, ...]) -> _Outcome:
    try:
        return future, function(*args), None
    except StopIteration as error:  # A future cannot carry it; neither can a coroutine.
        wrapped = RuntimeError("the function raised StopIteration")
        wrapped.__cause__ = error
        return future, None, wrapped
    except BaseException as error:
        return future, None, error


class SystemEntropy(Entropy):
    def __init__(self) -> None:
        self.random = random.SystemRandom()

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SystemRuntime(Runtime):
    def __init__(self) -> None:
        self.entropy = SystemEntropy()

    def disk(self, root: str, *, name: str) -> Disk:
        return SystemDisk(root, SystemOffload(name))

    def offload(self, *, name: str) -> Offload:
        return SystemOffload(name)
