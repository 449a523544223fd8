"""The rows of the benchmark of clusters."""

from __future__ import annotations

import pytest

from bench.cluster import (
    LATENCY_GOAL,
    MEMORY_GOAL,
    NAMES,
    OPEN_GOAL,
    P50_BESIDE_1,
    P99_BESIDE_1,
    ROUNDS,
    TAKE_OVER_GOAL,
    UNLOAD_GOAL,
    Taken,
    around,
    first_after,
)
from bench.cluster_sides import parse_live_bytes
from bench.worker_process import WorkerProcess
from magnetar.errors import ProcessFailedError


def test_every_row_has_a_name_of_its_own() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_goals() -> None:
    assert (TAKE_OVER_GOAL, UNLOAD_GOAL, LATENCY_GOAL, OPEN_GOAL, MEMORY_GOAL) == (1, 1, 1, 4, 2)
    assert (P50_BESIDE_1, P99_BESIDE_1, ROUNDS) == (1.2, 2, 5)


def test_only_messages_sent_around_an_unload_count() -> None:
    times = [(9.4, 9.5), (9.6, 9.7), (11.4, 11.9), (11.6, 11.7)]
    assert [round(each) for each in around(times, [10.0])] == [100, 500]


def test_a_message_sent_before_the_kill_does_not_end_a_take_over() -> None:
    assert first_after([(1.0, 1.1), (2.0, 9.0), (3.0, 8.5)], killed_at=1.5) == 8.5


def test_a_row_has_medians_and_what_was_seen_beside_them() -> None:
    taken = Taken(
        [{"s": 1.0, "all_s": 4.0}, {"s": 3.0, "all_s": 5.0}, {"s": 2.0, "all_s": 6.0}], [{"s": 4.0, "all_s": 7.0}]
    )
    row = taken.row("take-over", "s", "s", 1.0, "all_s")
    assert (row.name, row.ratio, row.detail) == ("cluster/take-over", 2.0, {"all s": (5.0, 7.0)})


def test_the_live_heap_is_the_last_line_of_the_histogram() -> None:
    lines = " num     #instances         #bytes  class name", "   1:         20000        1000000  [B"
    histogram = "\n".join((*lines, "Total         93861        5120368", ""))
    assert parse_live_bytes(histogram) == 5_120_368


def test_a_worker_answers_requests_and_its_failures_are_reported() -> None:
    with WorkerProcess("bench.cluster_worker", "pulsar://127.0.0.1:1", "/dev/null") as worker:
        assert worker.ask("close") is None
        with pytest.raises(ProcessFailedError, match="could not `stop`: AssertionError: nothing was started"):
            worker.ask("stop")
        with pytest.raises(ProcessFailedError, match="could not `fly`"):
            worker.ask("fly")


def test_a_worker_that_ends_is_reported() -> None:
    with WorkerProcess("string") as worker, pytest.raises(ProcessFailedError, match="string did not answer `op`"):
        worker.ask("op")
