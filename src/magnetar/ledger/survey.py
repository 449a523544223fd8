"""Asking every bookie of an ensemble at once, until the answers cover every write set.

A fence and a read of the LAC by quorum are this (coverage.py says when it is enough). Those that have not answered by
then are let go: what they were sent, a fence above all, they still do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from magnetar.ids import BookieId
from magnetar.ledger.answers import Answer
from magnetar.quorum.coverage import Coverage, EnsembleCoverage
from magnetar.quorum.sizes import QuorumSizes


class Survey(NamedTuple):
    is_covered: bool
    answers: dict[BookieId, Answer]


async def survey(
    sizes: QuorumSizes,
    ensemble: Sequence[BookieId],
    attempt: Callable[[BookieId], Awaitable[Answer]],
    counts: Callable[[Answer], bool],
) -> Survey:
    """`counts` says whether an answer is one. Ends as soon as it is decided; each attempt bounds its own time."""
    coverage = EnsembleCoverage(sizes)
    answers: dict[BookieId, Answer] = {}
    asked = {asyncio.ensure_future(attempt(bookie)): place for place, bookie in enumerate(ensemble)}
    try:
        while coverage.state is Coverage.PENDING:
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in asked if task.done()]:
                place = asked.pop(task)
                answer = answers[ensemble[place]] = task.result()
                (coverage.on_answer if counts(answer) else coverage.on_failure)(place)
        return Survey(coverage.state is Coverage.COVERED, answers)
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
