"""The progress of a pipeline, reported to a display: Spark's tasks, or the rows of a stream.

A pipeline's `run` takes a `Reporter`, `SILENT` by default. The command line brings one that draws.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_EVERY_S: Final = 0.25
_JOIN_S: Final = 5.0


class Reporter(Protocol):
    """Called on any thread, a few times a second."""

    def show(self, what: str, done: int, total: int | None) -> None:
        """Shows the progress; without a total, the amount is unknown."""


class Silent:
    def show(self, what: str, done: int, total: int | None) -> None:
        """Shows nothing."""


SILENT: Final = Silent()


@contextlib.contextmanager
def tasks_shown(spark: SparkSession, reporter: Reporter, what: str) -> Iterator[None]:
    """Shows the tasks of a batch job in the block, as Spark counts them."""
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}

    def look() -> None:
        while not ended.wait(_EVERY_S):
            with contextlib.suppress(Exception):  # The session is being stopped: there is nothing more to show.
                done, total = _counted(tracker, seen)
                if total:
                    reporter.show(what, done, total)

    thread = threading.Thread(target=look, name="magnetar-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_JOIN_S)


def _counted(tracker: Any, seen: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Returns counts of all stages seen so far; a stage that is not active any more is done."""
    active = list(tracker.getActiveStageIds())
    for stage, (_, tasks) in list(seen.items()):
        if stage not in active:
            seen[stage] = (tasks, tasks)
    for stage in active:
        info = tracker.getStageInfo(stage)
        if info is not None:
            seen[stage] = (info.numCompletedTasks, info.numTasks)
    return sum(done for done, _ in seen.values()), sum(tasks for _, tasks in seen.values())


def follow(query: StreamingQuery, reporter: Reporter, what: str, *, forever: bool = False) -> int:
    """Waits for the query's end, or raises its error; returns the number of rows it read.

    An interrupt stops the query. For one that runs forever that is the ordinary end; otherwise it is raised.
    """
    rows: dict[int, int] = {}
    wait: Any = query.awaitTermination  # Its annotation says whole seconds; it takes fractions.
    try:
        while not wait(_EVERY_S):
            _learn(query, rows)
            reporter.show(what, sum(rows.values()), None)
    except KeyboardInterrupt:
        query.stop()
        if not forever:
            raise
    _learn(query, rows)
    reporter.show(what, sum(rows.values()), None)
    return sum(rows.values())


def _learn(query: Any, rows: dict[int, int]) -> None:
    """Adds up the rows. Spark keeps the last hundred batches, and reports an empty one repeatedly."""
    for progress in query.recentProgress:
        batch = int(progress["batchId"])
        rows[batch] = max(rows.get(batch, 0), int(progress["numInputRows"]))
