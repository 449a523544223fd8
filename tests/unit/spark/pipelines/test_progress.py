"""What a streaming query's progress adds up to, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.spark.pipelines.jobs import follow


class Shown:
    def __init__(self) -> None:
        self.rows: list[int] = []

    def show(self, what: str, done: int, total: int | None) -> None:
        self.rows.append(done)


class Query:
    """Tells one more batch with every look, and ends after them or is interrupted."""

    def __init__(self, batches: list[tuple[int, int]], *, interrupted: bool = False) -> None:
        self._batches = batches
        self._interrupted = interrupted
        self._looks = 0
        self.stopped = False

    def awaitTermination(self, _seconds: float) -> bool:  # noqa: N802 - Spark's name
        self._looks += 1
        if self._looks > len(self._batches) and self._interrupted:
            raise KeyboardInterrupt
        return self._looks > len(self._batches)

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802 - Spark's name
        return [{"batchId": batch, "numInputRows": rows} for batch, rows in self._batches[: self._looks]]

    def stop(self) -> None:
        self.stopped = True


def test_rows_of_all_batches_are_counted_once_however_often_they_are_told() -> None:
    shown, query = Shown(), Query([(0, 10), (1, 20), (1, 0), (2, 5)])
    assert follow(query, shown, "x") == 35  # type: ignore[arg-type]
    assert shown.rows == [10, 30, 30, 35, 35]


def test_an_interrupt_stops_the_query_and_travels_on() -> None:
    query = Query([(0, 10)], interrupted=True)
    with pytest.raises(KeyboardInterrupt):
        follow(query, Shown(), "x")  # type: ignore[arg-type]
    assert query.stopped


def test_an_interrupt_is_the_ordinary_end_of_a_query_without_one() -> None:
    query = Query([(0, 10)], interrupted=True)
    assert follow(query, Shown(), "x", forever=True) == 10  # type: ignore[arg-type]
    assert query.stopped
