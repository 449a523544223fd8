"""Replay: rows of Parquet files become messages of a topic, all of them or none, and once for each job id.

    result = run(spark, ReplayOptions(cluster=ClusterOptions.of(), path="/archive/orders", topic="orders-again"))

Format:    the columns are `value`, and if they exist `key`, `event_time` and `properties` (or `headers`): an archive
           has them all. Other columns are left out: the broker assigns ids and publish times anew.
Order:     an archive's rows in the order of each partition (`partition`, `index`); otherwise as the files have them.
Invariant: without a job id, one is made from the topic, the options, and the files' names, sizes and times: the same
           command after a failure continues the same job, and after a success does nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from magnetar.client.topics import full_name
from magnetar.config.load import nearest
from magnetar.errors import ArgumentError
from magnetar.spark.cluster import ClusterOptions
from magnetar.spark.pipelines.endpoints import Files, files_read, plain_path, write_topic
from magnetar.spark.pipelines.jobs import SILENT, Reporter, tasks_shown, translated
from magnetar.spark.writing.writers import is_job_done

_PARTS: Final = ("event_time", "properties", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    cluster: ClusterOptions
    path: str
    """Parquet files: a directory, an archive, a glob."""
    topic: str
    job_id: str = ""
    value_column: str = "value"
    key_column: str = ""
    """Empty: `key`, if it exists."""
    where: str = ""
    """Only rows for which this SQL expression is true."""
    keep_partitions: bool = False
    """Each message goes to the partition of the column `partition`; otherwise its key decides."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    topic: str
    job_id: str
    messages: int
    was_done: bool
    """This job was committed before: nothing was written now."""

    def document(self) -> dict[str, Any]:
        return {"topic": self.topic, "jobId": self.job_id, "messages": self.messages, "alreadyDone": self.was_done}


def run(spark: SparkSession, options: ReplayOptions, reporter: Reporter = SILENT) -> ReplayResult:
    topic = full_name(options.topic)
    with translated(f"{options.path} could not be replayed"):
        rows = spark.read.parquet(options.path)
        messages = messages_of(rows, options)
        job_id = options.job_id or f"replay-{_fingerprint(spark, rows, options)}"
        if is_job_done(options.cluster, job_id, topic):
            return ReplayResult(topic, job_id, 0, was_done=True)
        with tasks_shown(spark, reporter, "replaying"):
            count = messages.count()
            write_topic(messages, options.cluster, topic, job_id)
    return ReplayResult(topic, job_id, count, was_done=False)


def messages_of(rows: DataFrame, options: ReplayOptions) -> DataFrame:
    """Returns the columns of messages, in their order. Raises ArgumentError if a named column is missing."""
    chosen = {"value": _column(rows, options.value_column, "value")}
    if options.key_column or "key" in rows.columns:
        chosen["key"] = _column(rows, options.key_column or "key", "key")
    if options.keep_partitions:
        chosen["partition"] = _column(rows, "partition", "partition")
    chosen |= {name: name for name in _PARTS if name in rows.columns and name not in chosen.values()}
    picked = rows.where(options.where) if options.where else rows
    if "index" in rows.columns:
        picked = picked.orderBy(*(name for name in ("partition", "index") if name in rows.columns))
    return picked.select(*(f.col(f"`{column}`").alias(part) for part, column in chosen.items()))


def _column(rows: DataFrame, name: str, part: str) -> str:
    if name not in rows.columns:
        names = list(rows.columns)
        hint = f"; did you mean {nearest(name, names)!r}? There are: {', '.join(names)}" if names else ""
        raise ArgumentError(f"there is no column {name!r} to take the {part} of messages from{hint}")
    return name


def _fingerprint(spark: SparkSession, rows: DataFrame, options: ReplayOptions) -> str:
    files = Files(spark)
    paths = files_read(rows)
    folders = sorted({path.rsplit("/", 1)[0] for path in paths})
    known = {plain_path(file.path): file for folder in folders for file in files.list(folder)}
    what = [full_name(options.topic), options.value_column, options.key_column, options.where]
    what += ["keep partitions"] if options.keep_partitions else []
    what += [f"{path} {known.get(path)}" for path in sorted(map(plain_path, paths))]
    return hashlib.sha256("\n".join(what).encode()).hexdigest()[:24]
