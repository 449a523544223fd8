"""Whole worlds of staging by seed: nothing is violated, the same seed is the same world, planted bugs are caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.sim.ledgers.report import Report
from magnetar.sim.mutants.hunt import look
from magnetar.sim.staging.run import run_seed

SMALL = {"jobs": 1, "epochs": 2, "duration_s": 1.0}
"""A second or less of computing."""
PINNED_FILE = Path(__file__).parents[3] / "sim_staging_seeds.txt"
PINNED = [int(line.split()[0]) for line in PINNED_FILE.read_text().splitlines() if line and not line.startswith("#")]


def findings(report: Report) -> list[str]:
    return [*map(str, report.violations), *([report.failure] if report.failure else [])]


def test_no_invariant_of_staging_is_violated_and_the_same_seed_is_the_same_world() -> None:
    first, again = run_seed(2, SMALL), run_seed(2, SMALL)
    assert findings(first) == [], "python -m magnetar.sim --kind staging --seed 2"
    assert first.counters["epochs committed"] > 0
    assert first.digest == again.digest


@pytest.mark.parametrize("seed", PINNED)
def test_seed_of_staging_that_once_failed_does_not_fail_again(seed: int) -> None:
    assert findings(run_seed(seed)) == []


def test_seeds_of_staging_catch_a_planted_bug() -> None:
    found = look(61, 1, 10)
    assert found.catch is not None
    assert "I7" in found.catch.invariants
