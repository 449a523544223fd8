"""The hunt: the first seed that catches a bug counts; what is not caught, or not clean, is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, cast

import pytest

from magnetar.sim.ledgers.watch import Violation
from magnetar.sim.mutants import hunt as hunting
from magnetar.sim.mutants.__main__ import is_good, row, verdict
from magnetar.sim.mutants.hunt import CONTROL, RUN, Catch, Hunt, Played, hunt, hunt_all, look
from magnetar.sim.mutants.registry import MUTANTS
from magnetar.sim.run import Report
from magnetar.testing.waiting import until


class Inline:
    """A pool of processes that does each job at once, here."""

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*args))
        return future


POOL = cast("ProcessPoolExecutor", Inline())


class Seeds:
    """In place of the simulator: which seeds are violated, and which break down, with the bug or without it."""

    def __init__(self) -> None:
        self.violated: dict[int, str] = {}
        self.broken: list[int] = []
        self.always: list[int] = []
        self.run: list[int] = []

    def run_one(self, number: int, seed: int) -> Report:
        self.run.append(seed)
        report = Report(seed, "")
        if seed in self.violated:
            report.violations.append(Violation(self.violated[seed], "something is wrong", 1.0))
        if seed in self.broken:
            report.failure = "it broke down"
        return report


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> Seeds:
    seeds = Seeds()
    monkeypatch.setattr(hunting, "run_one", seeds.run_one)
    monkeypatch.setattr(hunting, "run_clean", lambda number, seed: seed not in seeds.always)
    return seeds


def hunted(number: int, budget: int, width: int) -> Hunt:
    return asyncio.run(hunt(number, 1, budget, POOL, width))


def test_first_seed_that_catches_the_bug_counts(seeds: Seeds) -> None:
    seeds.violated = {7: "L2", 9: "L1", 30: "L4"}
    ended = hunted(1, 50, width=4)
    assert ended.catch is not None
    assert ended.catch.seed == 7
    assert ended.seeds == 7
    assert verdict(ended) == "caught"
    assert max(seeds.run) < 30, "nobody looks far behind the catch"


def test_hunt_stops_with_the_budget(seeds: Seeds) -> None:
    seeds.violated = {60: "L2"}
    ended = hunted(1, 50, width=3)
    assert ended.catch is None
    assert ended.seeds == 50
    assert sorted(seeds.run) == list(range(1, 51))
    assert not is_good(ended)
    assert verdict(ended) == "NOT CAUGHT"


def test_catch_by_another_invariant_is_told_as_such(seeds: Seeds) -> None:
    seeds.violated = {3: "V5"}
    ended = hunted(1, 50, width=1)
    assert verdict(ended) == "caught by another"
    assert is_good(ended)
    assert "V5" in row(ended)


def test_seed_that_is_not_clean_without_the_bug_catches_nothing(seeds: Seeds) -> None:
    seeds.violated = {3: "L2"}
    seeds.always = [3]
    ended = hunted(1, 50, width=1)
    assert not is_good(ended)
    assert "seed 3" in verdict(ended)


def test_seed_that_only_broke_down_counts_when_no_invariant_catches_the_bug(seeds: Seeds) -> None:
    seeds.broken = [2]
    seeds.violated = {9: "L2"}
    caught = hunted(1, 50, width=1).catch
    assert caught is not None
    assert caught.seed == 9
    seeds.violated = {}
    caught = hunted(1, 50, width=1).catch
    assert caught is not None
    assert caught.seed == 2
    assert caught.invariants == (RUN,)


def test_control_has_to_be_clean_on_all_seeds(seeds: Seeds) -> None:
    clean = hunted(CONTROL, 20, width=2)
    assert is_good(clean)
    assert clean.seeds == 20
    seeds.broken = [11]
    broken = hunted(CONTROL, 20, width=2)
    assert not is_good(broken)
    assert "seed 11" in verdict(broken)


class Held(Inline):
    """A pool that keeps the first job of planted bug 1 until it is let go."""

    def __init__(self) -> None:
        self.held: Future[Any] = Future()
        self.asked: list[int] = []

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        self.asked.append(args[0])
        return self.held if args[0] == 1 and self.asked.count(1) == 1 else super().submit(work, *args)


async def test_seeds_of_the_next_bug_run_while_a_hunt_waits_and_the_order_is_kept(seeds: Seeds) -> None:
    seeds.violated = {1: "L2"}
    pool, ended = Held(), list[int]()
    budgets = {1: 5, 2: 5, 3: 5}
    hunts = asyncio.ensure_future(
        hunt_all(budgets, 1, cast("ProcessPoolExecutor", pool), 1, lambda hunt: ended.append(hunt.number))
    )
    await until(lambda: 3 in pool.asked, "the other bugs are hunted")
    assert ended == []
    pool.held.set_result(look(1, 1))
    assert [hunt.number for hunt in await hunts] == ended == [1, 2, 3]


def test_directed_run_that_misses_a_seed_is_told(seeds: Seeds) -> None:
    ended = Hunt(16, Catch(3, ("L8",), "…"), seeds=3, played=Played(seeds=10, shown=9, clean=10))
    assert not is_good(ended)
    ended.played = Played(seeds=10, shown=10, clean=10)
    assert is_good(ended)


def test_table_has_a_row_for_everything() -> None:
    caught = Hunt(4, Catch(3, ("L11", "L1"), "…"), seeds=3)
    assert row(caught)[:4] == ("4", MUTANTS[4].sentence, "L11", "L11, L1")
    assert row(Hunt(CONTROL, seeds=300))[-1] == "clean"


def test_real_seeds_catch_an_acknowledgement_before_the_sync() -> None:
    catches = [found.catch for found in (look(13, seed) for seed in range(1, 6)) if found.catch is not None]
    assert "B1" in catches[0].invariants
