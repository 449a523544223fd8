"""Work that goes to its end, whoever waits for it.

A client that leaves cancels its requests. A change of the metadata that is cut off halfway leaves a state that nobody
knows: a cursor that is stored and not there, a node whose version is not ours. So such work is a task of the topic's,
and a request only waits for it. It is given up only with the topic: the next owner finds out what was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from magnetar.errors import TopicFencedError

T = TypeVar("T")


class Finishing:
    """Owned by a topic; `wait` before the topic's parts are closed."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}

    async def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """TopicFencedError if it was given up."""
        task = self.begin(work)
        await asyncio.wait([task])
        if task.cancelled():
            raise TopicFencedError("it was given up as the topic was closed: look the topic up, and try again")
        return task.result()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """For work that nobody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # Whoever waits has it; if nobody does, nobody wants it.

    async def wait(self) -> None:
        """The caller brings the timeout."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def give_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.wait()
