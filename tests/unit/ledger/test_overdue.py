"""Whether something is waited for too long, from totals alone; compared with a clock for every single thing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.ledger.overdue import Overdue

PATIENCE = 10.0


def test_nothing_is_overdue_while_nothing_is_waited_for() -> None:
    overdue = Overdue(PATIENCE)
    assert not any(overdue.look(now, 5, 5) for now in (0.0, 100.0, 1000.0))


def test_what_stays_undone_for_the_whole_patience_is_overdue() -> None:
    overdue = Overdue(PATIENCE)
    assert not overdue.look(0.0, 1, 0)
    assert not overdue.look(9.9, 1, 0)
    assert overdue.look(10.0, 1, 0)


def test_steady_progress_is_never_overdue_however_much_is_in_flight() -> None:
    overdue = Overdue(PATIENCE)
    assert not any(overdue.look(float(step), 100 * step + 500, 100 * step) for step in range(100))


def test_old_things_are_found_among_new_ones() -> None:
    overdue = Overdue(PATIENCE)
    assert not any(overdue.look(float(step), 10 * step + 1, 0) for step in range(10))
    assert overdue.look(10.0, 101, 0)


def test_totals_may_begin_anew() -> None:
    overdue = Overdue(PATIENCE)
    overdue.look(0.0, 5, 0)
    overdue.forget()
    assert not overdue.look(20.0, 1, 0)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 4.0), st.integers(0, 3), st.integers(0, 3)), max_size=60))
def test_verdict_is_that_of_the_oldest_thing_seen_at_a_look(steps: list[tuple[float, int, int]]) -> None:
    overdue = Overdue(PATIENCE)
    now, done = 0.0, 0
    first_seen: list[float] = []
    for pause, begins, ends in steps:
        now += pause
        first_seen += [now] * begins
        done = min(len(first_seen), done + ends)
        waiting = first_seen[done:]
        expected = bool(waiting) and now - waiting[0] >= PATIENCE
        assert overdue.look(now, len(first_seen), done) is expected
