"""One event loop per process, on a thread of its own: how Spark's synchronous calls reach code that is asynchronous.

    entries = run(cluster.segments(topic), timeout=30.0)
    for chunk in iterate(cluster.read_entries(ledger, 0, 999)): ...

Made:      at the first use, never at import. A forked child begins with none: a loop does not survive a fork.
Ahead:     `iterate` keeps pulling while its caller deals with what it has, at most `depth` items ahead.
Ended:     an iterator that is closed, or dropped, cancels what pulls for it. The thread is a daemon: Spark ends its
           workers without asking, and nothing here has to be saved.
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
ITEM_SECONDS_MAX: Final = 600.0  # For one item of an iterator. What pulls has shorter limits of its own: a safety net.
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
    """The running loop of this process."""
    global _current
    with _lock:
        if _current is None:
            _current = _LoopThread()
        return _current.loop


def is_loop_thread() -> bool:
    return _current is not None and threading.current_thread() is _current.thread


def run(coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
    """Runs it on the loop's thread and waits for its result. BrokerTimeoutError after so many seconds: it is cancelled
    then, and what it had asked for may or may not be done."""
    if is_loop_thread():
        coroutine.close()
        raise RuntimeError("called on the loop's own thread, which would wait for itself for ever: await it instead")
    future = asyncio.run_coroutine_threadsafe(coroutine, loop())
    return _result(future, timeout)


def _result(future: Future[T], timeout: float) -> T:
    try:
        return future.result(timeout)
    except TimeoutError as error:
        if future.done() and not future.cancelled():  # Its own, not ours.
            raise
        future.cancel()
        raise BrokerTimeoutError(f"not done within {timeout:g} s") from error
    except WasCancelled:
        raise
    except BaseException:
        future.cancel()  # The caller was interrupted: nobody waits for it any more.
        raise


def iterate(async_iterator: AsyncIterator[T], depth: int = DEPTH, timeout: float = ITEM_SECONDS_MAX) -> Iterator[T]:
    """Its items, pulled on the loop's thread at most `depth` ahead of the caller. What it raises is raised here, behind
    the items that came before."""
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
    """Behind the last item."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Pulled(Generic[T]):
    """The hand-over between a task that pulls and a thread that takes."""

    def __init__(self, source: AsyncIterator[T], depth: int) -> None:
        if is_loop_thread():
            raise RuntimeError("called on the loop's own thread, which would wait for itself for ever: use `async for`")
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
    """In a forked child: the thread is not there, and the lock may be held for ever by one that is not, either."""
    global _current, _lock
    _current = None
    _lock = threading.Lock()


def _stop() -> None:
    if _current is not None:
        _current.stop()


os.register_at_fork(after_in_child=_forget)
atexit.register(_stop)
