"""Bounded gathering: how many pieces run at a time, what is returned and raised, and that nothing is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from magnetar.runtime.gather import completed_bounded, gather_bounded


class Pieces:
    """Pieces of work that end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self._ends: dict[int, asyncio.Future[int]] = {}

    async def run(self, number: int) -> int:
        self.begun.append(number)
        end = self._ends[number] = asyncio.get_running_loop().create_future()
        try:
            return await end
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            self.ended.append(number)

    def works(self, count: int) -> list[Callable[[], Coroutine[Any, Any, int]]]:
        return [partial(self.run, number) for number in range(count)]

    async def end(self, number: int, error: Exception | None = None) -> None:
        if error is None:
            self._ends[number].set_result(10 * number)
        else:
            self._ends[number].set_exception(error)
        await turns()


async def turns() -> None:
    """Lets everything happen that waits for nothing else."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_results_are_in_the_order_of_the_pieces_whichever_ends_first() -> None:
    pieces = Pieces()
    gathered = asyncio.create_task(gather_bounded(pieces.works(3), at_once=3))
    await turns()
    for number in (2, 0, 1):
        await pieces.end(number)
    assert await gathered == [0, 10, 20]


async def test_no_more_than_the_limit_run_at_a_time() -> None:
    pieces = Pieces()
    gathered = asyncio.create_task(gather_bounded(pieces.works(5), at_once=2))
    await turns()
    assert pieces.begun == [0, 1]
    for number in range(5):
        await pieces.end(number)
        assert len(pieces.begun) - len(pieces.ended) <= 2
    assert await gathered == [0, 10, 20, 30, 40]


async def test_nothing_to_do_returns_nothing() -> None:
    assert await gather_bounded([], at_once=2) == []


async def test_a_single_piece_runs_in_the_callers_own_task() -> None:
    async def which() -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    assert await gather_bounded([which], at_once=2) == [asyncio.current_task()]


async def test_the_first_error_in_order_is_raised_after_all_others_have_ended() -> None:
    pieces = Pieces()
    gathered = asyncio.create_task(gather_bounded(pieces.works(4), at_once=3))
    await turns()
    await pieces.end(2, ValueError("of piece 2"))
    await pieces.end(1, ValueError("of piece 1"))
    assert not gathered.done()
    await pieces.end(0)
    await pieces.end(3)  # It was begun although others had failed.
    with pytest.raises(ValueError, match="of piece 1"):
        await gathered
    assert not pieces.cancelled


async def test_a_cancelled_caller_leaves_nothing_running_and_begins_nothing_more() -> None:
    pieces = Pieces()
    gathered = asyncio.create_task(gather_bounded(pieces.works(4), at_once=2))
    await turns()
    gathered.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathered
    assert pieces.begun == pieces.cancelled == [0, 1]


async def test_completed_results_come_as_they_are_ready() -> None:
    pieces = Pieces()
    found: list[int] = []
    on_result = found.append

    async def collect() -> None:
        async for result in completed_bounded(pieces.works(3), at_once=2):
            on_result(result)

    collecting = asyncio.create_task(collect())
    await turns()
    assert pieces.begun == [0, 1]
    await pieces.end(1)
    assert found == [10]
    assert pieces.begun == [0, 1, 2]
    await pieces.end(2)
    await pieces.end(0)
    await collecting
    assert found == [10, 20, 0]


async def test_an_error_among_completed_results_cancels_the_other_pieces() -> None:
    pieces = Pieces()

    async def collect() -> None:
        async for _ in completed_bounded(pieces.works(3), at_once=2):
            pass

    collecting = asyncio.create_task(collect())
    await turns()
    await pieces.end(0, ValueError("of piece 0"))
    with pytest.raises(ValueError, match="of piece 0"):
        await collecting
    assert pieces.begun[:2] == [0, 1]
    assert sorted(pieces.ended) == sorted(pieces.begun)


async def test_a_caller_that_stops_early_cancels_the_rest() -> None:
    pieces = Pieces()

    async def first() -> int:
        async with aclosing(completed_bounded(pieces.works(3), at_once=2)) as results:
            async for result in results:
                return result
        raise AssertionError("there are three")

    stopping = asyncio.create_task(first())
    await turns()
    await pieces.end(0)
    assert await stopping == 0
    assert sorted(pieces.ended) == sorted(pieces.begun)
