"""Worlds of staging by seed: nothing is violated, and a planted bug is caught. Many more: make sim, sim-mutants."""

from __future__ import annotations

from pathlib import Path

from magnetar.sim.mutants.registry import MUTANTS
from magnetar.sim.run import Report
from magnetar.sim.staging.options import FAULTS, draw
from magnetar.sim.staging.scenario import STAGING

SMALL = {"jobs": 1, "epochs": 2, "duration_s": 1.0}
"""A second or less of computing."""
PINNED_FILE = Path(__file__).parents[3] / "sim_staging_seeds.txt"
PINNED = [int(line.split()[0]) for line in PINNED_FILE.read_text().splitlines() if line and not line.startswith("#")]


def findings(report: Report) -> list[str]:
    return [*map(str, report.violations), *([report.failure] if report.failure else [])]


def test_no_invariant_of_staging_is_violated() -> None:
    report = STAGING.run(2, SMALL)
    assert findings(report) == [], "python -m magnetar.sim --kind staging --seed 2"
    assert report.counters["epochs committed"] > 0


def test_seeds_of_staging_that_once_failed_do_not_fail_again() -> None:
    assert [found for seed in PINNED for found in findings(STAGING.run(seed))] == []


def test_a_sweeper_that_tells_nobody_is_caught() -> None:
    """Seed 2 catches it today; when the code changes, another one does, a little later."""
    mutant = MUTANTS[68]
    reports = (STAGING.run(seed, {**mutant.options, "duration_s": 0.6}, mutant=mutant.plant) for seed in range(2, 12))
    assert any("I7" in report.caught for report in reports)


def test_one_job_id_for_two_topics_is_written_to_both_and_a_job_without_its_target_is_caught() -> None:
    mutant = MUTANTS[100]
    small = {**mutant.options, "epochs": 1, "duration_s": 0.5}
    report = STAGING.run(4, small)
    assert findings(report) == [], "python -m magnetar.sim --kind staging --seed 4"
    assert report.counters["saves committed"] + report.counters["saves skipped"] >= 2
    assert "I1" in STAGING.run(4, small, mutant=mutant.plant).caught


def test_a_seed_draws_the_same_world_and_faults_can_be_taken_away() -> None:
    assert draw(7) == draw(7)
    assert draw(7, {"strike": 1.0, "brokers": 5}).world.brokers == 5
    assert draw(7, without=tuple(FAULTS)).faults == ()
