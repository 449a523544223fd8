"""One event loop per process, on a thread of its own: the way from Spark's synchronous calls to asynchronous code.

    entries = run(cluster.segments(topic), timeout=30.0)
    for chunk in iterate(cluster.read_entries(ledger, 0, 999)): ...

Threads:   the loop is made at the first use, never at import. A forked child begins with none: a loop does not survive
           a fork. The thread is a daemon: Spark ends its workers without notice, and nothing here has to be saved.
Limits:    `iterate` continues to pull while its caller works, at most `depth` items ahead. An iterator that is closed,
           or dropped, cancels its task.
Read next: cluster.py
"""

from __future__ import annotations

import asyncio
import atexit
import os
import queue
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError as WasCancelled
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

import uvloop

from magnetar.errors import BrokerTimeoutError

T = TypeVar("T")

DEPTH: Final = 4
ITEM_SECONDS_MAX: Final = (
    600.0  # For one item of an iterator. The source has shorter limits of its own: this is a safety net.
)
_END_SECONDS_MAX: Final = 2.0


class _LoopThread:
    """A running loop and its thread."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="magnetar-loop", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(_END_SECONDS_MAX)


_lock = threading.Lock()
_current: _LoopThread | None = None


def loop() -> asyncio.AbstractEventLoop:
    """Returns the running loop of this process."""
    global _current
    with _lock:
        if _current is None:
            _current = _LoopThread()
        return _current.loop


def is_loop_thread() -> bool:
    return _current is not None and threading.current_thread() is _current.thread


def run(coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
    """Runs it on the loop's thread and returns its result. Raises BrokerTimeoutError after the timeout: it is cancelled
    then, and its requests may or may not be done."""
    if is_loop_thread():
        coroutine.close()
        raise RuntimeError("called on the loop's own thread, which would wait for itself forever: await it instead")
    future = asyncio.run_coroutine_threadsafe(coroutine, loop())
    return _result(future, timeout)


def _result(future: Future[T], timeout: float) -> T:
    try:
        return future.result(timeout)
    except TimeoutError as error:
        if future.done() and not future.cancelled():  # The coroutine's own error, not ours.
            raise
        future.cancel()
        raise BrokerTimeoutError(f"not done within {timeout:g} s") from error
    except WasCancelled:
        raise
    except BaseException:
        future.cancel()  # The caller was interrupted and waits no more.
        raise


def iterate(async_iterator: AsyncIterator[T], depth: int = DEPTH, timeout: float = ITEM_SECONDS_MAX) -> Iterator[T]:
    """Yields its items, pulled on the loop's thread at most `depth` ahead of the caller. An error is raised after the
    items that came before."""
    pulled = _Pulled(async_iterator, depth)
    try:
        while True:
            item = pulled.next(timeout)
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        pulled.close()


class _End:
    """The mark after the last item."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Pulled(Generic[T]):
    """The hand-over between a task that pulls and a thread that takes."""

    def __init__(self, source: AsyncIterator[T], depth: int) -> None:
        if is_loop_thread():
            raise RuntimeError("called on the loop's own thread, which would wait for itself forever: use `async for`")
        self._source = source
        self._loop = loop()
        self._items: queue.SimpleQueue[T | _End] = queue.SimpleQueue()  # Bounded by `_room`.
        self._room = asyncio.Semaphore(depth)
        self._future = asyncio.run_coroutine_threadsafe(self._pull(), self._loop)

    async def _pull(self) -> None:
        error: BaseException | None = None
        try:
            await self._room.acquire()
            async for item in self._source:
                self._items.put(item)
                await self._room.acquire()
        except BaseException as raised:
            error = raised
            if isinstance(raised, asyncio.CancelledError):
                raise
        finally:
            await self._close_source()
            self._items.put(_End(error))

    async def _close_source(self) -> None:
        aclose = getattr(self._source, "aclose", None)
        if aclose is not None:
            await aclose()

    def next(self, timeout: float) -> T | _End:
        try:
            item = self._items.get(timeout=timeout)
        except queue.Empty:
            raise BrokerTimeoutError(f"nothing more came within {timeout:g} s") from None
        if not isinstance(item, _End):
            self._loop.call_soon_threadsafe(self._room.release)
        return item

    def close(self) -> None:
        if not self._future.done():
            self._future.cancel()


def _forget() -> None:
    """Runs in a forked child: the thread does not exist there, and another missing thread may hold the lock forever."""
    global _current, _lock
    _current = None
    _lock = threading.Lock()


def _stop() -> None:
    if _current is not None:
        _current.stop()


os.register_at_fork(after_in_child=_forget)
atexit.register(_stop)
