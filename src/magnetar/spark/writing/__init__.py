"""DataFrames into topics, exactly once.

Only writers.py imports pyspark.
Read next: plan.py, targets.py, tasks.py (executors), writers.py (Spark's side), docs/spark-sink.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from magnetar.spark.cluster import cluster
from magnetar.spark.loop_thread import run
from magnetar.spark.writing.plan import WritePlan, parse_write_options, plan_write, require_append
from magnetar.spark.writing.targets import find_target

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from magnetar.spark.writing.writers import BatchWriter, StreamWriter

_FIND_S: Final = 120.0


def make_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> BatchWriter:
    """Makes the writer for `DataSource.writer`. Raises ConfigError, TopicNotFoundError before any task runs."""
    from magnetar.spark.writing.writers import BatchWriter

    require_append(overwrite=overwrite)
    return BatchWriter(_plan(schema, options))


def make_stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> StreamWriter:
    """Makes the writer for `DataSource.streamWriter`."""
    from magnetar.spark.writing.writers import StreamWriter

    require_append(overwrite=overwrite, is_stream=True)
    return StreamWriter(_plan(schema, options))


def _plan(schema: StructType, options: Mapping[str, str]) -> WritePlan:
    from pyspark.sql.pandas.types import to_arrow_schema

    parsed = parse_write_options(options)
    plan = plan_write(to_arrow_schema(schema, timezone="UTC"), parsed)
    if not parsed.topic:
        return plan
    return replace(plan, target=run(find_target(cluster(parsed.cluster), plan, parsed.topic), _FIND_S))
