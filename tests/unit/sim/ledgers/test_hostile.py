"""Hostile clients beside honest ones: the world stays well, and the bugs that they bring to light are caught."""

from __future__ import annotations

from magnetar.sim.ledgers.scenario import LEDGERS
from magnetar.sim.mutants.registry import MUTANTS

WORLD = {"faults": ("hostile",), "fault_gap_s": 0.15, "duration_s": 1.0}
SEED = 2


def test_honest_clients_end_well_beside_hostile_ones() -> None:
    report = LEDGERS.run(SEED, WORLD)
    assert report.violations == []
    assert not report.failure
    assert report.counters["hostile connections"] > 10
    assert report.counters["acks"] > 0


def test_a_bug_that_lets_hostile_clients_take_memory_without_a_bound_is_caught() -> None:
    report = LEDGERS.run(SEED, WORLD, mutant=MUTANTS[91].plant)
    assert "M1" in {violation.invariant for violation in report.violations}
