"""Whole worlds by seed: nothing is violated in any of them, and together they have met what they are for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from magnetar.sim.ledgers.scenario import LEDGERS
from magnetar.sim.run import Report
from tests.unit.sim.ledgers.directed import RUNS, run_directed

SEEDS = range(1_000, 1_024)
BATCH = 4
PINNED_FILE = Path(__file__).parents[3] / "sim_seeds.txt"
PINNED = [int(line.split()[0]) for line in PINNED_FILE.read_text().splitlines() if line and not line.startswith("#")]


def findings(report: Report) -> list[str]:
    return [*map(str, report.violations), *([report.failure] if report.failure else [])]


@pytest.fixture(scope="module")
def met() -> Counter[str]:
    """What happened in all seeds of this module."""
    return Counter()


@pytest.mark.parametrize("first", SEEDS[::BATCH])
def test_no_invariant_is_violated(first: int, met: Counter[str]) -> None:
    for seed in range(first, first + BATCH):
        report = LEDGERS.run(seed)
        assert findings(report) == [], f"python -m magnetar.sim --seed {seed}"
        met.update(report.counters)


def test_seeds_met_what_they_are_for(met: Counter[str]) -> None:
    assert [name for name in LEDGERS.must_happen if not met[name]] == []


@pytest.mark.parametrize("seed", PINNED)
def test_seed_that_once_failed_does_not_fail_again(seed: int) -> None:
    assert findings(LEDGERS.run(seed)) == []


@pytest.mark.parametrize("name", RUNS)
def test_takeovers_under_aimed_faults_lose_nothing(name: str) -> None:
    taken_over = 0
    for seed in range(5):
        report = run_directed(name, seed)
        assert findings(report) == [], f"{name}, seed {seed}"
        taken_over += report.counters["recoveries"]
    assert taken_over > 5
