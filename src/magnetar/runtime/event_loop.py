"""Runs a program on uvloop, and turns a stop signal into one cancellation.

Order:     the first SIGTERM or SIGINT cancels the main coroutine, whose `finally` blocks are the graceful stop. The
           second one ends the process at once, which the formats on disk survive; also when the loop stands still, as
           in a write to a pipe without a reader.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final, TypeVar

import uvloop

T = TypeVar("T")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PROD_S: Final = 0.2


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    """Runs `main()` to its end and returns its result; None when a signal stopped it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run_until_stopped(main))


async def _run_until_stopped(main: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    task = asyncio.ensure_future(main())
    stop = _Stop(task)
    if threading.current_thread() is threading.main_thread():  # Signals may be handled only there.
        stop.listen()
    try:
        return await task
    except asyncio.CancelledError:
        if not stop.asked:
            raise
        return None
    finally:
        stop.ignore()


class _Stop:
    def __init__(self, task: asyncio.Future[Any]) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}
        self._task = task
        self._loop = asyncio.get_running_loop()

    def listen(self) -> None:
        """Installs plain handlers: the loop's own would be called only when the loop runs."""
        self._before = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}

    def ignore(self) -> None:
        if self.asked:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, before in self._before.items():
            signal.signal(number, before)

    def _prod(self) -> None:
        """Interrupts system calls of the main thread from now on. Otherwise a second signal that comes just before the
        thread waits in a write would be seen only after that write."""
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, _PROD_S, _PROD_S)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.asked = True
        self._prod()
        self._loop.call_soon_threadsafe(self._task.cancel)
