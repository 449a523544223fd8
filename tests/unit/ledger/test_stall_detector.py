"""Whether something is waited for too long, from totals alone; compared with a clock for every single thing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.ledger.writing.ensemble_slot import StallDetector

PATIENCE = 10.0


def test_nothing_is_overdue_while_nothing_is_waited_for() -> None:
    stalls = StallDetector(PATIENCE)
    assert not any(stalls.is_stalled(now, 5, 5) for now in (0.0, 100.0, 1000.0))


def test_what_stays_undone_for_the_whole_patience_is_overdue() -> None:
    stalls = StallDetector(PATIENCE)
    assert not stalls.is_stalled(0.0, 1, 0)
    assert not stalls.is_stalled(9.9, 1, 0)
    assert stalls.is_stalled(10.0, 1, 0)


def test_steady_progress_is_never_overdue_however_much_is_in_flight() -> None:
    stalls = StallDetector(PATIENCE)
    assert not any(stalls.is_stalled(float(step), 100 * step + 500, 100 * step) for step in range(100))


def test_old_things_are_found_among_new_ones() -> None:
    stalls = StallDetector(PATIENCE)
    assert not any(stalls.is_stalled(float(step), 10 * step + 1, 0) for step in range(10))
    assert stalls.is_stalled(10.0, 101, 0)


def test_totals_may_begin_anew() -> None:
    stalls = StallDetector(PATIENCE)
    stalls.is_stalled(0.0, 5, 0)
    stalls.reset()
    assert not stalls.is_stalled(20.0, 1, 0)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.floats(0.1, 4.0), st.integers(0, 3), st.integers(0, 3)), max_size=60))
def test_verdict_is_that_of_the_oldest_thing_seen_at_a_look(steps: list[tuple[float, int, int]]) -> None:
    stalls = StallDetector(PATIENCE)
    now, done = 0.0, 0
    first_seen: list[float] = []
    for pause, begins, ends in steps:
        now += pause
        first_seen += [now] * begins
        done = min(len(first_seen), done + ends)
        waiting = first_seen[done:]
        expected = bool(waiting) and now - waiting[0] >= PATIENCE
        assert stalls.is_stalled(now, len(first_seen), done) is expected
