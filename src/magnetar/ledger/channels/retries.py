"""Asking bookies again: pauses that grow, and the time after which another try is of no use.

All pauses are random, so that clients that were refused together do not come back together.

Limits:    A bookie that answers "too many requests" is asked again for as long as the caller would have waited for one
           answer: such an overload is usually short. Adds have their own pauses (ledger/writing/ensemble_slot.py), as a
           writer continues with the other bookies meanwhile. Recovery tries again until another try could not be
           finished in time. So it ends with the answers of its bookies, which its error can name, and not with a
           time-out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Protocol, TypeVar

from magnetar.ledger.context import LedgerContext
from magnetar.runtime.backoff import Backoff
from magnetar.wire.bookkeeper.codes import Code

_BUSY_PAUSE_FIRST_S: Final = 0.02
_BUSY_PAUSE_LONGEST_S: Final = 0.5
_RECOVERY_PAUSE_LONGEST_S: Final = 2.0  # Short compared with a recovery's time; long for a bookie that does not answer.

# --- busy bookies -----------------------------------------------------------------------------------------------------


class Coded(Protocol):
    @property
    def code(self) -> Code | None: ...


CodedT = TypeVar("CodedT", bound=Coded)


def is_busy(answer: Coded) -> bool:
    return answer.code is Code.ETOOMANYREQUESTS


class BusyRetries:
    """Paces the retries of one call, whose time begins now."""

    __slots__ = ("_backoff", "_give_up", "_loop")

    def __init__(self, random: Random, patience_s: float) -> None:
        self._backoff = Backoff(random, _BUSY_PAUSE_FIRST_S, _BUSY_PAUSE_LONGEST_S)
        self._loop = asyncio.get_running_loop()
        self._give_up = self._loop.time() + patience_s

    async def pause(self) -> bool:
        """Returns True when the bookies may be asked again; False at once if the time is over."""
        if self._loop.time() > self._give_up:
            return False
        await asyncio.sleep(self._backoff.next_s())
        return True


async def retry_while_busy(ask: Callable[[], Awaitable[CodedT]], random: Random, patience_s: float) -> CodedT:
    """Returns the bookie's first answer that is not "too many requests", or the last one when the time is over."""
    retries = BusyRetries(random, patience_s)
    while True:
        answer = await ask()
        if not is_busy(answer) or not await retries.pause():
            return answer


# --- recovery ---------------------------------------------------------------------------------------------------------


class RetryDeadline:
    """Paces the retries of a recovery that must be done at a certain time."""

    __slots__ = ("_backoff", "_last_try", "_loop")

    def __init__(self, context: LedgerContext, until: float) -> None:
        """`until`: the deadline, in the loop's time."""
        self._backoff = Backoff(context.entropy.random, longest_s=_RECOVERY_PAUSE_LONGEST_S)
        self._last_try = until - context.config.read_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()

    def next_pause_s(self) -> float | None:
        """Returns how long to wait before the next try, or None if no time is left for one."""
        pause_s = self._backoff.next_s()
        return None if self._loop.time() + pause_s > self._last_try else pause_s
