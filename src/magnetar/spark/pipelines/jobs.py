"""Spark's jobs as a pipeline's user sees them: their progress on a display, their failure in one line to act on.

Format:    a worker's exception arrives as text inside Java's, with its traceback. Its last line is the error: that of
           our code in Spark's workers, if it was that.
           A pipeline's `run` takes a `Reporter`, `SILENT` by default. The command line brings one that draws.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from magnetar.errors import MagnetarError, SparkFailedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_CHARACTERS_MAX: Final = 600
_RAISED = re.compile(
    r"^[ \t]*(?P<name>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Loss))(?:\(.*?\))?: (?P<text>.+)$", re.MULTILINE
)
_SLOW_START: Final = "Python worker failed to connect back"
_OURS: Final = "magnetar."
_SPARKS: Final = ("org.apache.spark", "py4j.", "pyspark.", "java.lang.Runtime")
_CLASS = re.compile(r"^\[(?P<name>[A-Z0-9_.]+)\] ?")
_KNOWN: Final = {
    "PATH_NOT_FOUND": "there is no such path",
    "UNABLE_TO_INFER_SCHEMA": "there are no Parquet files with rows",
    "PATH_ALREADY_EXISTS": "that path exists already",
}


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turns Spark's errors in the block into SparkFailedError: "{doing}: why"."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except MagnetarError:
        raise
    except (PySparkException, Py4JError) as error:
        raise SparkFailedError(f"{doing}: {reason(str(error))}") from error


def is_slow_start(text: str) -> bool:
    """Reports whether a worker's process was not ready in time; nothing was done yet."""
    return _SLOW_START in text


def reason(text: str) -> str:
    found = [(match["name"], match["text"].strip()) for match in _RAISED.finditer(text)]
    ours = [said for name, said in found if name.startswith(_OURS)]
    foreign = [f"{name.rsplit('.', 1)[-1]}: {said}" for name, said in found if not name.startswith(_SPARKS)]
    said = ours[-1] if ours else foreign[-1] if foreign else _first_line(text)
    return said if len(said) <= _CHARACTERS_MAX else f"{said[:_CHARACTERS_MAX]}…"


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "Spark does not say why")
    named = _CLASS.match(line)
    if named is None:
        return line
    rest = line[named.end() :].split(" SQLSTATE:", maxsplit=1)[0]
    known = _KNOWN.get(named["name"])
    return f"{known}: {rest}" if known else rest


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
