"""The hunt: the first seed that catches a bug counts; whatever is not caught, or not clean, is told."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, cast

import pytest

from magnetar.sim.ledgers.report import Report
from magnetar.sim.ledgers.watch import Violation
from magnetar.sim.mutants import hunt as hunting
from magnetar.sim.mutants.hunt import CONTROL, RUN, Catch, Hunt, Played, hunt, look
from magnetar.sim.mutants.registry import MUTANTS
from magnetar.sim.mutants.table import is_good, row, verdict


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


def test_first_seed_that_catches_the_bug_counts(seeds: Seeds) -> None:
    seeds.violated = {7: "L2", 9: "L1", 30: "L4"}
    ended = hunt(1, 1, 50, POOL, width=4)
    assert ended.catch is not None
    assert ended.catch.seed == 7
    assert ended.seeds == 7
    assert verdict(ended) == "caught"
    assert max(seeds.run) < 30, "nobody looks far behind the catch"


def test_hunt_stops_with_the_budget(seeds: Seeds) -> None:
    seeds.violated = {60: "L2"}
    ended = hunt(1, 1, 50, POOL, width=3)
    assert ended.catch is None
    assert ended.seeds == 50
    assert sorted(seeds.run) == list(range(1, 51))
    assert not is_good(ended)
    assert verdict(ended) == "NOT CAUGHT"


def test_catch_by_another_invariant_is_told_as_such(seeds: Seeds) -> None:
    seeds.violated = {3: "V5"}
    ended = hunt(1, 1, 50, POOL, width=1)
    assert verdict(ended) == "caught by another"
    assert is_good(ended)
    assert "V5" in row(ended)


def test_seed_that_is_not_clean_without_the_bug_catches_nothing(seeds: Seeds) -> None:
    seeds.violated = {3: "L2"}
    seeds.always = [3]
    ended = hunt(1, 1, 50, POOL, width=1)
    assert not is_good(ended)
    assert "seed 3" in verdict(ended)


def test_seed_that_only_broke_down_counts_when_no_invariant_catches_the_bug(seeds: Seeds) -> None:
    seeds.broken = [2]
    seeds.violated = {9: "L2"}
    caught = hunt(1, 1, 50, POOL, width=1).catch
    assert caught is not None
    assert caught.seed == 9
    seeds.violated = {}
    caught = hunt(1, 1, 50, POOL, width=1).catch
    assert caught is not None
    assert caught.seed == 2
    assert caught.invariants == (RUN,)


def test_control_has_to_be_clean_on_all_seeds(seeds: Seeds) -> None:
    clean = hunt(CONTROL, 1, 20, POOL, width=2)
    assert is_good(clean)
    assert clean.seeds == 20
    seeds.broken = [11]
    broken = hunt(CONTROL, 1, 20, POOL, width=2)
    assert not is_good(broken)
    assert "seed 11" in verdict(broken)


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
    found = look(13, 1, 5)
    assert found.catch is not None
    assert "B1" in found.catch.invariants
