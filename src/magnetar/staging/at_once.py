"""Several things at a time, but not too many; all of them ended when this returns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def all_of(works: Sequence[Callable[[], Awaitable[T]]], at_once: int) -> list[T]:
    """What each of them returned, in order. The first error, in that order, after the others have ended."""
    if len(works) == 1:
        return [await works[0]()]
    turns = asyncio.Semaphore(at_once)

    async def in_turn(work: Callable[[], Awaitable[T]]) -> T:
        async with turns:
            return await work()

    tasks = [asyncio.get_running_loop().create_task(in_turn(work)) for work in works]
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    return [task.result() for task in tasks]
