"""A Spark driver for the kill tests: a program that copies one topic to another, and can be killed at any moment.

    python -m interop.spark.jobs MASTER DIRECTORY

Prints `ready`, then begins a job for each line of JSON, and prints one line when it is over:
    {"source": topic, "target": topic, "checkpoint": directory, "service_url": …, "admin_url": …, "per_trigger": 2000,
     "until": "end" | "stopped"}
`end` copies what there is; `stopped` goes on until an empty line comes, and begins again by itself after an error, as
whoever runs such a job would have it do. The answer is {"target": topic, "batches": N, "errors": […]}.

Query:     rows are mixed on the way (mixing.py), so that no two evaluations of a batch are alike.
Tasks:     a failed one is tried again, as on any cluster; `local[2]` alone would not.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from interop.spark.mixing import COLUMNS, mix_keys
from magnetar.spark import register
from magnetar.spark.session import make_session

_ERRORS_MAX: Final = 100
_ERROR_CHARACTERS_MAX: Final = 2_000
ENTRY_BYTES: Final = 32_768  # So that a batch is many entries: a copy can be stopped between two of them.
_STEP_S: Final = 1  # Whole seconds, as Spark wants them.
_TICK_S: Final = 0.2
_AGAIN_AFTER_S: Final = 1
_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "4",
    "spark.driver.memory": "1g",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # It starts sooner, and ends soon.
}


def start(spark: SparkSession, asked: dict[str, Any]) -> StreamingQuery:
    cluster = {"serviceUrl": asked["service_url"], "adminUrl": asked["admin_url"]}
    rows = (
        spark.readStream.format("magnetar")
        .options(**cluster)
        .option("topic", asked["source"])
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", asked["per_trigger"])
        .load()
        .select("key", "value")
        .mapInArrow(mix_keys, COLUMNS)
    )
    writer = rows.writeStream.format("magnetar").options(**cluster).option("topic", asked["target"])
    writer = writer.option("batchingMaxBytes", ENTRY_BYTES).option("checkpointLocation", asked["checkpoint"])
    return (writer.trigger(availableNow=True) if asked["until"] == "end" else writer).start()


class Job:
    """Begun when it is made."""

    def __init__(self, spark: SparkSession, asked: dict[str, Any]) -> None:
        self._spark = spark
        self._asked = asked
        self._errors: list[str] = []
        self._batches = 0
        self._query: StreamingQuery | None = None
        self._start()

    def is_over(self, *, is_to_end: bool) -> bool:
        """Looks after it. One that failed is begun again, if it is of that kind."""
        goes_on_for_ever = self._asked["until"] == "stopped"
        try:
            if self._query is not None:
                if is_to_end and goes_on_for_ever:
                    self._query.processAllAvailable()
                    self._query.stop()
                if self._query.isActive:
                    return False
                self._query.awaitTermination(_STEP_S)  # Raises what it ended with.
                self._batches += len(self._query.recentProgress)
                return True
        except (PySparkException, Py4JError) as error:
            self._note(error)
        if not goes_on_for_ever or len(self._errors) >= _ERRORS_MAX:
            return True
        time.sleep(_AGAIN_AFTER_S)
        self._start()
        return False

    def _start(self) -> None:
        try:
            self._query = start(self._spark, self._asked)
        except (PySparkException, Py4JError) as error:
            self._query = None
            self._note(error)

    def _note(self, error: Exception) -> None:
        self._errors.append(str(error)[-_ERROR_CHARACTERS_MAX:])

    def answer(self) -> dict[str, Any]:
        return {"target": self._asked["target"], "batches": self._batches, "errors": self._errors}


def main() -> None:
    master, directory = sys.argv[1:]
    settings = {**_SETTINGS, "spark.local.dir": directory, "spark.sql.warehouse.dir": f"{directory}/warehouse"}
    spark = make_session("kill test", master, settings, Path(directory) / "spark.log")
    register(spark)
    lines: queue.Queue[str] = queue.Queue(64)
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    print("ready", flush=True)
    _serve(spark, lines)
    spark.stop()


def _serve(spark: SparkSession, lines: queue.Queue[str]) -> None:
    """On the main thread: Spark knows its session there."""
    jobs: list[Job] = []
    is_to_end = False
    while True:
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=_TICK_S)
            if not line:
                return
            if line.strip():
                jobs.append(Job(spark, json.loads(line)))
            else:
                is_to_end = True
        for job in list(jobs):
            if job.is_over(is_to_end=is_to_end):
                jobs.remove(job)
                print(json.dumps(job.answer()), flush=True)


def _read_lines(lines: queue.Queue[str]) -> None:
    """The empty text is the end."""
    for line in sys.stdin:
        lines.put(line)
    lines.put("")


if __name__ == "__main__":
    main()
