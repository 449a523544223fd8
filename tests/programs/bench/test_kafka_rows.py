"""The rows of the benchmark beside Apache Kafka."""

from __future__ import annotations

from bench.kafka import CATCH_UP, CROSS, NAMES, PERCENTILE_ROUNDS, ROUNDS, ROWS, SYNCED


def test_every_row_has_a_name_of_its_own() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_goals_and_floors() -> None:
    figures = [figure for row in (*ROWS, SYNCED) for figure in row.figures]
    assert {figure.name: (figure.goal, figure.floor) for figure in [*figures, CROSS]} == {
        "publish-1k": (1, 0.7), "publish-100b": (1, 0.7), "publish-p50-x1": (1, 0.7), "publish-p99-x1": (1, 0.7),
        "end-to-end-p50": (1, None), "end-to-end-p99": (1, None), "catch-up": (1.5, 0.8),
        "publish-1k-fsync": (2, None), "cross-read": (None, None),
    }  # fmt: skip


def test_a_percentile_is_measured_more_often_than_a_rate_and_less_is_better() -> None:
    for row in (*ROWS, SYNCED):
        is_time = row.figures[0].unit == "ms"
        assert row.rounds == (PERCENTILE_ROUNDS if is_time else ROUNDS)
        assert {figure.better for figure in row.figures} == {"lower" if is_time else "higher"}


def test_what_is_caught_up_with_is_written_first() -> None:
    assert CATCH_UP.before[0] == "write"
