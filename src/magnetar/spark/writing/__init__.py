"""DataFrames into topics: what Spark's writers do, exactly once.

    options.py, plan.py            what is asked for, checked; what every task is told
    targets.py                     the topics, their partitions and schemas
    staging_task.py, committing.py delivery=exactly-once: tasks stage, the driver commits (staging/)
    dedup_task.py                  delivery=dedup: tasks publish, brokers drop repeats
    writers.py, task_context.py    what Spark calls; only these import pyspark

Read next: docs/spark-sink.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from magnetar.spark.cluster import cluster
from magnetar.spark.loop_thread import run
from magnetar.spark.writing.options import parse_write_options, require_append
from magnetar.spark.writing.plan import WritePlan, plan_write
from magnetar.spark.writing.targets import find_target

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from magnetar.spark.writing.writers import BatchWriter, StreamWriter

_FIND_S: Final = 120.0


def make_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> BatchWriter:
    """For `DataSource.writer`. ConfigError, TopicNotFoundError: before any task runs."""
    from magnetar.spark.writing.writers import BatchWriter

    return BatchWriter(_plan(schema, options, overwrite))


def make_stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> StreamWriter:
    """For `DataSource.streamWriter`."""
    from magnetar.spark.writing.writers import StreamWriter

    return StreamWriter(_plan(schema, options, overwrite))


def _plan(schema: StructType, options: Mapping[str, str], overwrite: bool) -> WritePlan:
    from pyspark.sql.pandas.types import to_arrow_schema

    require_append(overwrite=overwrite)
    parsed = parse_write_options(options)
    plan = plan_write(to_arrow_schema(schema, timezone="UTC"), parsed)
    if not parsed.topic:
        return plan
    return replace(plan, target=run(find_target(cluster(parsed.cluster), plan, parsed.topic), _FIND_S))
