"""Disposal: what becomes of tasks that will never go on, when the seed is over.

Problem:   a coroutine that is let go runs its `finally` blocks. During a seed that would repair what a crash breaks, so
           the loop keeps every task of a dead process. Keeping them for ever would keep every seed in memory.
Way:       when the world is over, all of them are closed. Their `finally` blocks meet a loop that accepts everything
           and does nothing, disks and sockets that are inert, and nobody who listens: no log, no warning.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

from magnetar.sim.tasks import SimTask

_CLOSE_TRIES_MAX: Final = 50  # Each gets past one `await` inside a `finally`; what still waits then is left as it is.
_ROUNDS_MAX: Final = 10  # Closing one may make another task.


def dispose(pending: Callable[[], list[SimTask]], let_go: Callable[[], None]) -> None:
    """`pending` lists the tasks that are left, new ones each time; `let_go` drops all other references."""
    with muted():
        for _ in range(_ROUNDS_MAX):
            tasks = sorted(pending(), key=lambda task: task.birth)
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # As asyncio's own `gather` does it.
                _close(task.get_coro())
            if not tasks:
                break
        tasks.clear()
        let_go()
        gc.collect()  # Here, where nobody hears of coroutines that were never begun.


def _close(coroutine: Any) -> None:
    for _ in range(_CLOSE_TRIES_MAX):
        try:
            coroutine.close()
        except RuntimeError:  # It awaited something on its way out, or raised; if it has ended, the next try says so.
            continue
        except BaseException:  # noqa: S112 - whatever the code of a dead process raises concerns nobody
            continue
        return


def _ignore(unraisable: object) -> None:
    del unraisable


@contextlib.contextmanager
def muted() -> Iterator[None]:
    hook, level = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = _ignore
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
        logging.disable(level)
