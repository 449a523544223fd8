"""Entries that are lost, and a ledger: what is left of the topic is read, and nothing besides them is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from interop.spark.suite.conftest import KEEP, World
from interop.spark.suite.damage import StoppedBookie
from magnetar.spark import loop_thread
from magnetar.spark.cluster import ClusterOptions, cluster
from magnetar.spark.pipelines.archive import ArchiveOptions, run
from magnetar.testing.processes.servers import StandaloneProcess
from workloads.pulsar_load import connect

pytestmark = pytest.mark.timeout(600)

ENTRY_BYTES: Final = 70_000  # Larger than a block.
ENTRIES: Final = 20
LOST: Final = (0, 7, 8, ENTRIES - 1)


@dataclass
class Damaged:
    """A topic of two ledgers; of the first one some entries are lost."""

    world: World
    topic: str
    values: list[bytes]
    first: int
    second: int

    @property
    def left(self) -> list[bytes]:
        return [value for number, value in enumerate(self.values) if number not in LOST]

    @property
    def options(self) -> ClusterOptions:
        return ClusterOptions.of(self.world.server.url, self.world.server.admin_url)

    def read(self, **options: str) -> list[bytes]:
        frame = self.world.read(topic=self.topic, **options)
        return [bytes(row.value)[:6] for row in frame.select("index", "value").orderBy("index").collect()]


@pytest.fixture
def damaged(spark: Any, tmp_path: Path) -> Iterator[Damaged]:
    with StandaloneProcess(tmp_path / "server", KEEP, "storage.write_cache_bytes_max=8_388_608") as server:
        client = connect(server.url, tmp_path / "client.log")
        world = World(spark, server, tmp_path, client)
        topic = world.new_topic()
        world.admin("PUT", f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/subscription/holds")
        values = fill(world, topic, 0)
        restart(server)
        values += fill(world, topic, ENTRIES)
        client.close()
        options = ClusterOptions.of(server.url, server.admin_url)
        found = loop_thread.run(cluster(options).segments(topic), 60)
        first, second = (each.ledger_id for each in found.ledgers if each.entries)
        assert server.stop() == 0
        asyncio.run(lose(tmp_path / "server" / "bookie", first))
        server.start()
        yield Damaged(world, topic, values, first, second)


def fill(world: World, topic: str, first: int) -> list[bytes]:
    values = [b"%06d" % number for number in range(first, first + ENTRIES)]
    producer = world.client.create_producer(topic)
    for value in values:
        producer.send(value + bytes(ENTRY_BYTES))
    producer.close()
    return values


def restart(server: StandaloneProcess) -> None:
    """So that the topic goes on in another ledger."""
    assert server.stop() == 0
    server.start()


async def lose(bookie: Path, ledger_id: int) -> None:
    async with StoppedBookie(bookie, "bookie") as stopped:
        await stopped.lose(ledger_id, LOST)


def test_only_what_is_lost_is_left_out(damaged: Damaged, refused: Callable[[Callable[[], Any]], str]) -> None:
    assert f"entry {damaged.first}:0 of" in refused(damaged.read)
    assert damaged.read(failOnDataLoss="false") == damaged.left
    assert damaged.read(startingOffsets=f"{damaged.second}:0") == damaged.values[ENTRIES:]
    between = {"startingOffsets": f"{damaged.first}:1", "endingOffsets": f"{damaged.first}:7"}
    assert damaged.read(**between) == damaged.values[1:7]


def test_an_archive_that_accepts_loss_has_all_the_rest(damaged: Damaged) -> None:
    path = damaged.world.directory / "archive"
    options = ArchiveOptions(
        cluster=damaged.options, topic=damaged.topic, path=str(path), batch_messages=6, fail_on_data_loss=False
    )
    assert run(damaged.world.spark, options).messages == len(damaged.left)
    rows = damaged.world.spark.read.parquet(str(path)).select("index", "value").orderBy("index").collect()
    assert [bytes(row.value)[:6] for row in rows] == damaged.left


def test_a_ledger_that_was_deleted_under_its_topic_takes_no_other_along(
    damaged: Damaged, refused: Callable[[Callable[[], Any]], str]
) -> None:
    loop_thread.run(cluster(damaged.options).ledgers.delete(damaged.first), 60)
    assert "still lists it" in refused(damaged.read)
    assert damaged.read(failOnDataLoss="false") == damaged.values[ENTRIES:]
    assert damaged.read(startingOffsets=f"{damaged.second}:0") == damaged.values[ENTRIES:]
