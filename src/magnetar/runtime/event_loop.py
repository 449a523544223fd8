"""Runs a program on uvloop, and turns a stop signal into one cancellation.

Signals:   the first SIGTERM or SIGINT cancels the main coroutine, whose `finally` blocks are the graceful stop. The
           second one finds the default handler again and ends the process at once, which the formats on disk survive.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    """Runs `main()` to its end and returns its result; None when a signal stopped it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run_until_stopped(main))


async def _run_until_stopped(main: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    task = asyncio.ensure_future(main())
    stop = _Stop(task)
    if threading.current_thread() is threading.main_thread():  # Only there may signals be handled.
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
        self._listens = False
        self._task = task
        self._loop = asyncio.get_running_loop()

    def listen(self) -> None:
        self._listens = True
        for number in STOP_SIGNALS:
            self._loop.add_signal_handler(number, self._on_signal)

    def ignore(self) -> None:
        if self._listens:
            self._listens = False
            for number in STOP_SIGNALS:
                self._loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        self.ignore()
        self.asked = True
        self._task.cancel()
