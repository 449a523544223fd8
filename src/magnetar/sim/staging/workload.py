"""What happens in a world of staging: jobs, sweepers, ordinary producers beside them, and topics that move."""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.sim.seeds import seeded
from magnetar.sim.staging.cluster import StagingCluster
from magnetar.sim.staging.history import JobHistory
from magnetar.sim.staging.job import Job
from magnetar.sim.staging.options import TTL_MS
from magnetar.sim.staging.watch import StagingWatch
from magnetar.sim.topics.workload import TopicWorkload
from magnetar.staging.commit import Sink
from magnetar.staging.sweeper import sweep

_SWEEP_PATIENCE_S: Final = 0.5


class StagingWorkload(TopicWorkload):
    def __init__(self, cluster: StagingCluster, watch: StagingWatch) -> None:
        super().__init__(cluster, watch)
        self.staging_cluster = cluster
        self.staging_watch = watch
        self.jobs: list[Job] = []
        self.is_over = False
        """Sweepers end."""

    def begin(self) -> None:
        super().begin()
        cluster, options = self.staging_cluster, self.staging_cluster.staging_options
        for number in range(options.executors):
            cluster.add_worker(f"executor-{number}")
        for number in range(options.jobs):
            self._add_job(number)
        for number in range(options.sweepers):
            name = f"sweeper-{number}"
            cluster.add_worker(name, lambda client, name=name: self._sweep_again(name, client))  # type: ignore[misc]

    def _add_job(self, number: int) -> None:
        options = self.staging_cluster.staging_options
        history = JobHistory(f"spark/job-{number}", options.epochs)
        self.staging_watch.jobs[history.owner] = history
        random = seeded(f"{options.world.base.seed}/job/{number}")
        job = Job(history, self.staging_cluster, self.staging_watch, random)
        self.jobs.append(job)
        for which in range(2 if "drivers" in options.faults else 1):
            name = f"driver-{number}-{which}"
            self.staging_cluster.add_worker(name, lambda client, name=name: job.drive(name, client))  # type: ignore[misc]

    async def _sweep_again(self, name: str, client: LedgerClient) -> None:
        options, watch = self.staging_cluster.staging_options, self.staging_watch
        random = seeded(f"{options.world.base.seed}/sweeping/{name}")
        entropy, store = client.parts.metadata.entropy, client.parts.metadata.store
        publisher = self.staging_cluster.publisher(name)
        sink = Sink(store, client, publisher, options.settings, patience_s=_SWEEP_PATIENCE_S)
        while not self.is_over:
            await asyncio.sleep(options.sweep_gap_s * random.random())
            # In a healed world it is as docs/staging.md wants it: longer than a task runs and than clocks are wrong.
            ttl_ms = TTL_MS if self.staging_cluster.points.is_over else options.ttl_ms
            try:
                report = await sweep(
                    store,
                    client,
                    entropy.wall_ms(),
                    ttl_ms,
                    sink=sink,
                    finish_after_ms=options.finish_after_ms,
                )
            except MagnetarError as error:
                watch.note(f"{name}: {type(error).__name__}: {error}")
                continue
            watch.counters["sweeps"] += 1
            watch.counters["staged ledgers swept"] += len(report.deleted)
            watch.counters["intents finished by a sweeper"] += len(report.finished)
