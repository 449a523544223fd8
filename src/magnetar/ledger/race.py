"""Asking bookies one after another until one has what is wanted.

Order:     the next bookie is asked when all that were asked have failed, or when they are silent for the speculation
           delay; so a slow bookie costs that delay and not its time-out. The first good answer wins, and the others are
           let go. Every bookie of the order is asked at most once.
Bound:     an attempt ends by itself (each request has its time-out), so a race takes at most the sum of those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from magnetar.ids import BookieId
from magnetar.ledger.answers import Answer, Finding
from magnetar.ledger.speculation import Speculation


class Outcome(NamedTuple):
    winner: Answer | None
    others: dict[BookieId, Answer]
    """Those that were heard and did not have it, in the order of their answers."""
    silent: list[BookieId]
    """Asked, and not heard when the race ended: slow, or worse."""


async def race(
    order: Sequence[BookieId], attempt: Callable[[BookieId], Awaitable[Answer]], speculation: Speculation
) -> Outcome:
    loop = asyncio.get_running_loop()
    began = loop.time()
    waiting = list(reversed(order))
    asked: dict[asyncio.Task[Answer], BookieId] = {}
    others: dict[BookieId, Answer] = {}
    try:
        while waiting or asked:
            if waiting:
                bookie = waiting.pop()
                asked[asyncio.ensure_future(attempt(bookie))] = bookie
            await asyncio.wait(
                asked, timeout=speculation.delay_s if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            winner = _take_answers(asked, others)
            if winner is not None:
                speculation.on_answer(loop.time() - began)
                return Outcome(winner, others, list(asked.values()))
        return Outcome(None, others, [])
    finally:
        await _let_go(asked)


def _take_answers(asked: dict[asyncio.Task[Answer], BookieId], others: dict[BookieId, Answer]) -> Answer | None:
    for task in [task for task in asked if task.done()]:
        answer = task.result()
        if answer.finding is Finding.PRESENT:
            del asked[task]
            return answer
        others[asked.pop(task)] = answer
    return None


async def _let_go(asked: dict[asyncio.Task[Answer], BookieId]) -> None:
    for task in asked:
        task.cancel()
    if asked:
        await asyncio.gather(*asked, return_exceptions=True)
