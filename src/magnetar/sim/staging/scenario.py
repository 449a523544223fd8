"""The scenario of staging: what a world of jobs is made of, and how it settles: jobs run to their end, what is left is
swept, topics are read.

- left: after a sweep for which everything is old no intent and no staged ledger is left (I10). Of ledgers only if the
  TTL was longer than any task: otherwise a task may create one whose register a sweeper took for forgotten.

Read next: ../run.py, workload.py, watch.py
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.sim.device import Crash
from magnetar.sim.run import Scenario
from magnetar.sim.staging.cluster import StagingCluster, WorkerNode
from magnetar.sim.staging.options import FAULTS, TTL_MS, draw
from magnetar.sim.staging.watch import ALL, StagingWatch, observed
from magnetar.sim.staging.workload import Job, StagingWorkload
from magnetar.sim.topics import scenario as topics
from magnetar.sim.topics.nemesis import TopicNemesis
from magnetar.staging.sink import Sink
from magnetar.staging.sweeper import sweep

_LATER_MS: Final = 10 * 3_600_000  # Everything is old by then, whatever a clock says.
_SWEEPS_MAX: Final = 30


async def settle(cluster: StagingCluster, workload: StagingWorkload, watch: StagingWatch) -> None:
    if await topics.brokers_serve(cluster) and await _end_jobs(cluster, workload, watch):
        await _sweep_all(cluster, watch)
        await topics.end_apps(cluster, workload)
        await topics.unload_all(cluster)
        await topics.audit(cluster, watch)
    else:
        _stop_everybody(cluster, workload)


async def _end_jobs(cluster: StagingCluster, workload: StagingWorkload, watch: StagingWatch) -> bool:
    """False if something is wrong already: a job that lost its ledgers would try forever."""
    for job in workload.jobs:
        await cluster.wait_healed(partial(_is_over, job, watch), "V2", f"{job.history.owner} does not end")
    if watch.violations:
        return False
    workload.is_over = True
    for name, node in cluster.workers.items():
        if node.run is None:
            node.stopping.set()
        if await cluster.wait_healed(partial(_has_ended, cluster, node), "V2", f"{name} does not end"):
            await cluster.wait_exit(name)
    return True


def _is_over(job: Job, watch: StagingWatch) -> bool:
    return job.history.is_done or bool(watch.violations)


def _has_ended(cluster: StagingCluster, node: WorkerNode) -> bool:
    return node.is_done or (node.run is None and cluster.world.process(node.name) is None)


def _stop_everybody(cluster: StagingCluster, workload: StagingWorkload) -> None:
    workload.is_over = True
    for name, node in cluster.workers.items():
        node.is_done = True
        if cluster.world.process(name) is not None:
            cluster.crash(name, Crash.KILL)


async def _sweep_all(cluster: StagingCluster, watch: StagingWatch) -> None:
    async def run(client: LedgerClient) -> None:
        store = client.context.metadata.store
        sink = Sink(store, client, cluster.publisher("last sweep"), cluster.staging_options.settings, patience_s=5.0)
        for _ in range(_SWEEPS_MAX):
            now_ms = client.context.metadata.entropy.wall_ms() + _LATER_MS
            try:
                report = await sweep(store, client, now_ms, 0, sink=sink, finish_after_ms=0)
            except MagnetarError as error:
                watch.note(f"the last sweep failed: {error}")
            else:
                if not report.deleted and not report.failures and not report.finished:
                    return
            await asyncio.sleep(0.1)
        watch.violated("I10", "sweeping does not come to an end in a healed world")

    node = cluster.add_worker("last-sweeper", run)
    await cluster.wait_healed(partial(getattr, node, "is_done"), "V2", "the last sweep does not end")
    await cluster.wait_exit(node.name)
    if cluster.staging_options.ttl_ms >= TTL_MS:
        left = [each for each, known in watch.ledgers.items() if _is_staged(known.value)]
        if left:
            watch.violated("I10", f"staged ledgers are left: {left}")
    if watch.intents:
        watch.violated("I10", f"intents are left: {list(watch.intents)}")


def _is_staged(ledger: LedgerMetadata) -> bool:
    return ledger.custom_metadata.get("application") == b"magnetar"


STAGING: Final = Scenario(
    name="staging",
    world_seed="staging/{}",
    faults=FAULTS,
    must_happen=(
        "epochs committed",
        "commits failed",
        "attempts failed",
        "attempts for nothing",
        "intents",
        "epochs left behind",
        "staged ledgers swept",
        "intents finished by a sweeper",
        "take-overs",
        "point mid-copy",
        "point between-topics",
        "sessions expired",
    ),
    invariants=ALL,
    events_max=3_000_000,
    draw=draw,
    watch=StagingWatch,
    cluster=StagingCluster,
    workload=StagingWorkload,
    nemesis=TopicNemesis,
    settle=settle,
    end=topics.end,
    observed=observed,
)
