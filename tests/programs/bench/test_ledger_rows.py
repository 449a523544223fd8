"""The rows of the ledger client's benchmark."""

from __future__ import annotations

from bench.bookie_contest import Sample
from bench.ledger import GROUPS, LONG_FLOOR, NAMES, P99_GOAL, RECOVER_GOAL
from bench.ledger_worker import quantile


def test_every_row_has_a_name_of_its_own() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_goals_and_floors() -> None:
    goals = {row.name: (row.goal, row.floor) for group in GROUPS for row in group.adds}
    assert goals == {
        "add-1k-x1": (4, None), "add-1k-x100": (1.75, None), "add-1k-x2000": (1.25, 0.8), "add-64k-x100": (2, None),
    }  # fmt: skip
    assert {group.read.name: group.read.goal for group in GROUPS} == {"read-1k": 1, "read-64k": 1}
    assert (P99_GOAL, RECOVER_GOAL, LONG_FLOOR) == (3, 1, 0.8)


def test_the_cpu_of_a_client_is_seen_per_entry() -> None:
    answer = {"entries": 1_000, "seconds": 2.0, "cpuSeconds": 0.005}
    sample = Sample(answer, bookie_cpu_s=0.01, resting_cpu_s=0.1, machine_cpu_s=2.61, elapsed_s=4.0)
    assert round(sample.generator_cpu_us, 6) == 5.0


def test_a_quantile_is_a_value_that_was_measured() -> None:
    assert [quantile([1.0, 2.0, 3.0, 4.0], share) for share in (0.5, 0.75, 0.99)] == [2.0, 3.0, 4.0]
    assert quantile([7.0], 0.5) == 7.0
    assert quantile([], 0.99) == 0.0
