"""How far a pipeline has come, told to whoever wants to show it: Spark's tasks, or the rows of a stream.

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
        """So much of it is done; without a total nobody knows how much there is."""


class Silent:
    def show(self, what: str, done: int, total: int | None) -> None:
        """Nobody looks."""


SILENT: Final = Silent()


@contextlib.contextmanager
def tasks_shown(spark: SparkSession, reporter: Reporter, what: str) -> Iterator[None]:
    """While a batch job runs in the block: its tasks, as Spark counts them."""
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}

    def look() -> None:
        while not ended.wait(_EVERY_S):
            with contextlib.suppress(Exception):  # A session that is being stopped: there is nothing more to show.
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
    """Of all stages that were seen so far; one that is not active any more is done."""
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
    """Waits for the query's end, or raises what ended it; returns how many rows it read.

    An interrupt stops the query. For one that would go on forever that is the ordinary end; else it travels on.
    """
    rows: dict[int, int] = {}
    wait: Any = query.awaitTermination  # Its annotation says whole seconds; it takes parts of them.
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
    """Spark keeps the last hundred batches, and tells of one that reads nothing again and again."""
    for progress in query.recentProgress:
        batch = int(progress["batchId"])
        rows[batch] = max(rows.get(batch, 0), int(progress["numInputRows"]))
