"""Where a read begins and ends, from what the user says and what the topic has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.errors import ConfigError, DataLossError, DataTrimmedError, GapUnknownError
from magnetar.spark.cluster import Segments
from magnetar.spark.reading.ranges import Range, TimeRange, end_spot, plan_batch, start_spot, times_of
from magnetar.spark.reading.stream_offsets import Spot
from magnetar.spark.reading.topics import TopicPart
from tests.unit.spark.reading.topic_world import TOPIC, FakeCluster, ledger, options, segments

PART = TopicPart(TOPIC)
LEFT = segments(ledger(5, 10, first_index=100), ledger(8, 4, first_index=110))


async def begin(**given: str) -> tuple[Spot, DataLossError | None]:
    cluster = FakeCluster(orders=LEFT)
    found = await start_spot(cluster, options(**given).places.start, PART, LEFT, otherwise="earliest")
    return found.spot, found.trouble


async def ranges_of(cluster: FakeCluster, **given: str) -> list[Range]:
    asked = options(**given)
    splits = await plan_batch(cluster, asked, cores=1, times=TimeRange())  # type: ignore[arg-type]
    return [each for split in splits for each in split.ranges]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Spot(5, 0)),
        ({"startingOffsets": "latest"}, Spot(8, 4)),
        ({"startingOffsets": "5:7"}, Spot(5, 7)),
        ({"startingOffsets": "index:111"}, Spot(8, 1)),
        ({"startingOffsets": "5:7", "startingIndex": "111"}, Spot(8, 1)),
        ({"startingOffsets": "index:111", "startingIndex": "3"}, Spot(8, 1)),
        ({"startingIndex": "3"}, Spot(5, 0)),
        ({"startingOffsets": "index:500"}, Spot(8, 4)),
    ],
)
async def test_of_several_beginnings_the_last_counts(given: dict[str, str], expected: Spot) -> None:
    assert await begin(**given) == (expected, None)


async def test_a_message_that_was_asked_for_and_is_gone_is_trouble() -> None:
    spot, trouble = await begin(startingOffsets="3:1")
    assert (spot, type(trouble)) == (Spot(5, 0), DataTrimmedError)
    _, trouble = await begin(startingOffsets="index:90")
    assert "10 messages" in str(trouble)


async def test_a_first_entry_that_cannot_be_read_keeps_nothing_else_from_being_read() -> None:
    unreadable = segments(ledger(5, 10, first_index=None), ledger(8, 4, first_index=110))
    cluster = FakeCluster(orders=unreadable)
    assert [(each.ledger.ledger_id, each.first) for each in await ranges_of(cluster)] == [(5, 0), (8, 0)]
    assert [each.ledger.ledger_id for each in await ranges_of(cluster, startingOffsets="8:0")] == [8]
    assert [each.ledger.ledger_id for each in await ranges_of(cluster, startingOffsets="index:112")] == [8]
    assert [each.ledger.ledger_id for each in await ranges_of(cluster, endingOffsets="5:3")] == [5]
    assert (await ranges_of(cluster))[0].first_index is None
    with pytest.raises(GapUnknownError):
        await ranges_of(cluster, startingOffsets="index:90")  # The first that contains its index has 110.


async def test_a_message_id_of_another_topic_is_trouble() -> None:
    _, trouble = await begin(startingOffsets="77:0")
    assert "past the end" in str(trouble)


async def test_a_message_id_that_lies_between_two_ledgers_of_the_topic_is_trouble() -> None:
    spot, trouble = await begin(startingOffsets="6:2")
    assert spot == Spot(6, 2)
    assert "is not a message of" in str(trouble)
    assert "another topic" in str(trouble)


async def test_a_message_id_before_the_first_message_is_not_said_to_be_removed_by_retention_for_certain() -> None:
    _, trouble = await begin(startingOffsets="3:1")
    assert "Either retention has removed 3:1" in str(trouble)
    assert "of another topic" in str(trouble)


async def test_what_is_narrowed_away_need_not_be_there() -> None:
    assert await begin(startingOffsets="index:90", startingIndex="111") == (Spot(8, 1), None)


async def test_of_several_ends_the_first_counts() -> None:
    cluster = FakeCluster(orders=LEFT)

    async def end(**given: str) -> Spot:
        return await end_spot(cluster, options(**given).places.end, PART, LEFT)

    assert await end() == Spot(8, 4)
    assert await end(endingOffsets="8:2") == Spot(8, 2)
    assert await end(endingOffsets="8:2", endingIndex="105") == Spot(5, 5)
    assert await end(endingIndex="99999") == Spot(8, 4)


async def test_a_batch_reads_all_partitions_of_all_its_topics() -> None:
    name = "persistent://public/default/{}".format
    cluster = FakeCluster()
    cluster.partition_counts = {name("a"): 2}
    cluster.set("a-partition-0", ledger(1, 3))
    cluster.set("a-partition-1", ledger(2, 3))
    cluster.set("b", ledger(3, 3))
    found = await ranges_of(cluster, topic="", topics="a,b")
    assert [(each.topic, each.partition) for each in found] == [
        (name("a-partition-0"), 0),
        (name("a-partition-1"), 1),
        (name("b"), -1),
    ]
    assert [each.topic for each in await ranges_of(cluster, topic="", topicsPattern="a|c")] == [
        name("a-partition-0"),
        name("a-partition-1"),
    ]


async def test_offsets_for_a_topic_that_is_not_read_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"order,.*does not read"):
        await ranges_of(FakeCluster(orders=LEFT), startingOffsets='{"order": "earliest"}')


async def test_ledgers_outside_a_range_of_time_are_pruned_with_room_for_clocks() -> None:
    asked = options(startingTime="1970-01-01T00:10:00Z", endingTime="-5m")
    assert times_of(asked, now_ms=3_600_000) == TimeRange(600_000, 3_300_000)
    cluster = FakeCluster(orders=LEFT)
    cluster.place = _place_of(cluster)  # type: ignore[method-assign]
    times = TimeRange(600_000, 3_300_000)
    splits = await plan_batch(cluster, asked, cores=1, times=times)  # type: ignore[arg-type]
    assert [(each.ledger.ledger_id, each.first, each.last) for each in splits[0].ranges] == [(5, 4, 9), (8, 0, 1)]
    assert cluster.asked[-2:] == ["place time:540000 orders", "place time:3360000 orders"]


async def test_what_a_sink_staged_long_before_it_was_published_is_found_by_its_publish_time() -> None:
    cluster = FakeCluster(orders=replace(LEFT, publish_lag_ms=3_600_000))
    cluster.place = _place_of(cluster)  # type: ignore[method-assign]
    asked = options(startingTime="1970-01-01T00:10:00Z", endingTime="1970-01-01T00:55:00Z")
    splits = await plan_batch(cluster, asked, cores=1, times=times_of(asked, now_ms=0))  # type: ignore[arg-type]
    assert [(each.ledger.ledger_id, each.first, each.last) for each in splits[0].ranges] == [(5, 4, 9), (8, 0, 3)]
    assert cluster.asked[-2:] == ["place time:540000 orders", "place time:6960000 orders"]


async def test_the_last_messages_are_counted_from_the_end_that_was_seen_though_more_come_meanwhile() -> None:
    cluster = FakeCluster(orders=segments(ledger(1, 100)))
    list_ledgers = cluster.segments

    async def listed_before_more_come(topic: str, from_ledger: int = 0) -> Segments:
        found = await list_ledgers(topic, from_ledger)
        cluster.set("orders", ledger(1, 150))
        return found

    cluster.segments = listed_before_more_come  # type: ignore[method-assign]
    (found,) = await ranges_of(cluster, startingOffsets="-10")
    assert (found.first, found.last) == (90, 99)


def _place_of(cluster: FakeCluster):  # type: ignore[no-untyped-def]
    found = {"time:540000": "5:4", "time:3360000": "8:2", "time:6960000": "8:4"}
    original = FakeCluster.place

    async def place(topic: str, text: str):  # type: ignore[no-untyped-def]
        answer = await original(cluster, topic, found[text])
        cluster.asked[-1] = f"place {text} orders"
        return answer

    return place
