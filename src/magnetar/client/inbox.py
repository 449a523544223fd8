"""Messages that were received ahead and wait for the application: of one consumer, or of all partitions of a topic.

Bound:     each receiver lets its broker send only so many, and gets a permit back for each that is taken or dropped.
End:       when nothing is left, whoever waits is told why nothing more will come, if that is so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from magnetar.client.message import Message
from magnetar.errors import EndOfTopicError, MagnetarError


class Source(Protocol):
    error: MagnetarError | None
    is_at_end: bool
    topic: str

    def on_taken(self, messages: int) -> None: ...


class Inbox:
    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._items: deque[tuple[Source, Message | MagnetarError]] = deque()
        self._something = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, source: Source, items: Sequence[Message | MagnetarError]) -> None:
        """An error in the place of a message is raised when its turn comes."""
        self._items.extend((source, item) for item in items)
        self.wake()

    def wake(self) -> None:
        self._something.set()

    def drop(self, source: Source) -> int:
        """What came from there and nobody has seen; how many that were."""
        before = len(self._items)
        self._items = deque(item for item in self._items if item[0] is not source)
        return before - len(self._items)

    def take_nowait(self) -> Message | None:
        """None if there is nothing now."""
        if not self._items:
            self._check_end()
            return None
        source, item = self._items.popleft()
        source.on_taken(1)
        if isinstance(item, MagnetarError):
            raise item
        return item

    async def take(self, timeout_s: float) -> Message:
        """Raises TimeoutError."""
        if self._items:
            message = self.take_nowait()
            if message is not None:
                return message
        async with asyncio.timeout(timeout_s):
            while (message := self.take_nowait()) is None:
                self._something.clear()
                await self._something.wait()
        return message

    def _check_end(self) -> None:
        for source in self.sources:
            if source.error is not None:
                raise source.error
        if self.sources and all(source.is_at_end for source in self.sources):
            raise EndOfTopicError(f"{self.sources[0].topic} was terminated, and all of it was received")
