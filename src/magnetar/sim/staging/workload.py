"""What happens in a world of staging: jobs, sweepers, ordinary producers beside them, and topics that move.

- driver: the next epoch that is not noted as committed → its tasks → commit → note it. Killed anywhere, it begins again
  there; so does a second one, which knows nothing of the first.
- task: tried again on another executor when it fails or takes too long; a late attempt continues, unheard.
- evaluated: by each attempt anew: some rows are left out, the order is another, and so is how rows are spread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.sim.seeds import seeded
from magnetar.sim.staging.cluster import StagingCluster, WorkerNode
from magnetar.sim.staging.options import TTL_MS
from magnetar.sim.staging.watch import Execution, JobHistory, Row, StagingWatch
from magnetar.sim.topics.workload import TopicWorkload
from magnetar.staging.records import JobIdentity, Staged
from magnetar.staging.sink import Sink
from magnetar.staging.stager import Stager
from magnetar.staging.sweeper import sweep
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata

# --- jobs -------------------------------------------------------------------------------------------------------------


_ATTEMPTS_MAX: Final = 6
_POLL_S: Final = 0.01
_PAUSE_S: Final = 0.1
_LEFT_OUT: Final = 0.1  # The share of rows that each evaluation leaves out.

Result = tuple[Staged, list[tuple[str, str]]]
"""What an attempt staged, and its rows as topic and text, in order."""


class TaskFailedError(MagnetarError):
    """A task failed as often as it may."""


class Job:
    def __init__(
        self,
        history: JobHistory,
        cluster: StagingCluster,
        watch: StagingWatch,
        random: Random,
        topics: Sequence[str] = (),
    ) -> None:
        """`topics` are those that rows go to; empty: all of the world."""
        self.history = history
        self._topics = topics or cluster.staging_options.world.topic_names
        self._cluster = cluster
        self._options = cluster.staging_options
        self._watch = watch
        self._random = random
        self._results: dict[int, Result | None] = {}
        """By token; None: the attempt has failed."""

    # --- the driver ---------------------------------------------------------------------------------------------------

    async def drive(self, name: str, client: LedgerClient) -> None:
        """In the process of a driver."""
        options, reached = self._options, self._cluster.points.of(name)
        sink = make_sink(name, client, self._cluster)
        while not self.history.is_done:
            epoch = self.history.committed + 1
            staged: list[Staged] = []
            try:
                await self.run_epoch(name, sink, epoch, staged)
                reached("before-commit-file", epoch)
                await asyncio.sleep(0)  # A process that is to end here ends here.
            except MagnetarError as error:
                self._watch.counters["commits failed"] += 1
                self._watch.note(f"{name}: epoch {epoch} failed: {type(error).__name__}: {error}")
                await sink.abort(self.history.owner, epoch, staged)
                if options.careless and (self.history.owner, epoch) in self._watch.decided:
                    self.note_committed(epoch, "epochs left behind")
                await asyncio.sleep(_PAUSE_S * (0.5 + self._random.random()))
            else:
                self._watch.note(f"{name}: epoch {epoch} of {self.history.owner} is committed")
                self.note_committed(epoch, "epochs committed")

    def note_committed(self, epoch: int, counted_as: str) -> None:
        self._watch.counters[counted_as] += 1
        self.history.committed = max(self.history.committed, epoch)

    async def run_epoch(
        self, name: str, sink: Sink, epoch: int, staged: list[Staged], *, is_batch: bool = False
    ) -> None:
        """`is_batch`: of a job that has this one epoch."""
        history = self.history
        plan = history.plans.setdefault(epoch, self._plan())
        results = await self._run_tasks(epoch, plan)
        staged += [result[0] for result in results]
        rows: dict[str, list[str]] = {}
        for _, texts in results:
            for topic, text in texts:
                rows.setdefault(topic, []).append(text)
        token = history.next_token()
        history.executions.setdefault(epoch, []).append(Execution(token, rows))
        self._watch.note(f"{name}: epoch {epoch} of {history.owner} was executed ({token})")
        await sink.commit(history.owner, epoch, staged, is_job=is_batch)

    def _plan(self) -> list[Row]:
        return [
            Row(number, self._random.choice(self._topics))
            for number in range(self._random.randint(0, self._options.rows_max))
        ]

    async def _run_tasks(self, epoch: int, plan: Sequence[Row]) -> list[Result]:
        count = self._random.randint(1, self._options.partitions_max)
        shares: list[list[Row]] = [[] for _ in range(count)]
        for row in plan:
            self._random.choice(shares).append(row)
        works = [self._run_task(epoch, partition, share) for partition, share in enumerate(shares)]
        results = await asyncio.gather(*works, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    async def _run_task(self, epoch: int, partition: int, rows: Sequence[Row]) -> Result:
        for attempt in range(_ATTEMPTS_MAX):
            tokens = self._begin(epoch, partition, attempt, rows)
            end_s = asyncio.get_running_loop().time() + self._patience_s(attempt)
            while asyncio.get_running_loop().time() < end_s:
                for token in tokens:
                    if (result := self._results.get(token)) is not None:
                        return result
                if all(token in self._results for token in tokens):
                    break
                await asyncio.sleep(_POLL_S)
            self._watch.counters["attempts failed"] += 1
        raise TaskFailedError(f"partition {partition} of epoch {epoch} failed {_ATTEMPTS_MAX} times")

    def _patience_s(self, attempt: int) -> float:
        """Returns how long an attempt is waited for. In a healed world it is longer each time: attempts that were given
        up continue, and on slow disks they would leave none of the others enough time."""
        factor = 2**attempt if self._cluster.points.is_over else 1
        return self._options.task_patience_s * factor

    def _begin(self, epoch: int, partition: int, attempt: int, rows: Sequence[Row]) -> list[int]:
        """One attempt, or two at once; none, if there is no executor."""
        is_double = "speculation" in self._options.faults and self._random.random() < 0.4
        tokens = []
        for _ in range(2 if is_double else 1):
            if not (able := self._cluster.running_workers("executor")):
                break
            node, token = self._random.choice(able), self.history.next_token()
            work = self._task(node, epoch, partition, attempt, rows, token)
            self._cluster.spawn(node, work, f"task {token} of {self.history.owner}")
            tokens.append(token)
        return tokens

    # --- a task -------------------------------------------------------------------------------------------------------

    async def _task(
        self, node: WorkerNode, epoch: int, partition: int, attempt: int, rows: Sequence[Row], token: int
    ) -> None:
        """In the process of an executor."""
        client = node.client
        assert client is not None
        owner, random = self.history.owner, self._random
        texts = [(row.topic, f"{owner}|{epoch}|{row.number}|{token}") for row in rows if random.random() > _LEFT_OUT]
        random.shuffle(texts)
        texts.sort(key=lambda each: each[0])  # What counts is the order within a topic.
        reached = self._cluster.points.of(node.name)
        is_repeat = self._watch.is_decided(owner, epoch)
        stager = Stager(client, self._options.settings, owner, epoch, partition, attempt, token, reached=reached)
        try:
            for number, (topic, text) in enumerate(texts):
                await stager.add(topic, _entry(owner, epoch, partition, number, text), 1)
                if random.random() < 0.1:
                    await asyncio.sleep(random.random() * 0.05)
            staged = await stager.finish()
            await asyncio.sleep(0)
        except asyncio.CancelledError:  # Its process ends in order.
            await stager.give_up()
            raise
        except MagnetarError as error:
            self._watch.note(f"attempt {token} failed: {type(error).__name__}: {error}")
            if is_repeat:
                self._watch.on_repeat_failed(owner, epoch, token, error)
            self._results[token] = None
            await stager.give_up()
        else:
            self._watch.counters["attempts"] += 1
            self._watch.counters["attempts for nothing"] += bool(texts) and not staged.parts
            self._results[token] = (staged, texts)


def make_sink(name: str, client: LedgerClient, cluster: StagingCluster) -> Sink:
    """Returns the sink of the driver of this name."""
    options = cluster.staging_options
    return Sink(
        client.context.metadata.store,
        client,
        cluster.publisher(name),
        options.settings,
        patience_s=options.patience_s,
        reached=cluster.points.of(name),
    )


def _entry(owner: str, epoch: int, partition: int, number: int, text: str) -> bytes:
    sequence_id = (epoch << 32) + ((partition & 0xFFF) << 20) + number
    metadata = MessageMetadata(producer_name=owner, sequence_id=sequence_id, publish_time=1)
    return with_checksum(metadata.SerializeToString(), text.encode())


# --- saves ------------------------------------------------------------------------------------------------------------

_TOPICS_MAX: Final = 2


class Save(NamedTuple):
    identity: JobIdentity
    job: Job


class Saves:
    def __init__(self, number: int, cluster: StagingCluster, watch: StagingWatch) -> None:
        options = cluster.staging_options
        self._random = seeded(f"{options.base.seed}/saves/{number}")
        self._cluster = cluster
        self._watch = watch
        self._batches = [
            [
                self._save(f"spark-job/query-{number}/{batch}", topic)
                for topic in options.world.topic_names[:_TOPICS_MAX]
            ]
            for batch in range(options.epochs)
        ]
        self._next = 0
        """The first batch that no driver has noted as done."""

    def _save(self, job_id: str, topic: str) -> Save:
        identity = JobIdentity(job_id, topic)
        history = JobHistory(identity.owner, epochs=1)
        return Save(identity, Job(history, self._cluster, self._watch, self._random, (topic,)))

    @property
    def jobs(self) -> list[Job]:
        return [save.job for saves in self._batches for save in saves]

    async def drive(self, name: str, client: LedgerClient) -> None:
        """In the process of a driver."""
        sink = make_sink(name, client, self._cluster)
        while self._next < len(self._batches):
            batch = self._next
            try:
                for save in self._batches[batch]:
                    await self._run(name, sink, save)
            except MagnetarError as error:
                self._watch.counters["saves failed"] += 1
                self._watch.note(f"{name}: batch {batch} failed: {type(error).__name__}: {error}")
                await asyncio.sleep(_PAUSE_S * (0.5 + self._random.random()))
            else:
                self._next = max(self._next, batch + 1)

    async def _run(self, name: str, sink: Sink, save: Save) -> None:
        if await sink.is_job_done(save.identity):
            self._watch.note(f"{name}: {save.identity.job} is in {save.identity.target} already")
            save.job.note_committed(0, "saves skipped")
            return
        staged: list[Staged] = []
        try:
            await save.job.run_epoch(name, sink, 0, staged, is_batch=True)
        except MagnetarError:
            await sink.abort(save.identity.owner, 0, staged)
            raise
        save.job.note_committed(0, "saves committed")


# --- the workload -----------------------------------------------------------------------------------------------------


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
