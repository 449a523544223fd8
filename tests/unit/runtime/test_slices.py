"""Long work in slices: how much of a turn it gets, and in which order."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.runtime import slices as module
from magnetar.runtime.slices import BUDGET_S, Slices


class Clock:
    """Moves only when work says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Turns:
    """Counts the turns of the loop, and what was spent in each."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.spent: list[float] = []
        self._began_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self._tick()

    def _tick(self) -> None:
        self.spent.append(self._clock.now_s - self._began_s)
        self._began_s = self._clock.now_s
        if not self._is_over:
            self._loop.call_soon(self._tick)

    def stop(self) -> None:
        self._is_over = True


async def work(slices: Slices, clock: Clock, steps: int, step_s: float, log: list[str], name: str = "") -> None:
    for _ in range(steps):
        clock.now_s += step_s
        log.append(name)
        await slices.turn()


async def test_work_gives_the_loop_away_when_its_budget_is_used() -> None:
    clock = Clock()
    slices, turns = Slices(clock), Turns(clock)
    await work(slices, clock, 1_000, BUDGET_S / 10, [])
    turns.stop()
    await asyncio.sleep(0)
    assert max(turns.spent) <= BUDGET_S * 1.2
    assert sum(turns.spent) == pytest.approx(100 * BUDGET_S)


async def test_work_of_many_shares_the_budget_of_one_turn_and_nobody_starves() -> None:
    clock = Clock()
    slices, turns, log = Slices(clock), Turns(clock), list[str]()
    names = [f"w{number}" for number in range(20)]
    await asyncio.gather(*(work(slices, clock, 50, BUDGET_S / 5, log, name) for name in names))
    turns.stop()
    await asyncio.sleep(0)
    assert max(turns.spent[3:]) <= BUDGET_S * 1.5  # In the first turn of all, each did a step.
    last_begins = {name: log.index(name) for name in names}
    assert max(last_begins.values()) < len(names) * 10
    halfway = log[: len(log) // 2]
    assert min(halfway.count(name) for name in names) > 10


async def test_short_work_never_waits() -> None:
    clock = Clock()
    slices, log = Slices(clock), list[str]()
    task = asyncio.ensure_future(work(slices, clock, 10, BUDGET_S / 100, log))
    await asyncio.sleep(0)
    assert len(log) == 10
    await task


async def test_a_clock_that_stands_still_does_not_make_a_slice_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS_MAX", 10)
    clock = Clock()
    slices, log = Slices(clock), list[str]()
    task = asyncio.ensure_future(work(slices, clock, 100, 0.0, log))
    await asyncio.sleep(0)
    assert len(log) <= 12
    await task


async def test_work_that_is_cancelled_while_it_waits_leaves_its_turn_to_the_next() -> None:
    clock = Clock()
    slices, log = Slices(clock), list[str]()
    first = asyncio.ensure_future(work(slices, clock, 100, BUDGET_S, log, "first"))
    second = asyncio.ensure_future(work(slices, clock, 100, BUDGET_S, log, "second"))
    for _ in range(10):
        await asyncio.sleep(0)
    first.cancel()
    async with asyncio.timeout(5):
        await second
    assert log.count("second") == 100


async def test_nothing_runs_on_the_loop_after_the_work_is_done() -> None:
    clock = Clock()
    slices = Slices(clock)
    assert await slices.map(str, range(2_000)) == [str(number) for number in range(2_000)]
    for _ in range(4):
        await asyncio.sleep(0)
    assert not slices._is_following


async def test_other_threads_may_run_after_each_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    given_away: list[float] = []
    monkeypatch.setattr(module.time, "sleep", given_away.append)
    clock = Clock()
    slices = Slices(clock)
    for _ in range(10):
        clock.now_s += BUDGET_S
        await slices.turn()
    assert len(given_away) >= 9
    assert set(given_away) == {0}
