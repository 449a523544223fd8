"""A bookie that answers "too many requests" is asked again: what overloads it is mostly over in a moment.

Pauses:    they grow, and are random, so that those who were refused together do not come back together. They go on for
           as long as the caller would have waited for one answer.
Read next: overload.py, which is the same for adds: a writer goes on with the other bookies meanwhile
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Protocol, TypeVar

from magnetar.runtime.backoff import Backoff
from magnetar.wire.bookkeeper.codes import Code

_PAUSE_FIRST_S: Final = 0.02
_PAUSE_LONGEST_S: Final = 0.5


class Coded(Protocol):
    @property
    def code(self) -> Code | None: ...


CodedT = TypeVar("CodedT", bound=Coded)


def is_busy(answer: Coded) -> bool:
    return answer.code is Code.ETOOMANYREQUESTS


class BusyPauses:
    """Of one call, from now on."""

    __slots__ = ("_backoff", "_give_up", "_loop")

    def __init__(self, random: Random, patience_s: float) -> None:
        self._backoff = Backoff(random, _PAUSE_FIRST_S, _PAUSE_LONGEST_S)
        self._loop = asyncio.get_running_loop()
        self._give_up = self._loop.time() + patience_s

    async def pause(self) -> bool:
        """Returns when the bookies may be asked again; False at once, if they were asked for long enough."""
        if self._loop.time() > self._give_up:
            return False
        await asyncio.sleep(self._backoff.next_s())
        return True


async def ask_while_busy(ask: Callable[[], Awaitable[CodedT]], random: Random, patience_s: float) -> CodedT:
    """What one bookie answers when it is not busy any more; or that it still is."""
    pauses = BusyPauses(random, patience_s)
    while True:
        answer = await ask()
        if not is_busy(answer) or not await pauses.pause():
            return answer
