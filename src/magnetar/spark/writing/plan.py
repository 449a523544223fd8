"""The plan of a write, made once on the driver and sent to every task. Picklable, and nothing is opened.

Format:    the owner publishes, over all restarts: `spark/QUERY` for a stream; for a batch with a jobId the job and its
           target (staging/records.py), for one without it a random name.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from magnetar.errors import ConfigError
from magnetar.spark.encoding.layout import Layout, plan_layout
from magnetar.spark.encoding.record_schema import record_definition
from magnetar.spark.encoding.routing import Target
from magnetar.spark.writing.options import Delivery, ValueSchema, WriteOptions
from magnetar.staging.records import JobIdentity

STREAM_OWNER = "spark/"
JOB_OWNER = "spark-job/"


@dataclass(frozen=True, slots=True)
class WritePlan:
    options: WriteOptions
    layout: Layout
    definition: str = ""
    """The definition of the value's schema; empty: there is none."""
    target: Target | None = None
    """The topic for all rows; None: each row has one."""


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """The attempt, the task and the batch."""

    owner: str
    epoch: int
    partition: int
    attempt: int
    task_attempt_id: int
    time_zone: str = ""
    """The session's zone; empty if the session sets none."""


def job_identity(job_id: str, topic: str) -> JobIdentity:
    """`topic` is the full name; empty if each row names its topic."""
    return JobIdentity(JOB_OWNER + job_id, topic)


def owner_of_job(options: WriteOptions, random_id: str) -> str:
    """Returns the owner of a batch. With delivery=dedup the target is left out: the brokers know repeats by topic
    already, and by the name of the producer, which must not change."""
    if options.job_id and options.delivery is Delivery.EXACTLY_ONCE:
        return job_identity(options.job_id, options.topic).owner
    return JOB_OWNER + (options.job_id or random_id)


def plan_write(schema: pa.Schema, options: WriteOptions) -> WritePlan:
    """Plans without the cluster; `target` is not known yet. Raises `ConfigError`."""
    is_typed = options.schema is not ValueSchema.NONE
    layout = plan_layout(schema, is_typed=is_typed)
    if not options.topic and not layout.topic:
        raise ConfigError(
            'which topic? Give option topic, as in .option("topic", "orders"), or a column topic. A table of '
            "CREATE TABLE keeps no options: use CREATE TEMPORARY VIEW … USING magnetar OPTIONS (topic '…')"
        )
    return WritePlan(options, layout, record_definition(layout.fields) if is_typed else "")
