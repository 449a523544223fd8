"""Whole worlds of topics by seed: nothing is violated in any of them, and together they have met what they are for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from magnetar.sim.run import Report
from magnetar.sim.topics.scenario import TOPICS
from tests.unit.sim.catching import first_catch

SEEDS = range(1, 5)
BATCH = 2
PINNED_FILE = Path(__file__).parents[3] / "sim_topic_seeds.txt"
PINNED = [int(line.split()[0]) for line in PINNED_FILE.read_text().splitlines() if line and not line.startswith("#")]


def findings(report: Report) -> list[str]:
    return [*map(str, report.violations), *([report.failure] if report.failure else [])]


@pytest.fixture(scope="module")
def met() -> Counter[str]:
    """What happened in all seeds of this module."""
    return Counter()


@pytest.mark.parametrize("first", SEEDS[::BATCH])
def test_no_invariant_of_topics_is_violated(first: int, met: Counter[str]) -> None:
    for seed in range(first, first + BATCH):
        report = TOPICS.run(seed)
        assert findings(report) == [], f"python -m magnetar.sim --kind topics --seed {seed}"
        met.update(report.counters)


def test_seeds_of_topics_met_what_they_are_for(met: Counter[str]) -> None:
    assert [name for name in TOPICS.must_happen if not met[name]] == []


@pytest.mark.parametrize("seed", PINNED)
def test_seed_of_topics_that_once_failed_does_not_fail_again(seed: int) -> None:
    assert findings(TOPICS.run(seed)) == []


@pytest.mark.parametrize(
    ("number", "first", "invariant"),
    [(34, 24, "T4"), (35, 1, "C2"), (36, 1, "C3"), (71, 6, "V6"), (72, 1, "V6"), (73, 1, "C8"), (74, 1, "C8")],
)
def test_seeds_of_topics_catch_planted_bugs(number: int, first: int, invariant: str) -> None:
    """`first` is near a seed that catches it today; when the code changes, another one does, a little later."""
    catch = first_catch(number, first, 40)
    assert catch is not None
    assert invariant in catch.invariants
