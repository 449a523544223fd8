"""Many questions at a time, but not all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

T = TypeVar("T")
AT_ONCE_MAX: Final = 16  # Half of the connections that a process may have to its brokers.


async def gather_bounded(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. The first error is raised when those under way have ended."""
    turn = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(each: Coroutine[Any, Any, T]) -> T:
        async with turn:
            return await each

    results = await asyncio.gather(*(one(each) for each in work), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
