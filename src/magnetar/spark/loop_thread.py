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
from typing import Any, Final, TypeVar

import uvloop

from magnetar.errors import BrokerTimeoutError

T = TypeVar("T")

ITEM_SECONDS_MAX: Final = 600.0  # For an item of an iterator: a safety net, the source has shorter limits of its own.
_END_SECONDS_MAX: Final = 2.0


class _LoopThread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="magnetar-loop", daemon=True)
        self.loop = uvloop.new_event_loop()
        self.start()

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


_lock = threading.Lock()
_current: _LoopThread | None = None


def loop() -> asyncio.AbstractEventLoop:
    global _current
    with _lock:
        if _current is None:
            _current = _LoopThread()
        return _current.loop


def is_loop_thread() -> bool:
    return _current is not None and threading.current_thread() is _current


def run(coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
    """Runs it on the loop's thread and returns its result. Raises BrokerTimeoutError after the timeout: it is cancelled
    then, and its requests may or may not be done."""
    if is_loop_thread():
        coroutine.close()
        raise RuntimeError("called on the loop's own thread, which would wait for itself forever: await it instead")
    future = asyncio.run_coroutine_threadsafe(coroutine, loop())
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


def iterate(async_iterator: AsyncIterator[T], depth: int = 4, timeout: float = ITEM_SECONDS_MAX) -> Iterator[T]:
    """Yields its items, pulled on the loop's thread at most `depth` ahead of the caller. An error is raised after the
    items that came before."""
    if is_loop_thread():
        raise RuntimeError("called on the loop's own thread, which would wait for itself forever: use `async for`")
    items: queue.SimpleQueue[T | _End] = queue.SimpleQueue()  # Bounded by `room`.
    room = asyncio.Semaphore(depth)
    of_process = loop()
    pulling = asyncio.run_coroutine_threadsafe(_pull(async_iterator, items, room), of_process)
    try:
        while True:
            try:
                item = items.get(timeout=timeout)
            except queue.Empty:
                raise BrokerTimeoutError(f"nothing more came within {timeout:g} s") from None
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            of_process.call_soon_threadsafe(room.release)
            yield item
    finally:
        pulling.cancel()


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


async def _pull(source: AsyncIterator[T], items: queue.SimpleQueue[T | _End], room: asyncio.Semaphore) -> None:
    error: BaseException | None = None
    try:
        await room.acquire()
        async for item in source:
            items.put(item)
            await room.acquire()
    except BaseException as raised:
        error = raised
        if isinstance(raised, asyncio.CancelledError):
            raise
    finally:
        aclose = getattr(source, "aclose", None)
        if aclose is not None:
            await aclose()
        items.put(_End(error))


def _forget() -> None:
    """Runs in a forked child: the thread does not exist there, and another missing thread may hold the lock forever."""
    global _current, _lock
    _current = None
    _lock = threading.Lock()


def _stop() -> None:
    if _current is not None:
        _current.loop.call_soon_threadsafe(_current.loop.stop)
        _current.join(_END_SECONDS_MAX)


os.register_at_fork(after_in_child=_forget)
atexit.register(_stop)
