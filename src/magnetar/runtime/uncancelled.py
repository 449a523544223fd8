"""UncancelledTasks: work that runs to its end even if the caller that waits for it is cancelled.

    tasks = UncancelledTasks(lambda: TopicFencedError("the topic was closed: look it up again"))
    await tasks.run(work)                   the caller waits; if the caller is cancelled, the work continues
        task = tasks.begin(work)                no caller waits, or several do: `await tasks.result_of(task)`
    await tasks.wait()                      at the owner's end, before its parts are closed
    await tasks.give_up()                   at the owner's end, if that takes too long

Purpose:   a client that leaves cancels its requests. A change of the metadata that is interrupted leaves an unknown
           state: a cursor that is stored and not in memory, a node whose version is not ours. So the work is a task of
           the component whose state it changes, and a request only waits for it.
Failure:   work that was given up raises the error that the owner chose, not CancelledError: the caller itself was not
           cancelled. Errors that no caller waits for are ignored: `ignore_outcome`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def end_task(task: asyncio.Task[Any] | None) -> None:
    """Cancels a task, and returns when it has ended."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def ignore_outcome(done: asyncio.Future[Any]) -> None:
    """Marks the error as retrieved, as a done-callback: otherwise asyncio reports an error that no caller fetches.

    It is for futures and tasks whose caller may have left, or never waits. Callers that wait still get the error.
    """
    if not done.cancelled():
        done.exception()


class UncancelledTasks:
    """Owned by one component. `given_up` makes the error for callers whose work was given up."""

    def __init__(self, given_up: Callable[[], Exception]) -> None:
        self._given_up = given_up
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        """Returns the number of tasks that have not ended."""
        return len(self._tasks)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Begins the work, and returns its result."""
        return await self.result_of(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Begins work for which no caller waits, or several do."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    async def result_of(self, task: asyncio.Task[T]) -> T:
        """Waits for a task that was begun here. A caller that is cancelled leaves the task running."""
        if not task.done():
            await asyncio.wait([task])
        if task.cancelled():
            raise self._given_up()
        return task.result()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        ignore_outcome(task)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Returns when all tasks have ended, or after the timeout. Without one, the caller brings its own."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_s)

    def cancel(self) -> None:
        """Gives all tasks up, without waiting for their end."""
        for task in self._tasks:
            task.cancel()

    async def give_up(self) -> None:
        """Gives all tasks up, and returns when they have ended."""
        self.cancel()
        await self.wait()
