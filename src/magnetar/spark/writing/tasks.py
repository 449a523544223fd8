"""Tasks on an executor: rows become entries, which are published at once (dedup) or staged (exactly-once).

Order:     exactly-once: rows go to staged ledgers, which no reader sees until the driver commits. All rows are taken,
           also those that the stager drops because their batch is published already (staging/stager.py): operators
           before the sink store their state when they have been read to their end, and the next batch needs it.
           dedup: rows are published at once, and the broker drops those that it had before. Readers see them while the
           batch is still being written. The producer is `OWNER/PARTITION`, sequence ids are by epoch and row: the same
           row of a repeated task has the same id.
Invariant: dedup is correct only if a repeated task has the same rows in the same order in the same partition. In a
           query that shuffles, samples, or uses the time or random numbers, rows are lost and doubled by a repeated
           task.
Limits:    `EntryProducer` sends finished entries as they are, and again until their receipt comes. Bytes without a
           receipt are bounded; `send` waits for room.
Failure:   an entry that the broker refuses, or does not answer in time, ends the producer's task: `check` raises.
Read next: staging/stager.py; writers.py
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from magnetar.client.brokers import Brokers
from magnetar.client.producing.sender import PendingSend, Sender
from magnetar.client.values import ClientOptions, ProducerOptions
from magnetar.errors import ClosedError, MagnetarError
from magnetar.runtime.system import SystemEntropy
from magnetar.spark import failpoints
from magnetar.spark.cluster import Cluster, cluster
from magnetar.spark.encoding.encoder import Entry, EntryEncoder, Numbers, RowNumbers, Seal, TaskNumbers, ValuesOf
from magnetar.spark.encoding.layout import read_values
from magnetar.spark.encoding.routing import Resolve, Router
from magnetar.spark.encoding.typed_values import avro_values, json_values
from magnetar.spark.loop_thread import run
from magnetar.spark.writing.plan import TaskIdentity, ValueSchema, WritePlan
from magnetar.spark.writing.targets import look_up
from magnetar.staging.records import Staged
from magnetar.staging.stager import Stager

_PENDING_BYTES_MAX: Final = 32 * 2**20


class EntryProducer(Sender):
    """Opened by `open`, ended by `aclose` or `abandon`."""

    def __init__(self, brokers: Brokers, topic: str, name: str) -> None:
        super().__init__(brokers, topic, ProducerOptions(name=name))
        self._pending_bytes = 0
        self._failure: MagnetarError | None = None
        self._answered = asyncio.Event()

    async def send(self, entry: Entry) -> None:
        """Sends an entry; waits only for room."""
        while self._pending_bytes and self._pending_bytes + len(entry.body) > _PENDING_BYTES_MAX:
            await self._wait_answer()
        self._check()
        size = len(entry.body)
        self._pending_bytes += size
        self._submit(
            PendingSend(
                sequence_id=entry.sequence_id,
                highest_sequence_id=entry.highest_sequence_id if entry.rows > 1 else 0,
                messages=max(1, entry.rows),
                body=entry.body,
                since=self._loop.time(),
                on_done=lambda _ledger, _entry: self._on_answer(size),
                on_failed=lambda error: self._on_answer(size, error),
            )
        )

    async def aclose(self) -> None:
        """Returns when everything has its receipt. Raises if something has not."""
        while self._pending_bytes:
            await self._wait_answer()
        self._check()
        await self._close_at_broker()
        await self._stop(ClosedError(f"the producer of {self.topic} is closed"))

    async def abandon(self) -> None:
        await self._close_at_broker()
        await self._stop(ClosedError(f"the producer of {self.topic} was given up"))

    async def _wait_answer(self) -> None:
        """Waits for a receipt; this ends, because an entry without one fails after a time."""
        self._check()
        self._answered.clear()
        await self._answered.wait()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._check_open()

    def _on_answer(self, size: int, error: MagnetarError | None = None) -> None:
        self._failure = self._failure or error
        self._pending_bytes -= size
        self._answered.set()


_GROUP_BYTES: Final = 16 * 2**20  # Handed to the loop's thread at a time; a record batch may be much larger.
_VALUES: dict[ValueSchema, ValuesOf] = {
    ValueSchema.NONE: read_values,
    ValueSchema.JSON: json_values,
    ValueSchema.AVRO: avro_values,
}
_SEND_S: Final = 300.0  # For a few megabytes; entries and ledger writers have shorter limits of their own.
_CLOSE_S: Final = 300.0
_GIVE_UP_S: Final = 10.0


def publish_rows(batches: Iterator[pa.RecordBatch], plan: WritePlan, task: TaskIdentity) -> int:
    """Publishes all rows of a task, each with its receipt. Returns their number, with dropped repeats."""
    found = cluster(plan.options.cluster)
    name = f"{task.owner}/{task.partition}"
    encoder = _encoder(found, plan, task, name, lambda: RowNumbers(task.epoch))
    producers = _Producers(plan.options.cluster.service_url, name)
    try:
        rows = sum(producers.send(entries) for entries in encoded(encoder, batches))
        run(producers.aclose(), _CLOSE_S)
    except BaseException:
        with contextlib.suppress(MagnetarError):
            run(producers.aclose(abandon=True), _GIVE_UP_S)
        raise
    failpoints.reached("acked-not-returned", task.epoch)
    return rows


class _Producers:
    def __init__(self, service_url: str, name: str) -> None:
        self._service_url = service_url
        self._name = name
        self._brokers: Brokers | None = None
        self._open: dict[str, EntryProducer] = {}

    def send(self, entries: Sequence[Entry]) -> int:
        run(self._send_all(entries), _SEND_S)
        return sum(entry.rows for entry in entries)

    async def _send_all(self, entries: Sequence[Entry]) -> None:
        if self._brokers is None:  # Made on the loop that uses it.
            self._brokers = Brokers(self._service_url, SystemEntropy(), ClientOptions())
        for entry in entries:
            if entry.topic not in self._open:
                producer = EntryProducer(self._brokers, entry.topic, self._name)
                await producer.open()
                self._open[entry.topic] = producer
            await self._open[entry.topic].send(entry)

    async def aclose(self, *, abandon: bool = False) -> None:
        for producer in self._open.values():
            await (producer.abandon() if abandon else producer.aclose())
        if self._brokers is not None:
            await self._brokers.aclose()


def stage_rows(batches: Iterator[pa.RecordBatch], plan: WritePlan, task: TaskIdentity) -> Staged:
    """Writes all rows of a task, durable and invisible. If it raises, nothing of this attempt counts."""
    found = cluster(plan.options.cluster)
    numbers = TaskNumbers(task.epoch, task.partition)
    encoder = _encoder(found, plan, task, task.owner, lambda: numbers)
    stager = Stager(
        found.ledgers,
        found.settings.staging,
        task.owner,
        task.epoch,
        task.partition,
        task.attempt,
        task.task_attempt_id,
        reached=failpoints.reached,
    )
    try:
        for entries in encoded(encoder, batches):
            run(_add_all(stager, entries), _SEND_S)
        return run(stager.finish(), _CLOSE_S)
    except BaseException:
        with contextlib.suppress(MagnetarError):
            run(stager.give_up(), _GIVE_UP_S)
        raise


def _encoder(
    found: Cluster, plan: WritePlan, task: TaskIdentity, producer_name: str, numbers: Callable[[], Numbers]
) -> EntryEncoder:
    message_bytes_max = found.settings.max_message_bytes
    return make_encoder(plan, task, producer_name, message_bytes_max, lambda topic: look_up(plan, topic), numbers)


def make_encoder(
    plan: WritePlan,
    task: TaskIdentity,
    producer_name: str,
    message_bytes_max: int,
    resolve: Resolve,
    numbers: Callable[[], Numbers],
) -> EntryEncoder:
    options, target = plan.options, plan.target
    seal = Seal(
        producer_name=producer_name,
        publish_ms=SystemEntropy().wall_ms(),
        compression=options.compression,
        entry_bytes=min(options.entry_bytes, message_bytes_max * 3 // 4),
        message_bytes_max=message_bytes_max,
        is_by_key=options.is_by_key,
    )
    known = {} if target is None else {options.topic: target}
    router = Router(lambda name: known.get(name) or resolve(name), options.topic, task.partition, seal.entry_bytes)
    return EntryEncoder(replace(plan.layout, time_zone=task.time_zone), _VALUES[options.schema], router, seal, numbers)


def encoded(encoder: EntryEncoder, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Entry]]:
    """Yields all entries of a task's rows, in groups that are worth a hand-over and do not fill the memory."""
    for batch in batches:
        yield from _groups(encoder.encode(batch))
    yield from _groups(encoder.finish())


def _groups(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    group: list[Entry] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += len(entry.body)
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


async def _add_all(stager: Stager, entries: Sequence[Entry]) -> None:
    for entry in entries:
        await stager.add(entry.topic, entry.body, entry.rows)
