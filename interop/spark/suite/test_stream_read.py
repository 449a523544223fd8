"""Streaming reads: offsets that go on over restarts, limits, ends, new partitions, and a cursor that shows progress."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interop.spark.suite.conftest import KEEP, World, ended, patiently

BATCHED = {"batching_enabled": True, "batching_max_messages": 10, "batching_max_publish_delay_ms": 1}


def table(world: World, name: str) -> list[bytes]:
    return [bytes(row.value) for row in sorted(world.rows[name], key=lambda row: (row.topic, row["index"]))]


def backlog(world: World, topic: str, subscription: str) -> int:
    stats = world.admin("GET", f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/stats")
    return int(stats["subscriptions"][subscription]["msgBacklog"])


def test_a_stream_reads_everything_once_over_restarts(world: World) -> None:
    topic, checkpoint = world.new_topic(partitions=2), world.directory / "checkpoint"
    expected: list[bytes] = []
    found: list[bytes] = []
    for run in range(3):
        expected += world.fill(topic, 100, run * 100, **BATCHED)
        frame = world.read_stream(topic=topic, startingOffsets="earliest")
        world.run_now(frame, f"restarted_{run}", checkpoint)
        found += table(world, f"restarted_{run}")
    assert sorted(found) == expected


def test_a_stream_begins_with_what_is_to_come_unless_told_otherwise(world: World) -> None:
    topic = world.new_topic()
    world.fill(topic, 20)
    world.run_now(world.read_stream(topic=topic), "from_now", world.directory / "a")
    assert table(world, "from_now") == []
    world.run_now(world.read_stream(topic=topic, startingOffsets="index:15"), "from_15")
    assert len(table(world, "from_15")) == 5


def test_a_first_batch_that_failed_begins_again_where_it_began(world: World) -> None:
    topic, checkpoint = world.new_topic(), str(world.directory / "checkpoint")
    values = world.fill(topic, 50)
    batches: dict[int, list[bytes]] = {}

    def fail(batch: Any, _: int) -> None:
        raise RuntimeError(f"planned, with {batch.count()} rows")

    def keep(batch: Any, batch_id: int) -> None:
        batches[batch_id] = sorted(bytes(row.value) for row in batch.collect())

    def run(work: Callable[[Any, int], None]) -> Any:
        frame = world.read_stream(topic=topic, startingOffsets="-10")
        writer = frame.writeStream.foreachBatch(work).trigger(availableNow=True)
        return ended(writer.option("checkpointLocation", checkpoint).start())

    with pytest.raises(Exception, match="planned, with 10 rows"):
        patiently(lambda: run(fail))
    values += world.fill(topic, 30, 50)
    for _ in range(2):
        patiently(lambda: run(keep))
    assert batches[0] == values[40:50]
    assert [value for batch in batches.values() for value in batch] == values[40:]


@pytest.mark.parametrize("option", ["maxMessagesPerTrigger", "maxBytesPerTrigger"])
def test_a_limit_makes_several_batches_of_whole_entries(world: World, option: str) -> None:
    topic = world.new_topic()
    values = world.fill(topic, 200, **BATCHED)
    stored = world.admin("GET", f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/stats")["storageSize"]
    limit = {"maxMessagesPerTrigger": 60, "maxBytesPerTrigger": stored * 60 // 200}[option]
    frame = world.read_stream(topic=topic, startingOffsets="earliest", **{option: str(limit)})
    query = world.run_now(frame, f"limited_{option}")
    rows = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert len(rows) >= 3
    assert max(rows) <= 70
    assert table(world, f"limited_{option}") == values


def test_the_progress_says_how_far_the_topic_is(world: World) -> None:
    topic = world.new_topic()
    world.fill(topic, 30)
    query = world.run_now(world.read_stream(topic=topic, startingOffsets="earliest"), "reported")
    source = query.recentProgress[0]["sources"][0]
    end, latest = source["endOffset"], source["latestOffset"]
    end, latest = (json.loads(each) if isinstance(each, str) else each for each in (end, latest))
    assert end[topic] == latest[topic]
    assert (end["begin"][topic]["i"], end[topic]["i"]) == (0, 30)


def test_a_running_stream_sees_new_messages_and_new_partitions(world: World) -> None:
    topic = world.new_topic(partitions=1)
    seen: dict[bytes, int] = {}

    def collect(frame: Any, _: int) -> None:
        for row in frame.collect():
            seen[bytes(row.value)] = seen.get(bytes(row.value), 0) + 1

    stream = world.read_stream(topic=topic, startingOffsets="earliest")
    expected = world.fill(topic, 20)
    writer = stream.writeStream.foreachBatch(collect).option("checkpointLocation", str(world.directory / "c"))
    query = patiently(lambda: wait_for(writer.start(), lambda: len(seen) == 20))
    world.admin("POST", f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/partitions", "3")
    expected += world.fill(f"{topic}-partition-2", 20, 20)
    wait_for(query, lambda: len(seen) == 40)
    query.stop()
    assert sorted(seen) == expected
    assert set(seen.values()) == {1}


def test_a_subscription_shows_how_far_the_stream_is(world: World) -> None:
    topic, checkpoint = world.new_topic(), world.directory / "checkpoint"
    first = 0
    for run, count in enumerate((50, 30, 10)):
        world.fill(topic, count, first, **BATCHED)
        first += count
        frame = world.read_stream(topic=topic, startingOffsets="earliest", subscription="spark-job")
        world.run_now(frame, f"shown_{run}", checkpoint)
        assert len(world.rows[f"shown_{run}"]) == count
        assert backlog(world, topic, "spark-job") == 0


@pytest.mark.parametrize("via", ["bookie", "broker"])
def test_a_stream_that_was_cut_inside_a_batch_goes_on_there(world: World, via: str) -> None:
    topic = world.new_topic()
    values = world.fill(topic, 100, batching_enabled=True, batching_max_messages=100)
    frame = world.read_stream(topic=topic, startingOffsets="index:37", readVia=via)
    world.run_now(frame, f"inside_{via}")
    assert table(world, f"inside_{via}") == values[37:]


def test_a_broker_that_is_killed_and_comes_back_does_not_end_the_stream(world: World, tmp_path: Path) -> None:
    from magnetar.testing.processes.servers import StandaloneProcess

    with StandaloneProcess(tmp_path / "killed", KEEP) as server:
        other = World(world.spark, server, tmp_path / "other", world.client)
        topic = other.new_topic()
        other.client = connect_to(server.url, tmp_path)
        expected = other.fill(topic, 50)
        seen: list[bytes] = []
        frame = other.read_stream(topic=topic, startingOffsets="earliest")
        writer = frame.writeStream.foreachBatch(
            lambda batch, _: seen.extend(bytes(row.value) for row in batch.collect())
        ).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = patiently(lambda: wait_for(writer.start(), lambda: len(seen) == 50))
        server.kill()
        server.start()
        expected += other.fill(topic, 50, 50)
        wait_for(query, lambda: len(seen) >= 100)
        query.stop()
        other.client.close()
    assert sorted(seen) == expected


def connect_to(url: str, directory: Path) -> Any:
    from workloads.pulsar_load import connect

    return connect(url, directory / "client-2.log")


def wait_for(query: Any, condition: Any, seconds: int = 200) -> Any:
    """The query, when this is so; one that ends meanwhile says why."""
    for _ in range(seconds * 5):
        if condition():
            return query
        assert not query.awaitTermination(0.2), "the query has ended"
    raise AssertionError(f"waited {seconds} s in vain: {query.lastProgress}")
