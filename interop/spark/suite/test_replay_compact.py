"""Files become messages once; of each key the last message is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interop.spark.messages import each_message
from interop.spark.suite.conftest import World
from magnetar.errors import ConfigError, SparkFailedError
from magnetar.spark.cluster import ClusterOptions
from magnetar.spark.pipelines import archive, compact, replay

pytestmark = pytest.mark.timeout(300)

Message = tuple[str, bytes, dict[str, str]]


def cluster(world: World) -> ClusterOptions:
    return ClusterOptions.of(world.server.url, world.server.admin_url)


def messages_of(world: World, topic: str) -> list[Message]:
    return [(each.partition_key(), each.data(), each.properties()) for each in each_message(world.client, topic)]


def replayed(world: World, path: Path, topic: str, **options: Any) -> replay.ReplayResult:
    return replay.run(world.spark, replay.ReplayOptions(cluster=cluster(world), path=str(path), topic=topic, **options))


def compacted(world: World, topic: str, **options: Any) -> compact.CompactResult:
    return compact.run(world.spark, compact.CompactOptions(cluster=cluster(world), topic=topic, **options))


def test_an_archive_is_replayed_once_in_its_order(world: World) -> None:
    source, target, path = world.new_topic(), world.new_topic(), world.directory / "my archive, 100%"
    world.fill(source, 1_000)
    options = archive.ArchiveOptions(cluster=cluster(world), topic=source, path=str(path), batch_messages=300)
    archive.run(world.spark, options)

    first = replayed(world, path, target)
    assert (first.messages, first.was_done) == (1_000, False)
    assert messages_of(world, target) == messages_of(world, source)

    again = replayed(world, path, target)
    assert again.was_done
    assert again.job_id == first.job_id
    assert len(messages_of(world, target)) == 1_000

    replayed(world, path, target, job_id="once more", where="index < 10")
    assert len(messages_of(world, target)) == 1_010


def test_a_replay_that_keeps_partitions_is_another_job(world: World) -> None:
    topic, path = world.new_topic(partitions=2), world.directory / "rows.parquet"
    rows = {"key": ["k"] * 4, "value": ["a", "b", "c", "d"], "partition": pa.array([0, 1, 0, 1], pa.int32())}
    pq.write_table(pa.table(rows), path)
    by_key = replayed(world, path, topic)
    kept = replayed(world, path, topic, keep_partitions=True)
    assert (kept.messages, kept.was_done) == (4, False)
    assert kept.job_id != by_key.job_id
    assert replayed(world, path, topic, keep_partitions=True).was_done
    counts = sorted(len(messages_of(world, f"{topic}-partition-{number}")) for number in range(2))
    assert counts == [2, 6]


def test_a_file_that_was_replaced_under_its_name_is_another_job(world: World) -> None:
    topic, path = world.new_topic(), world.directory / "my rows, 100%.parquet"
    pq.write_table(pa.table({"value": ["a"]}), path)
    assert not replayed(world, path, topic).was_done
    assert replayed(world, path, topic).was_done
    pq.write_table(pa.table({"value": ["b", "c"]}), path)
    assert not replayed(world, path, topic).was_done
    assert [value for _, value, _ in messages_of(world, topic)] == [b"a", b"b", b"c"]


def test_any_parquet_file_can_be_replayed(world: World) -> None:
    topic, path = world.new_topic(), world.directory / "orders.parquet"
    pq.write_table(pa.table({"who": ["a", "b"], "what": ["x", "y"], "other": [1, 2]}), path)
    result = replayed(world, path, topic, key_column="who", value_column="what")
    assert result.messages == 2
    assert sorted(messages_of(world, topic)) == [("a", b"x", {}), ("b", b"y", {})]


def test_a_column_or_a_path_that_is_not_there_is_an_error(world: World) -> None:
    topic, path = world.new_topic(), world.directory / "orders.parquet"
    pq.write_table(pa.table({"valu": ["x"]}), path)
    with pytest.raises(ConfigError, match="did you mean 'valu'"):
        replayed(world, path, topic)
    with pytest.raises(SparkFailedError, match="there is no such path"):
        replayed(world, world.directory / "nowhere", topic)


def fill_keys(world: World, topic: str) -> None:
    producer = world.client.create_producer(topic, block_if_queue_full=True)
    for number in range(500):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 50}")
    producer.send(b"", partition_key="k3")  # Deleted.
    producer.send(b"without a key")
    producer.close()


EXPECTED = {f"k{key}": b"%d" % (450 + key) for key in range(50) if key != 3}


@pytest.mark.parametrize("partitions", [0, 3])
def test_the_last_message_of_each_key_is_kept(world: World, partitions: int) -> None:
    topic, path, target = world.new_topic(partitions), world.directory / "snapshot", world.new_topic()
    fill_keys(world, topic)

    assert compacted(world, topic, to_path=str(path)).messages == 49
    rows = world.spark.read.parquet(str(path)).collect()
    assert {bytes(row.key).decode(): bytes(row.value) for row in rows} == EXPECTED
    with pytest.raises(SparkFailedError, match="that path exists already"):
        compacted(world, topic, to_path=str(path))
    assert compacted(world, topic, to_path=str(path), overwrite=True, keep_unkeyed=True).messages == 50

    assert compacted(world, topic, to_topic=target).messages == 49
    assert {key: value for key, value, _ in messages_of(world, target)} == EXPECTED
