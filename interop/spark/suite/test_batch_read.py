"""Batch reads: the same rows as the official client gets, by either road, from any place to any other."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pulsar
import pytest

from interop.spark.messages import PATIENCE_MS
from interop.spark.suite.conftest import World

COUNT = 500
BATCHED = {"batching_enabled": True, "batching_max_messages": 40, "batching_max_publish_delay_ms": 1}


def rows_of(frame: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.orderBy("partition", "index").collect()]


def by_the_client(world: World, topic: str) -> list[dict[str, Any]]:
    """What pulsar-client delivers, in the columns of a DataFrame."""
    consumer = world.client.subscribe(topic, "check", initial_position=pulsar.InitialPosition.Earliest)
    found = []
    for _ in range(COUNT):
        message = consumer.receive(timeout_millis=PATIENCE_MS)
        identity = message.message_id()
        found.append(
            {
                "key": message.partition_key().encode(),
                "value": message.data(),
                "topic": message.topic_name(),
                "ids": (identity.ledger_id(), identity.entry_id(), max(identity.batch_index(), 0)),
                "publish_ms": message.publish_timestamp(),
                "event_ms": message.event_timestamp() or None,
                "properties": message.properties(),
            }
        )
        consumer.acknowledge(message)
    consumer.close()
    return sorted(found, key=lambda row: (row["topic"], row["ids"]))


def by_spark(frame: Any) -> list[dict[str, Any]]:
    found = []
    for row in frame.collect():
        ledger_id, entry_id, _, batch_index = map(int, row.message_id.split(":"))
        found.append(
            {
                "key": bytes(row.key),
                "value": bytes(row.value),
                "topic": row.topic,
                "ids": (ledger_id, entry_id, max(batch_index, 0)),
                "publish_ms": round(row.publish_ms),
                "event_ms": None if row.event_ms is None else round(row.event_ms),
                "properties": dict(row.properties),
            }
        )
    return sorted(found, key=lambda row: (row["topic"], row["ids"]))


@pytest.mark.parametrize("via", ["bookie", "broker"])
@pytest.mark.parametrize("partitions", [0, 3])
def test_rows_are_what_the_official_client_gets_by_either_road(world: World, via: str, partitions: int) -> None:
    topic = world.new_topic(partitions)
    world.fill(topic, COUNT // 2, **BATCHED)
    world.fill(topic, COUNT // 2, COUNT // 2, batching_enabled=False)
    frame = world.read(topic=topic, readVia=via, includeHeaders="true").selectExpr(
        "*", "unix_millis(publish_time) AS publish_ms", "unix_millis(event_time) AS event_ms"
    )
    assert by_spark(frame) == by_the_client(world, topic)


def test_both_roads_give_the_same_rows_in_every_column(world: World) -> None:
    topic = world.new_topic()
    world.fill(topic, COUNT, compression_type=pulsar.CompressionType.LZ4, **BATCHED)
    bookie, broker = (
        rows_of(world.read(topic=topic, includeHeaders="true", readVia=via)) for via in ("bookie", "broker")
    )
    assert bookie == broker
    assert [row["index"] for row in bookie] == list(range(COUNT))


def test_one_large_partition_is_read_by_several_tasks_without_a_gap(world: World) -> None:
    topic = world.new_topic()
    values = world.fill(topic, COUNT, **BATCHED)
    frame = world.read(topic=topic, minPartitions="4")
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(world.values(frame)) == values


@pytest.mark.parametrize(
    ("given", "first", "end"),
    [
        ({"startingOffsets": "index:123"}, 123, COUNT),
        ({"startingOffsets": "-77"}, COUNT - 77, COUNT),
        ({"startingIndex": "10", "endingIndex": "451"}, 10, 451),
        ({"startingOffsets": "index:400", "endingOffsets": "index:401"}, 400, 401),
        ({"startingOffsets": "-1h", "endingTime": "2100-01-01"}, 0, COUNT),
        ({"startingOffsets": "latest"}, COUNT, COUNT),
    ],
)
def test_a_read_has_exactly_what_lies_between_its_ends(
    world: World, given: dict[str, str], first: int, end: int
) -> None:
    topic = world.new_topic()
    world.fill(topic, COUNT, **BATCHED)
    assert [row["index"] for row in rows_of(world.read(topic=topic, **given))] == list(range(first, end))


def test_message_ids_of_rows_are_places_to_read_from_and_to(world: World) -> None:
    topic = world.new_topic()
    world.fill(topic, COUNT, **BATCHED)
    rows = rows_of(world.read(topic=topic))
    again = world.read(
        topic=topic, startingOffsets=rows[57]["message_id"], endingOffsets=json.dumps({topic: rows[211]["message_id"]})
    )
    assert rows_of(again) == rows[57:211]


def test_a_range_of_publish_times_has_exactly_the_rows_whose_time_lies_in_it(world: World) -> None:
    topic = world.new_topic()
    for first in range(0, COUNT, 100):
        world.fill(topic, 100, first, batching_enabled=False)
    whole = world.read(topic=topic).selectExpr("index", "unix_millis(publish_time) AS ms").orderBy("index").collect()
    since, until = whole[130].ms, whole[377].ms
    chosen = world.read(topic=topic, startingTime=str(since), endingTime=str(until))
    expected = [row["index"] for row in whole if since <= row.ms < until]
    assert sorted(row["index"] for row in chosen.collect()) == expected


def test_only_the_columns_of_the_schema_are_read(world: World) -> None:
    topic = world.new_topic()
    world.fill(topic, COUNT, **BATCHED)
    frame = (
        world.spark.read.format("magnetar")
        .schema("index BIGINT, key BINARY")
        .options(**world.where, topic=topic)
        .load()
    )
    assert frame.columns == ["index", "key"]
    assert frame.selectExpr("sum(index)").collect()[0][0] == COUNT * (COUNT - 1) // 2


def test_several_topics_and_patterns_are_read_as_one(world: World) -> None:
    one, other = world.new_topic(), world.new_topic(partitions=2)
    world.fill(one, 50)
    world.fill(other, 70)
    assert world.read(topics=f"{one},{other}").count() == 120
    pattern = f"public/default/{one.rpartition('/')[2]}|{other.rpartition('/')[2]}"
    found = world.read(topicsPattern=pattern)
    assert found.count() == 120
    assert {row.topic.partition("-partition-")[0] for row in found.select("topic").collect()} == {one, other}


def test_an_empty_topic_has_columns_and_no_rows(world: World) -> None:
    frame = world.read(topic=world.new_topic())
    assert frame.count() == 0
    assert "message_id" in frame.columns


def test_a_dataframe_is_a_snapshot(world: World) -> None:
    topic = world.new_topic()
    world.fill(topic, 10)
    frame = world.read(topic=topic)
    assert frame.count() == 10
    world.fill(topic, 10, 10)
    assert (frame.count(), world.read(topic=topic).count()) == (10, 20)


def test_chunks_are_joined_also_where_tasks_meet(world: World) -> None:
    topic = world.new_topic()
    values = [bytes([65 + number]) * (6 * 2**20 + number) for number in range(4)]
    producer = world.client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    for value in values:
        producer.send(value)
        producer.send(b"small")
    producer.close()
    frame = world.read(topic=topic, minPartitions="6").selectExpr(
        "length(value) AS size", "md5(value) AS digest", "index"
    )
    found = [(row["size"], row["digest"]) for row in frame.orderBy("index").collect()]
    expected = [(len(value), hashlib.md5(value).hexdigest()) for each in values for value in (each, b"small")]
    assert found == expected
