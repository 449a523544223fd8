"""The driver's side of delivery=exactly-once: what all tasks staged becomes visible, once.

Read next: staging/commit.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.errors import StagingError
from magnetar.spark import failpoints
from magnetar.spark.cluster import ClusterOptions, cluster
from magnetar.spark.loop_thread import run
from magnetar.spark.writing.staging_task import staging_settings
from magnetar.staging.commit import Sink
from magnetar.staging.http_publisher import HttpPublisher
from magnetar.staging.records import Staged

_COMMIT_S: Final = 24 * 3600.0
"""A safety net only: as long as brokers copy, waiting is right, and the sink has its own patience when they do not."""
_RECOVER_S: Final = _COMMIT_S


def commit_epoch(options: ClusterOptions, epoch: int, staged: Sequence[Staged]) -> None:
    """Of a stream. Returns when everybody can read it. Nothing to do for an epoch without tasks."""
    if not staged:
        return
    owners = sorted({each.owner for each in staged})
    if len(owners) != 1:
        raise StagingError(f"tasks of several queries are to be committed as one: {', '.join(owners)}")
    run(_sink(options).commit(owners[0], epoch, staged), _COMMIT_S)


def commit_job(options: ClusterOptions, owner: str, staged: Sequence[Staged], *, is_passing: bool) -> None:
    """Of a batch. JobAlreadyCommittedError: another run with this id was first, and this one's rows are dropped."""
    run(_sink(options).commit(owner, 0, staged, is_job=not is_passing, is_passing=is_passing), _COMMIT_S)


def is_job_done(options: ClusterOptions, owner: str) -> bool:
    """What was decided and left behind by an earlier run is finished first."""
    return run(_sink(options).recover(owner), _RECOVER_S) >= 0


def _sink(options: ClusterOptions) -> Sink:
    found = cluster(options)
    settings = staging_settings(found.settings)
    return Sink(found.store, found.ledgers, HttpPublisher(found.http), settings, reached=failpoints.reached)
