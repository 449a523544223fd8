"""What a write is going to do, decided once on the driver and sent to every task. Picklable, and nothing is opened.

Owner:     who publishes, over all restarts: `spark/QUERY` for a stream, `spark-job/JOB` for a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from magnetar.errors import ConfigError
from magnetar.spark.encoding.layout import Layout, plan_layout
from magnetar.spark.encoding.record_schema import record_definition
from magnetar.spark.encoding.routing import Target
from magnetar.spark.writing.options import ValueSchema, WriteOptions

STREAM_OWNER = "spark/"
JOB_OWNER = "spark-job/"


@dataclass(frozen=True, slots=True)
class WritePlan:
    options: WriteOptions
    layout: Layout
    definition: str = ""
    """Of the value's schema; empty: there is none."""
    target: Target | None = None
    """The topic that all rows go to; None: each row says it."""


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Which attempt of which task of which batch this is."""

    owner: str
    epoch: int
    partition: int
    attempt: int
    task_attempt_id: int


def plan_write(schema: pa.Schema, options: WriteOptions) -> WritePlan:
    """All that can be said without the cluster; `target` is not known yet. Raises `ConfigError`."""
    is_typed = options.schema is not ValueSchema.NONE
    layout = plan_layout(schema, is_typed=is_typed)
    if not options.topic and not layout.topic:
        raise ConfigError(
            'which topic? Give option topic, as in .option("topic", "orders"), or a column topic. A table of '
            "CREATE TABLE keeps no options: use CREATE TEMPORARY VIEW … USING magnetar OPTIONS (topic '…')"
        )
    return WritePlan(options, layout, record_definition(layout.fields) if is_typed else "")
