"""Waiting for a condition, with a deadline, instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

_POLL_S = 0.005


async def until(condition: Callable[[], object | Awaitable[object]], what: str, *, seconds: float = 20.0) -> None:
    """Returns when the condition holds; fails with `what` when it does not in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        if loop.time() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain: {what}")
        await asyncio.sleep(_POLL_S)
