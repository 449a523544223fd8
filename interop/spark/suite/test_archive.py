"""An archive holds every message of its topic once, also after its writer was killed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pulsar
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from interop.spark.kill_hook import arm, environment
from interop.spark.messages import each_message
from interop.spark.suite.commands import pipeline
from interop.spark.suite.conftest import World
from magnetar.errors import ConfigError, TopicNotFoundError
from magnetar.spark.cluster import ClusterOptions
from magnetar.spark.pipelines.archive import ArchiveOptions, ArchiveResult, read_archive, run
from magnetar.testing.processes.child import Child, kill_tree
from magnetar.testing.processes.servers import MAGNETAR

pytestmark = pytest.mark.timeout(1800)

MESSAGES: Final = 1_000_000
PARTITIONS: Final = 2
BATCH: Final = 100_000


def archive(world: World, topic: str, path: Path, **options: Any) -> ArchiveResult:
    cluster = ClusterOptions.of(world.server.url, world.server.admin_url)
    return run(world.spark, ArchiveOptions(cluster=cluster, topic=topic, path=str(path), **options))


def rows_of(path: Path) -> pa.Table:
    """As any reader of Parquet sees it, without Spark: in the order of each partition."""
    found = ds.dataset(path, format="parquet", partitioning="hive").to_table()
    return found.sort_by([("partition", "ascending"), ("index", "ascending")])


# --- a million messages -----------------------------------------------------------------------------------------------


def fill(world: World, topic: str) -> None:
    """Batched and compressed, with keys; some with headers, event times, or nothing at all."""
    producer = world.client.create_producer(
        topic,
        producer_name="archived",
        block_if_queue_full=True,
        batching_enabled=True,
        batching_max_messages=1_000,
        batching_max_publish_delay_ms=20,
        max_pending_messages=20_000,
        compression_type=pulsar.CompressionType.LZ4,
    )
    for number in range(MESSAGES):
        options: dict[str, Any] = {"partition_key": f"k{number % 1_000}"}
        if number % 10 == 0:
            options |= {"properties": {"n": str(number)}, "event_timestamp": 1_700_000_000_000 + number}
        producer.send_async(b"" if number % 997 == 0 else b"%d" % number, None, **options)
    producer.flush()
    producer.close()


def messages_of(client: pulsar.Client, topic: str, partition: int) -> Iterator[tuple[Any, ...]]:
    for message in each_message(client, f"{topic}-partition-{partition}", receiver_queue_size=10_000):
        where = message.message_id()
        yield (
            f"{where.ledger_id()}:{where.entry_id()}:{partition}:{where.batch_index()}",
            message.partition_key().encode(),
            message.data(),
            message.publish_timestamp(),
            message.event_timestamp(),
            tuple(sorted(message.properties().items())),
            message.producer_name(),
        )


def archived_of(rows: pa.Table, partition: int) -> Iterator[tuple[Any, ...]]:
    part = rows.filter(pc.equal(rows["partition"], partition))
    for batch in part.to_batches(max_chunksize=50_000):
        columns = batch.to_pydict()
        publish = pc.cast(batch.column(batch.schema.get_field_index("publish_time")), pa.int64()).to_pylist()
        event = pc.cast(batch.column(batch.schema.get_field_index("event_time")), pa.int64()).to_pylist()
        for at in range(batch.num_rows):
            yield (
                columns["message_id"][at],
                columns["key"][at],
                columns["value"][at] or b"",
                publish[at] // 1000,
                0 if event[at] is None else event[at] // 1000,
                tuple(sorted(columns["properties"][at] or ())),
                columns["producer"][at],
            )


def kill_in_the_middle(world: World, topic: str, path: Path) -> None:
    """`magnetar pipeline archive`, ended without a word together with Spark, when it has committed three batches. It
    stands still before the fourth, however long we take."""
    orders, reached = world.directory / "orders", world.directory / "reached"
    arm(orders, "before-plan", 3, reached)
    command = [*MAGNETAR, "pipeline", "archive", topic, str(path), "--batch", str(BATCH), "--master", "local[2]"]
    command += ["--url", world.server.url, "--admin-url", world.server.admin_url]
    hooks = environment("reader", orders)
    child = Child(command, log=world.directory / "archive.log", env={**os.environ, **hooks})
    try:
        child.wait_until(reached.exists, what="three batches", timeout=300)
    finally:
        kill_tree(child.pid)
        child.kill()


def test_a_million_messages_are_archived_once_though_the_first_run_was_killed(world: World) -> None:
    topic, path = world.new_topic(PARTITIONS), world.directory / "archive"
    fill(world, topic)
    kill_in_the_middle(world, topic, path)
    assert sorted(each.name for each in (path / "_spark_metadata").glob("[0-9]*")) == ["0", "1", "2"]
    by_the_first = rows_of(path).num_rows
    assert 0 < by_the_first <= 3 * BATCH

    result = archive(world, topic, path, batch_messages=BATCH)

    assert result.messages == MESSAGES - by_the_first, "the first run's batches are kept"
    rows = rows_of(path)
    assert rows.num_rows == MESSAGES
    assert read_archive(world.spark, str(path)).count() == MESSAGES
    for partition in range(PARTITIONS):
        stored, kept = messages_of(world.client, topic, partition), archived_of(rows, partition)
        for number, (ours, theirs) in enumerate(zip(kept, stored, strict=True)):
            assert ours == theirs, f"message {number} of partition {partition}"


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_a_second_run_archives_only_what_is_new(world: World) -> None:
    topic, path = world.new_topic(), world.directory / "archive"
    values = world.fill(topic, 300)
    assert archive(world, topic, path).messages == 300
    assert archive(world, topic, path).messages == 0
    values += world.fill(topic, 200, first=300)
    assert archive(world, topic, path, batch_messages=50).messages == 200
    assert sorted(rows_of(path)["value"].to_pylist()) == values


def test_dates_and_hours_are_those_of_utc_in_a_session_of_another_time_zone(world: World) -> None:
    topic, path = world.new_topic(), world.directory / "archive"
    world.fill(topic, 20)
    world.spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")  # Half past when others have a full hour.
    try:
        archive(world, topic, path)
    finally:
        world.spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = rows_of(path).to_pylist()
    assert len(rows) == 20
    for row in rows:
        assert row["publish_time"].utcoffset() == timedelta(0)
        assert (str(row["date"]), int(row["hour"])) == (str(row["publish_time"].date()), row["publish_time"].hour)


def test_files_that_a_killed_run_left_are_deleted(world: World) -> None:
    topic, path = world.new_topic(), world.directory / "archive"
    world.fill(topic, 10)
    archive(world, topic, path)
    [kept] = path.glob("date=*/hour=*/partition=*/part-*.parquet")
    left = kept.with_name("part-00000-left.c000.zstd.parquet")
    left.write_bytes(kept.read_bytes())
    other = kept.with_name("not-ours.txt")
    other.write_text("x")
    result = archive(world, topic, path)
    assert (result.removed, result.files) == (1, 1)
    assert not left.exists()
    assert other.exists()


def test_a_path_is_of_one_topic(world: World) -> None:
    one, other, path = world.new_topic(), world.new_topic(), world.directory / "archive"
    world.fill(one, 1)
    archive(world, one, path)
    with pytest.raises(ConfigError, match=f"is the archive of {one}, not of {other}"):
        archive(world, other, path)


def test_a_directory_that_is_something_else_is_left_alone(world: World) -> None:
    topic, path = world.new_topic(), world.directory / "archive"
    path.mkdir()
    (path / "letter.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not an archive, and it is not empty"):
        archive(world, topic, path)
    assert [file.name for file in path.iterdir()] == ["letter.txt"]


def test_an_archive_that_somebody_writes_is_refused(world: World) -> None:
    topic, path = world.new_topic(), world.directory / "archive"
    world.fill(topic, 1)
    archive(world, topic, path)
    lock = path / "_magnetar" / "lock"
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": "1"}))
    with pytest.raises(ConfigError, match="is being written by process 1 on elsewhere"):
        archive(world, topic, path)
    lock.unlink()
    archive(world, topic, path)
    assert not lock.exists()


def test_a_topic_that_does_not_exist_is_an_error_and_leaves_nothing(world: World) -> None:
    path = world.directory / "archive"
    with pytest.raises(TopicNotFoundError):
        archive(world, "persistent://public/default/nowhere", path)
    assert not path.exists()
    done = pipeline(world.server, "archive", "nowhere", str(path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("magnetar: error: "), done.stderr
    assert len(done.stderr.splitlines()) == 1
