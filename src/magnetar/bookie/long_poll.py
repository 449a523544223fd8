"""Long poll: a tailing reader waits here until the LAC moves beyond the one it knows, or its time is over.

Bound:     a client may ask for as long as it likes; after `LONG_POLL_MS_MAX` at most it gets the LAC as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from magnetar.bookie.ledgers import Ledger

LONG_POLL_MS_MAX: Final = 60_000  # A reader that asks again every minute costs nothing; one that is gone is forgotten.


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
