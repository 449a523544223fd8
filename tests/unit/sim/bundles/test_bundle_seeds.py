"""Worlds of bundles by seed: nothing is violated, and planted bugs are caught. Many more: make sim, sim-mutants."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from magnetar.sim.bundles.options import FAULTS, draw
from magnetar.sim.bundles.scenario import BUNDLES
from magnetar.sim.run import Report
from tests.unit.sim.catching import first_catch

SEEDS = (6, 7)
PINNED_FILE = Path(__file__).parents[3] / "sim_bundle_seeds.txt"
PINNED = [int(line.split()[0]) for line in PINNED_FILE.read_text().splitlines() if line and not line.startswith("#")]


def findings(report: Report) -> list[str]:
    return [*map(str, report.violations), *([report.failure] if report.failure else [])]


def test_no_invariant_of_bundles_is_violated_while_they_move_and_are_administered() -> None:
    met: Counter[str] = Counter()
    for seed in SEEDS:
        report = BUNDLES.run(seed)
        assert findings(report) == [], f"python -m magnetar.sim --kind bundles --seed {seed}"
        met += report.counters
    expected = ("receipts", "bundles that changed their owner", "bundles unloaded", "admin requests done")
    assert [name for name in expected if not met[name]] == []


def test_a_seed_of_bundles_repeats_to_the_byte() -> None:
    small = {"duration_s": 0.5, "faults": ("session",), "balances": False}
    first, second = BUNDLES.run(3, small), BUNDLES.run(3, small)
    assert (first.digest, first.counters) == (second.digest, second.counters)


@pytest.mark.parametrize("seed", PINNED)
def test_seed_of_bundles_that_once_failed_does_not_fail_again(seed: int) -> None:
    assert findings(BUNDLES.run(seed)) == []


@pytest.mark.parametrize(
    ("number", "first", "invariant"),
    [(32, 2, "T3"), (120, 1, "V9"), (121, 1, "T6")],
)
def test_seeds_of_bundles_catch_planted_bugs(number: int, first: int, invariant: str) -> None:
    """`first` is near a seed that catches it today; when the code changes, another one does, a little later."""
    catch = first_catch(number, first, 40)
    assert catch is not None
    assert invariant in catch.invariants


def test_a_seed_draws_the_same_world_of_bundles_and_faults_can_be_taken_away() -> None:
    assert draw(7) == draw(7)
    assert draw(7, {"bundles": 3, "brokers": 5}).world.brokers == 5
    assert draw(7, without=tuple(FAULTS)).base.faults == ()
