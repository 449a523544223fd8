"""Heads: how far each topic partition of a stream has come, known at once or waited for.

Poll:      each partition has one long poll at its broker, which is answered when something is new. A poll that has not
           come back by the end of a wait is kept for the next one: nothing is asked twice.
Fresh:     a partition whose poll came back is asked again before it is believed: that answer may be old by now.
Many:      only so many partitions are polled; the others are asked at every call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.errors import MagnetarError, TopicNotFoundError
from magnetar.spark.reading.bounded import AT_ONCE_MAX, gather_bounded
from magnetar.topic.position import EARLIEST, Position

if TYPE_CHECKING:
    from magnetar.spark.cluster_values import Tail

POLL_MS: Final = 500
_POLLED_MAX: Final = AT_ONCE_MAX


class TailSource(Protocol):
    """As much of a `Cluster` as is needed."""

    async def wait(self, topic: str, after: Position, timeout_ms: int = 500) -> Tail: ...


class Heads:
    def __init__(self, source: TailSource) -> None:
        self._source = source
        self._polls: dict[str, asyncio.Task[Tail]] = {}
        self.tails: dict[str, Tail] = {}

    async def refresh(self, parts: Iterable[str]) -> None:
        """`tails` has these as they are now, without those that do not exist. BrokerUnavailableError."""
        wanted = list(parts)
        for gone in sorted(self.tails.keys() - set(wanted)):
            self._forget(gone)
        stale = [part for part in wanted if not self._is_waiting(part)]
        found = dict(zip(stale, await gather_bounded(self._tail_of(part) for part in stale), strict=True))
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
        """Its poll is under way, so what is known of it is so still."""
        poll = self._polls.get(part)
        if poll is None or not poll.done():
            return poll is not None
        del self._polls[part]
        with contextlib.suppress(MagnetarError, asyncio.CancelledError):  # It is asked again, and says it then.
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
