"""What happens in a world of staging: jobs, sweepers, ordinary producers beside them, and topics that move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.sim.seeds import seeded
from magnetar.sim.staging.cluster import StagingCluster
from magnetar.sim.staging.jobs import Job, Saves
from magnetar.sim.staging.options import TTL_MS
from magnetar.sim.staging.watch import JobHistory, StagingWatch
from magnetar.sim.topics.workload import TopicWorkload
from magnetar.staging.sink import Sink
from magnetar.staging.sweeper import sweep

_SWEEP_PATIENCE_S: Final = 0.5

Drive = Callable[[str, LedgerClient], Coroutine[Any, Any, None]]


class StagingWorkload(TopicWorkload):
    cluster: StagingCluster
    watch: StagingWatch

    def __init__(self, cluster: StagingCluster, watch: StagingWatch) -> None:
        super().__init__(cluster, watch)
        self.jobs: list[Job] = []
        self.is_over = False
        """Sweepers end."""

    def begin(self) -> None:
        super().begin()
        cluster, options = self.cluster, self.cluster.staging_options
        for number in range(options.executors):
            cluster.add_worker(f"executor-{number}")
        for number in range(options.jobs):
            self._add_job(number)
        for number in range(options.saves):
            self._add_saves(number)
        for number in range(options.sweepers):
            name = f"sweeper-{number}"
            cluster.add_worker(name, lambda client, name=name: self._sweep_again(name, client))  # type: ignore[misc]

    def on_healed(self) -> None:
        """Processes pass the steps of the protocol unharmed."""
        self.cluster.points.is_over = True

    def _add_job(self, number: int) -> None:
        options = self.cluster.staging_options
        history = JobHistory(f"spark/job-{number}", options.epochs)
        self.watch.jobs.append(history)
        random = seeded(f"{options.base.seed}/job/{number}")
        job = Job(history, self.cluster, self.watch, random)
        self.jobs.append(job)
        self._add_drivers(f"driver-{number}", job.drive)

    def _add_saves(self, number: int) -> None:
        saves = Saves(number, self.cluster, self.watch)
        self.jobs += saves.jobs
        self.watch.jobs += [job.history for job in saves.jobs]
        self._add_drivers(f"driver-of-saves-{number}", saves.drive)

    def _add_drivers(self, prefix: str, drive: Drive) -> None:
        for which in range(2 if "drivers" in self.cluster.staging_options.faults else 1):
            name = f"{prefix}-{which}"
            self.cluster.add_worker(name, lambda client, name=name: drive(name, client))  # type: ignore[misc]

    async def _sweep_again(self, name: str, client: LedgerClient) -> None:
        options, watch = self.cluster.staging_options, self.watch
        random = seeded(f"{options.base.seed}/sweeping/{name}")
        entropy, store = client.context.metadata.entropy, client.context.metadata.store
        publisher = self.cluster.publisher(name)
        sink = Sink(store, client, publisher, options.settings, patience_s=_SWEEP_PATIENCE_S)
        while not self.is_over:
            await asyncio.sleep(options.sweep_gap_s * random.random())
            # In a healed world it is as docs/staging.md wants it: longer than a task runs and than clocks are wrong.
            ttl_ms = TTL_MS if self.cluster.points.is_over else options.ttl_ms
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
