"""Long poll: a tailing reader waits until the LAC moves beyond the one it knows, or its time is over.

Limits:    a waiting reader looks nothing up, and is not a read in progress: otherwise readers of idle ledgers would
           keep all others from being served. It counts among the pending requests of its connection, and among all that
           may wait. A client may ask for any time; after `LONG_POLL_MS_MAX` at most it gets the present LAC. A client
           that closes its connection is forgotten at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from magnetar.bookie.connection import Connection
from magnetar.bookie.ledgers import Ledger

LONG_POLL_MS_MAX: Final = 60_000  # A reader that asks again every minute costs nothing; one that has left is forgotten.


class LongPolls:
    """The readers that wait now, by their connection."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._tasks: dict[Connection, dict[asyncio.Task[Any], None]] = {}
        self.waiting = 0

    @property
    def has_room(self) -> bool:
        return self.waiting < self._waiting_max

    async def wait(self, connection: Connection, ledger: Ledger, previous_lac: int, timeout_ms: int) -> None:
        """As `wait_for_lac`; cancelled when the connection is closed."""
        if connection.is_closed:
            return
        task = asyncio.current_task()
        assert task is not None, "a request is served by a task of its own"
        self._tasks.setdefault(connection, {})[task] = None
        self.waiting += 1
        try:
            await wait_for_lac(ledger, previous_lac, timeout_ms)
        finally:
            self.waiting -= 1
            self._forget(connection, task)

    def on_closed(self, connection: Connection) -> None:
        for task in list(self._tasks.get(connection, ())):
            task.cancel()

    def _forget(self, connection: Connection, task: asyncio.Task[Any]) -> None:
        tasks = self._tasks[connection]
        del tasks[task]
        if not tasks:
            del self._tasks[connection]


async def wait_for_lac(ledger: Ledger, previous_lac: int, timeout_ms: int) -> None:
    """Returns when the ledger's LAC is beyond this one, or the time is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(timeout_ms, LONG_POLL_MS_MAX) / 1000):
            while ledger.lac <= previous_lac:
                await _next_move(ledger)


async def _next_move(ledger: Ledger) -> None:
    moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not moved.done():
            moved.set_result(None)

    ledger.waiters.append(wake)
    try:
        await moved
    finally:
        if wake in ledger.waiters:
            ledger.waiters.remove(wake)
