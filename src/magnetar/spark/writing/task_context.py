"""Who a task is, as Spark tells it.

A write is not told its query and batch; its task is, by properties that are not documented: what is missing is an error
of its own, as nothing else could make a repeated batch known again.
"""

from __future__ import annotations

from typing import Final

from pyspark import TaskContext

from magnetar.errors import SparkFailedError
from magnetar.spark.writing.plan import STREAM_OWNER, TaskIdentity

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


def stream_task() -> TaskIdentity:
    context = _context()
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if not query or not batch:
        raise SparkFailedError(
            f"this Spark does not tell a task its query ({QUERY_ID}: {query}) and batch ({BATCH_ID}: {batch}): "
            "exactly-once needs both. Use PySpark 4.2 or newer; in foreachBatch write a batch with option "
            'jobId=f"{query}/{batch}"'
        )
    return _identity(context, STREAM_OWNER + query, int(batch))


def job_task(owner: str) -> TaskIdentity:
    return _identity(_context(), owner, 0)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SparkFailedError("rows are written by Spark's tasks only")
    return context


def _identity(context: TaskContext, owner: str, epoch: int) -> TaskIdentity:
    return TaskIdentity(owner, epoch, context.partitionId(), context.attemptNumber(), context.taskAttemptId())
