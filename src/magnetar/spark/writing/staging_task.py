"""delivery=exactly-once, on an executor: rows go to staged ledgers, which nobody sees until the driver commits.

All rows:  are taken, also those that the stager drops because their batch is published already (stage.py): operators
           before the sink store their state when they have been read to their end, and the next batch needs it.
Read next: staging/stage.py; committing.py
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from magnetar.errors import MagnetarError
from magnetar.spark import failpoints
from magnetar.spark.cluster import Cluster, ClusterSettings, cluster
from magnetar.spark.encoding.entries import Entry
from magnetar.spark.encoding.numbers import TaskNumbers
from magnetar.spark.loop_thread import run
from magnetar.spark.writing.encoding_task import encoded, make_encoder
from magnetar.spark.writing.plan import TaskIdentity, WritePlan
from magnetar.spark.writing.targets import find_target
from magnetar.staging.records import Staged
from magnetar.staging.settings import StagingSettings
from magnetar.staging.stage import Stager

_ADD_S: Final = 300.0  # For a few megabytes. Ledger writers have shorter limits of their own.
_FINISH_S: Final = 300.0
_GIVE_UP_S: Final = 10.0
_FIND_S: Final = 120.0


def stage_rows(batches: Iterator[pa.RecordBatch], plan: WritePlan, task: TaskIdentity) -> Staged:
    """All rows of a task, durable and invisible. If it raises, nothing of this attempt counts."""
    found = cluster(plan.options.cluster)
    numbers = TaskNumbers(task.epoch, task.partition)
    encoder = make_encoder(
        plan,
        task,
        task.owner,
        found.settings.max_message_bytes,
        lambda name: run(find_target(found, plan, name), _FIND_S),
        lambda: numbers,
    )
    stager = make_stager(found, task)
    try:
        for entries in encoded(encoder, batches):
            run(_add_all(stager, entries), _ADD_S)
        return run(stager.finish(), _FINISH_S)
    except BaseException:
        with contextlib.suppress(MagnetarError):
            run(stager.give_up(), _GIVE_UP_S)
        raise


def make_stager(found: Cluster, task: TaskIdentity) -> Stager:
    return Stager(
        found.ledgers,
        staging_settings(found.settings),
        task.owner,
        task.epoch,
        task.partition,
        task.attempt,
        task.task_attempt_id,
        reached=failpoints.reached,
    )


def staging_settings(settings: ClusterSettings) -> StagingSettings:
    return StagingSettings(
        ensemble_size=settings.ensemble_size,
        write_quorum=settings.write_quorum,
        ack_quorum=settings.ack_quorum,
        digest_type=settings.digest_type,
    )


async def _add_all(stager: Stager, entries: Sequence[Entry]) -> None:
    for entry in entries:
        await stager.add(entry.topic, entry.body, entry.rows)
