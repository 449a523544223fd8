"""delivery=dedup, on an executor: rows are published at once, and the broker drops what it had before.

Names:     producer `OWNER/PARTITION`, sequence ids by epoch and row: the same row of a repeated task has the same id.
Correct:   only if a repeated task has the same rows in the same order in the same partition. Of a query that shuffles,
           samples, or asks for the time or random numbers, rows are lost and doubled when a task is repeated.
Seen:      by readers while the batch is still being written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from magnetar.client.brokers import Brokers
from magnetar.client.options import ClientOptions
from magnetar.errors import MagnetarError
from magnetar.runtime.system_entropy import SystemEntropy
from magnetar.spark import failpoints
from magnetar.spark.cluster import cluster
from magnetar.spark.encoding.entries import Entry
from magnetar.spark.encoding.numbers import RowNumbers
from magnetar.spark.loop_thread import run
from magnetar.spark.writing.encoding_task import encoded, make_encoder
from magnetar.spark.writing.entry_producer import EntryProducer
from magnetar.spark.writing.plan import TaskIdentity, WritePlan
from magnetar.spark.writing.targets import find_target

_SEND_S: Final = 300.0  # For a few megabytes; each entry has a shorter limit of its own.
_CLOSE_S: Final = 300.0
_GIVE_UP_S: Final = 10.0
_FIND_S: Final = 120.0


def publish_rows(batches: Iterator[pa.RecordBatch], plan: WritePlan, task: TaskIdentity) -> int:
    """All rows of a task, each with its receipt. Returns how many; repeats that were dropped count."""
    found = cluster(plan.options.cluster)
    name = f"{task.owner}/{task.partition}"
    encoder = make_encoder(
        plan,
        task,
        name,
        found.settings.max_message_bytes,
        lambda topic: run(find_target(found, plan, topic), _FIND_S),
        lambda: RowNumbers(task.epoch),
    )
    producers = _Producers(plan.options.cluster.service_url, name)
    try:
        rows = sum(producers.send(entries) for entries in encoded(encoder, batches))
        run(producers.aclose(), _CLOSE_S)
    except BaseException:
        with contextlib.suppress(MagnetarError):
            run(producers.abandon(), _GIVE_UP_S)
        raise
    failpoints.reached("acked-not-returned", task.epoch)
    return rows


class _Producers:
    """Of one task: one for each destination."""

    def __init__(self, service_url: str, name: str) -> None:
        self._service_url = service_url
        self._name = name
        self._brokers: Brokers | None = None
        self._open: dict[str, EntryProducer] = {}

    def send(self, entries: Sequence[Entry]) -> int:
        run(self._send_all(entries), _SEND_S)
        return sum(entry.rows for entry in entries)

    async def _send_all(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            producer = self._open.get(entry.topic)
            if producer is None:
                producer = await self._begin(entry.topic)
            await producer.send(entry)

    async def _begin(self, topic: str) -> EntryProducer:
        if self._brokers is None:  # Made on the loop that it is used on.
            self._brokers = Brokers(self._service_url, SystemEntropy(), ClientOptions())
        producer = EntryProducer(self._brokers, topic, self._name)
        await producer.open()
        self._open[topic] = producer
        return producer

    async def aclose(self) -> None:
        for producer in self._open.values():
            await producer.aclose()
        await self._close_brokers()

    async def abandon(self) -> None:
        for producer in self._open.values():
            await producer.abandon()
        await self._close_brokers()

    async def _close_brokers(self) -> None:
        if self._brokers is not None:
            await self._brokers.aclose()
