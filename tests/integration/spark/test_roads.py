"""A process that knows only a broker's addresses: ledgers written and read, a topic read past its broker, a kill.

One test, one process: starting it is what costs.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from magnetar.client.client import PulsarClient
from magnetar.client.values import ProducerOptions
from magnetar.errors import (
    AccessDeniedError,
    BookieUnavailableError,
    InvalidCursorPositionError,
    TopicNotFoundError,
)
from magnetar.metadata.store import Node
from magnetar.runtime.system import SystemRuntime
from magnetar.spark.cluster import Cluster, ClusterOptions, SegmentLedger
from magnetar.spark.cluster import cluster as cluster_of_process
from magnetar.spark.loop_thread import iterate, run
from magnetar.testing.processes.servers import StandaloneProcess
from magnetar.topic.position import EARLIEST, Position

TOPIC = "persistent://public/default/roads"


async def test_everything_a_spark_process_needs_goes_through_a_brokers_two_ports(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data") as process:
        cluster = await Cluster.open(ClusterOptions.of(process.url, process.admin_url))
        try:
            await _ledgers_are_written_and_read_back(cluster)
            await _a_topic_is_read_past_its_broker(cluster, process)
            assert await asyncio.to_thread(_read_as_spark_does, cluster.options) == 21
            await _a_kill_is_waited_out(cluster, process)
        finally:
            await cluster.aclose()


async def _ledgers_are_written_and_read_back(cluster: Cluster) -> None:
    async with await cluster.ledgers.create(ensemble_size=1) as writer:
        for number in range(100):
            await writer.add(b"entry %d" % number)
    reader = await cluster.ledgers.open(writer.ledger_id)
    assert [bytes(entry.payload) async for entry in reader] == [b"entry %d" % number for number in range(100)]
    await cluster.ledgers.delete(writer.ledger_id)
    left = await cluster.ledgers.create(ensemble_size=1)  # Its writer ends; another client closes it.
    await left.add(b"kept")
    await left.release()
    assert (await cluster.ledgers.recover(left.ledger_id)).last_entry_id == 0
    with pytest.raises(AccessDeniedError):
        await cluster.store.get("/admin/clusters")


async def _a_topic_is_read_past_its_broker(cluster: Cluster, process: StandaloneProcess) -> None:
    with pytest.raises(TopicNotFoundError, match="magnetar topics create"):
        await cluster.segments(TOPIC)
    assert await cluster.partitions(TOPIC) == 0
    async with PulsarClient(process.url, SystemRuntime().entropy) as client:
        producer = await client.producer(TOPIC, ProducerOptions())
        for number in range(20):
            await producer.send(b"message %d" % number)
        segments = await cluster.segments(TOPIC)
        (ledger,) = segments.ledgers
        assert (ledger.first_index, segments.next_index) == (0, 20)
        chunks = [chunk async for chunk in cluster.read_entries(ledger, 0, ledger.entries - 1)]
        entries = [bytes(entry) for _, payloads in chunks for entry in payloads]
        assert all(entry.endswith(b"message %d" % number) for number, entry in enumerate(entries))
        waiting = asyncio.ensure_future(cluster.wait(TOPIC, segments.last_confirmed, timeout_ms=10_000))
        await producer.send(b"more")
        assert (await waiting).next_index == 21
    assert (await cluster.wait(TOPIC, Position(ledger.ledger_id, 20), timeout_ms=1)).next_index == 21
    assert await cluster.cut(TOPIC, EARLIEST, Position(ledger.ledger_id, 21), messages=5) == (ledger.ledger_id, 5)
    assert (await cluster.place(TOPIC, "-3")).position == (ledger.ledger_id, 18)
    with pytest.raises(InvalidCursorPositionError):
        await cluster.place(TOPIC, "somewhere")
    assert TOPIC in await cluster.topics_of("public/default")


def _read_as_spark_does(options: ClusterOptions) -> int:
    """Synchronous, on a thread without a loop."""
    found = cluster_of_process(options)
    (ledger,) = run(found.segments(TOPIC), timeout=30).ledgers
    entries = sum(len(payloads) for _, payloads in iterate(found.read_entries(ledger, 0, ledger.entries - 1)))
    run(found.aclose(), timeout=30)
    return entries


async def _a_kill_is_waited_out(cluster: Cluster, process: StandaloneProcess) -> None:
    before = await cluster.segments(TOPIC)
    process.kill()
    segments = asyncio.ensure_future(cluster.segments(TOPIC))
    node = asyncio.ensure_future(cluster.store.get("/ledgers/INSTANCEID"))
    made = asyncio.ensure_future(cluster.store.create("/magnetar/sinks/x", b"", make_parents=True))
    entries = asyncio.ensure_future(_read_all(cluster, before.ledgers[0]))
    process.launch()
    assert (await segments).next_index == before.next_index
    assert isinstance(await node, Node)
    assert await made == "/magnetar/sinks/x"
    with contextlib.suppress(BookieUnavailableError):  # Known once the metadata could be asked for other bookies.
        await entries
    process.wait_ready()
    assert await _read_all(cluster, before.ledgers[0]) == before.ledgers[0].entries


async def _read_all(cluster: Cluster, ledger: SegmentLedger) -> int:
    return sum([len(payloads) async for _, payloads in cluster.read_entries(ledger, 0, ledger.entries - 1)])
