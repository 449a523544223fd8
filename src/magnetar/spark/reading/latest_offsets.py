"""Heads: the ends of a stream's topic partitions, known at once or waited for.

Order:     each partition has one long poll at its broker, which is answered when something is new. A poll that has not
           returned at the end of a wait is kept for the next one: nothing is asked twice. A partition whose poll
           returned is asked again before its end is used: that answer may be old.
Limits:    a bounded number of partitions is polled; the others are asked at every call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.errors import MagnetarError, TopicNotFoundError
from magnetar.runtime.gather import gather_bounded
from magnetar.topic.position import EARLIEST, Position

if TYPE_CHECKING:
    from magnetar.spark.cluster_values import Tail

AT_ONCE_MAX: Final = 16
"""Requests to brokers at a time: half of the connections that a process may have to them."""
POLL_MS: Final = 500
_POLLED_MAX: Final = AT_ONCE_MAX


class TailSource(Protocol):
    """The part of a `Cluster` that is needed."""

    async def wait(self, topic: str, after: Position, timeout_ms: int = 500) -> Tail: ...


class Heads:
    def __init__(self, source: TailSource) -> None:
        self._source = source
        self._polls: dict[str, asyncio.Task[Tail]] = {}
        self.tails: dict[str, Tail] = {}

    async def refresh(self, parts: Iterable[str]) -> None:
        """Updates `tails` for these, without those that do not exist. Raises BrokerUnavailableError."""
        wanted = list(parts)
        for gone in sorted(self.tails.keys() - set(wanted)):
            self._forget(gone)
        stale = [part for part in wanted if not self._is_waiting(part)]
        tails = await gather_bounded([partial(self._tail_of, part) for part in stale], AT_ONCE_MAX)
        found = dict(zip(stale, tails, strict=True))
        self.tails.update({part: tail for part, tail in found.items() if tail is not None})
        for part, tail in found.items():
            if tail is None:
                self._forget(part)

    async def _tail_of(self, part: str) -> Tail | None:
        try:
            return await self._ask(part, 0)
        except TopicNotFoundError:
            return None

    async def wait_news(self) -> None:
        """Returns when one of the polled partitions has something new, or after a while."""
        for part in list(self.tails)[:_POLLED_MAX]:
            if not self._is_waiting(part):
                self._polls[part] = asyncio.get_running_loop().create_task(self._ask(part, POLL_MS))
        if self._polls:
            await asyncio.wait(self._polls.values(), timeout=POLL_MS / 1000, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(POLL_MS / 1000)

    def _is_waiting(self, part: str) -> bool:
        """Reports whether its poll is in progress, so its known end is current."""
        poll = self._polls.get(part)
        if poll is None or not poll.done():
            return poll is not None
        del self._polls[part]
        with contextlib.suppress(
            MagnetarError, asyncio.CancelledError
        ):  # It is asked again, and raises the error then.
            self.tails[part] = poll.result()
        return False

    async def _ask(self, part: str, timeout_ms: int) -> Tail:
        known = self.tails.get(part)
        return await self._source.wait(part, EARLIEST if known is None else known.last_confirmed, timeout_ms)

    def _forget(self, part: str) -> None:
        self.tails.pop(part, None)
        poll = self._polls.pop(part, None)
        if poll is not None:
            poll.cancel()

    def close(self) -> None:
        for part in list(self.tails):
            self._forget(part)
