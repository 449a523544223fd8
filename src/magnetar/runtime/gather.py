"""Many pieces of work at a time, but not all at once.

    found = await gather_bounded([partial(read, each) for each in many], at_once=16)
    async for result in completed_bounded([partial(read, each) for each in many], at_once=4): ...
    await run_together([("watching", watch), ("working", work)])

Invariant: nothing is still running when these return, raise or are cancelled: no task outlives its caller. A piece of
           work is a function that begins it, not a coroutine: a piece that never gets its turn was never begun, and
           nothing has to be closed.
Failure:   `gather_bounded` lets the other pieces end, and then raises the first error in the order of the pieces.
           `completed_bounded` raises the first error that occurs, and cancels the other pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Work: TypeAlias = Callable[[], Awaitable[T]]


async def gather_bounded(works: Sequence[Work[T]], at_once: int) -> list[T]:
    """Returns what each piece returned, in order. A single piece runs in the caller's own task."""
    if len(works) == 1:
        return [await works[0]()]
    tasks = _begin(works, at_once)
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        await cancel_all(tasks)
        raise
    return [task.result() for task in tasks]


async def completed_bounded(works: Sequence[Work[T]], at_once: int) -> AsyncGenerator[T, None]:
    """Yields results as they come. A caller that stops early closes the generator, which cancels the rest."""
    tasks = _begin(works, at_once)
    try:
        for done in asyncio.as_completed(tasks):
            yield await done
    finally:
        await cancel_all(tasks)


def _begin(works: Sequence[Work[T]], at_once: int) -> list[asyncio.Task[T]]:
    assert at_once > 0
    turns = asyncio.Semaphore(at_once)

    async def in_turn(work: Work[T]) -> T:
        async with turns:
            return await work()

    loop = asyncio.get_running_loop()
    return [loop.create_task(in_turn(work)) for work in works]


async def run_together(works: Sequence[tuple[str, Work[None]]]) -> None:
    """Runs pieces that have no end of their own. When one ends or fails, the others are cancelled, and its error is
    raised. Each piece has a name, which is its task's."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(_awaited(work), name=name) for name, work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all([task for task in tasks if not task.done()])
    for task in tasks:
        if not task.cancelled():
            task.result()


async def _awaited(work: Work[None]) -> None:
    await work()


async def cancel_all(tasks: Sequence[asyncio.Task[T]]) -> None:
    """Cancels the tasks, and returns when they have ended, however they did."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
