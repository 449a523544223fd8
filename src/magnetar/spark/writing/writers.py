"""The writers that Spark calls, one for batches, one for streams; and the commit on the driver.

Order:     Spark pickles a batch's writer to every task and to `commit`, so its id is the job's. A stream has a new
           writer for every micro-batch, and another one for `commit`: only the commit messages connect them.
Failure:   `abort` deletes nothing. It also follows a `commit` that raised, which may have taken effect, and runs while
           tasks still write; the sweeper deletes the rest (staging/sweeper.py). A stream's task learns its query and
           batch from properties that are not documented; without them it fails, as nothing else identifies a repeated
           batch.
Read next: staging/sink.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from magnetar.errors import SparkFailedError, StagingError
from magnetar.runtime.system import SystemEntropy
from magnetar.spark import failpoints
from magnetar.spark.cluster import ClusterOptions, cluster
from magnetar.spark.loop_thread import run
from magnetar.spark.source import freeze_imports
from magnetar.spark.writing.plan import (
    STREAM_OWNER,
    Delivery,
    TaskIdentity,
    WritePlan,
    job_identity,
    owner_of_job,
    parse_write_options,
    plan_write,
    require_append,
)
from magnetar.spark.writing.targets import look_up
from magnetar.spark.writing.tasks import publish_rows, stage_rows
from magnetar.staging.publisher import HttpPublisher
from magnetar.staging.records import Staged
from magnetar.staging.sink import Sink

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
TIME_ZONE: Final = "spark.sql.session.timeZone"  # Spark passes SQL settings that are set to tasks, as properties.


def make_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> BatchWriter:
    """Makes the writer for `DataSource.writer`. Raises ConfigError, TopicNotFoundError before any task runs."""
    require_append(overwrite=overwrite)
    return BatchWriter(_plan(schema, options))


def make_stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> StreamWriter:
    require_append(overwrite=overwrite, is_stream=True)
    return StreamWriter(_plan(schema, options))


def _plan(schema: StructType, options: Mapping[str, str]) -> WritePlan:
    from pyspark.sql.pandas.types import to_arrow_schema

    parsed = parse_write_options(options)
    plan = plan_write(to_arrow_schema(schema, timezone="UTC"), parsed)
    return replace(plan, target=look_up(plan, parsed.topic)) if parsed.topic else plan


@dataclass
class TaskDone(WriterCommitMessage):
    staged: str = ""
    """A `Staged` as JSON; empty where nothing is to be committed."""


class BatchWriter(DataSourceArrowWriter):
    """Made on the driver; `plan` knows its topic."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        options = plan.options
        self._owner = owner_of_job(options, SystemEntropy().uuid().hex)
        self._is_passing = not options.job_id
        is_once = bool(options.job_id) and options.delivery is Delivery.EXACTLY_ONCE
        self._is_done = is_once and is_job_done(options.cluster, options.job_id, options.topic)
        """Whether an earlier run did it: this one writes nothing."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        return TaskDone() if self._is_done else _write(iterator, self._plan, _identity(_context(), self._owner, 0))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = _staged(messages)
        if staged and not self._is_done:
            # JobAlreadyCommittedError: another run with this id was first, and this one's rows are dropped.
            sink = _sink(self._plan.options.cluster)
            is_job = not self._is_passing
            run(sink.commit(self._owner, 0, staged, is_job=is_job, is_passing=self._is_passing), _COMMIT_S)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Deletes nothing."""


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        return _write(iterator, self._plan, stream_task())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name.
        staged = _staged(messages)
        owners = sorted({each.owner for each in staged})
        if len(owners) > 1:
            raise StagingError(f"tasks of several queries cannot be committed as one: {', '.join(owners)}")
        if owners:  # An epoch without tasks has none.
            run(_sink(self._plan.options.cluster).commit(owners[0], batchId, staged), _COMMIT_S)
        failpoints.reached("before-commit-file", batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Deletes nothing."""


def _write(batches: Iterator[pa.RecordBatch], plan: WritePlan, task: TaskIdentity) -> TaskDone:
    if plan.options.delivery is Delivery.DEDUP:
        publish_rows(batches, plan, task)
        return TaskDone()
    return TaskDone(stage_rows(batches, plan, task).to_json())


def _staged(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    return [Staged.from_json(each.staged) for each in messages if isinstance(each, TaskDone) and each.staged]


def stream_task() -> TaskIdentity:
    context = _context()
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if not query or not batch:
        raise SparkFailedError(
            f"this Spark does not give a task its query ({QUERY_ID}: {query}) and batch ({BATCH_ID}: {batch}): "
            "exactly-once needs both. Use PySpark 4.2 or newer; in foreachBatch write a batch, with an option jobId "
            'that names query, batch and sink: jobId=f"{query_id}/{batch_id}/orders"'
        )
    return _identity(context, STREAM_OWNER + query, int(batch))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SparkFailedError("rows can be written only by Spark's tasks")
    return context


def _identity(context: TaskContext, owner: str, epoch: int) -> TaskIdentity:
    return TaskIdentity(
        owner,
        epoch,
        context.partitionId(),
        context.attemptNumber(),
        context.taskAttemptId(),
        context.getLocalProperty(TIME_ZONE) or "",
    )


_COMMIT_S: Final = 24 * 3600.0
"""A safety net only: waiting is right while brokers copy, and the sink has its own patience when they do not."""


def is_job_done(options: ClusterOptions, job_id: str, topic: str) -> bool:
    """Reports, logs and counts whether an earlier run has published this job to this topic; an unfinished decision of
    it is finished first. `topic` is the full name; empty if each row names its topic."""
    return run(_sink(options).is_job_done(job_identity(job_id, topic)), _COMMIT_S)


def _sink(options: ClusterOptions) -> Sink:
    found = cluster(options)
    publisher = HttpPublisher(found.http)
    return Sink(found.store, found.ledgers, publisher, found.settings.staging, reached=failpoints.reached)


freeze_imports()
