"""The rows of the benchmark of topics."""

from __future__ import annotations

from bench.pulsar import FLOOR, NAMES, P99_ROUNDS, ROUNDS, ROWS, Sample


def test_every_row_has_a_name_of_its_own() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_goals_and_the_floor() -> None:
    assert {row.name: row.goal for row in ROWS} == {
        "publish-1k": 1, "publish-100b": 1, "publish-p99-x1": 1.5, "end-to-end-p99": 2, "open-1000-topics": 2,
    }  # fmt: skip
    assert FLOOR == 0.7


def test_a_percentile_is_measured_more_often_than_a_rate() -> None:
    assert {row.rounds for row in ROWS if row.unit == "ms"} == {P99_ROUNDS}
    assert {row.rounds for row in ROWS if row.unit != "ms"} == {ROUNDS}
    assert P99_ROUNDS > ROUNDS


def test_cores_busy_elsewhere_are_those_of_neither_server_nor_client() -> None:
    figures = {"messages": 1_000, "cpu": 1.0, "cpu_s": 2.0}  # The share is of the client's own time, which is shorter.
    sample = Sample(figures, server_cpu_s=1.0, machine_cpu_s=5.0, elapsed_s=4.0)
    assert sample.other_cores == 0.5
    assert sample.server_cpu_us == 1_000
