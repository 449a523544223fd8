"""What Spark calls: a writer for batches, one for streams.

Batch:     Spark pickles this one object to every task and to `commit`, so an id made when it is made is the job's.
Stream:    a new object for every micro-batch, and another one for `commit`: only the commit messages connect them.
Abort:     deletes nothing. It follows a `commit` that raised, too, which may have taken effect, and runs while tasks
           still write; what is left is the sweeper's (staging/sweeper.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from magnetar.runtime.system_entropy import SystemEntropy
from magnetar.spark import failpoints
from magnetar.spark.worker_memory import freeze_imports
from magnetar.spark.writing.committing import commit_epoch, commit_job, is_job_done
from magnetar.spark.writing.dedup_task import publish_rows
from magnetar.spark.writing.options import Delivery
from magnetar.spark.writing.plan import JOB_OWNER, TaskIdentity, WritePlan
from magnetar.spark.writing.staging_task import stage_rows
from magnetar.spark.writing.task_context import job_task, stream_task
from magnetar.staging.records import Staged


@dataclass
class TaskDone(WriterCommitMessage):
    """What a task tells the driver."""

    staged: str = ""
    """A `Staged` as JSON; empty where nothing is to be committed."""


class BatchWriter(DataSourceArrowWriter):
    """Made on the driver; `plan` knows its topic."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        job_id = plan.options.job_id or SystemEntropy().uuid().hex
        self._owner = JOB_OWNER + job_id
        self._is_passing = not plan.options.job_id
        is_staged = plan.options.delivery is Delivery.EXACTLY_ONCE
        self._is_done = not self._is_passing and is_staged and is_job_done(plan.options.cluster, self._owner)
        """By an earlier run: this one writes nothing."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        return TaskDone() if self._is_done else _write(iterator, self._plan, job_task(self._owner))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = _staged(messages)
        if self._is_done or not staged:
            return
        commit_job(self._plan.options.cluster, self._owner, staged, is_passing=self._is_passing)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is deleted."""


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        return _write(iterator, self._plan, stream_task())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name.
        commit_epoch(self._plan.options.cluster, batchId, _staged(messages))
        failpoints.reached("before-commit-file", batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is deleted."""


def _write(batches: Iterator[pa.RecordBatch], plan: WritePlan, task: TaskIdentity) -> TaskDone:
    if plan.options.delivery is Delivery.DEDUP:
        publish_rows(batches, plan, task)
        return TaskDone()
    return TaskDone(stage_rows(batches, plan, task).to_json())


def _staged(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    return [Staged.from_json(each.staged) for each in messages if isinstance(each, TaskDone) and each.staged]


freeze_imports()
