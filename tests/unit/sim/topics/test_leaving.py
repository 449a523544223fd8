"""Brokers that are killed inside an orderly stop, and while they load topics: the topics are well with their next
owners, and bugs that only such a crash brings to light are caught."""

from __future__ import annotations

from collections import Counter

import pytest

from magnetar.sim.topics.scenario import TOPICS
from tests.unit.sim.catching import first_catch

WORLD = {"faults": ("leave",), "fault_gap_s": 0.2, "duration_s": 1.5}


def test_topics_are_well_after_crashes_inside_the_stop_and_the_start_of_brokers() -> None:
    met: Counter[str] = Counter()
    for seed in (1, 2, 3):
        report = TOPICS.run(seed, WORLD)
        assert report.violations == []
        assert not report.failure
        met.update(report.faults)
    assert met["broker killed in its stop"] > 0
    assert met["broker killed while it loaded"] > 0


@pytest.mark.parametrize(("number", "first", "invariant"), [(110, 1, "T5")])
def test_crash_inside_the_stop_of_a_broker_catches_a_planted_bug(number: int, first: int, invariant: str) -> None:
    catch = first_catch(number, first, 20)
    assert catch is not None
    assert invariant in catch.invariants
