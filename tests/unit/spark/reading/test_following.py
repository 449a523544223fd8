"""A stream's offsets: where it begins, how far a batch goes, and what is checked on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.errors import (
    BrokerUnavailableError,
    CheckpointMismatchError,
    DataTrimmedError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from magnetar.spark.cluster import SegmentLedger
from magnetar.spark.reading import following
from magnetar.spark.reading.following import Follower, Limit
from magnetar.spark.reading.stream_offsets import Offset, Spot
from magnetar.testing.waiting import until
from magnetar.topic.position import Position
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata
from tests.unit.spark.reading.topic_world import TOPIC, FakeCluster, ledger, options, segments

ALL = Limit()


class Subscriptions:
    """Where each is, as the broker would show it."""

    def __init__(self) -> None:
        self.places: list[tuple[str, str, Spot]] = []
        self.errors: list[Exception] = []

    async def place_subscription(self, part: str, name: str, spot: Spot) -> None:
        if self.errors:
            raise self.errors.pop()
        self.places.append((part.rpartition("/")[2], name, spot))

    move_subscription = place_subscription


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_MS", 1)
    monkeypatch.setattr(following, "LOOK_S", 0.0)


def follower(cluster: FakeCluster, **given: str) -> Follower:
    return Follower(cluster, Subscriptions(), options(**given), cores=2)  # type: ignore[arg-type]


def chain(*ledgers: tuple[int, int, int | None], topic: str = "orders") -> FakeCluster:
    cluster = FakeCluster()
    cluster.set(topic, *(ledger(*each) for each in ledgers))
    return cluster


def at(ledger_id: int, entry_id: int, index: int = -1) -> Offset:
    return Offset({TOPIC: Spot(ledger_id, entry_id, 0, index)})


def entries(splits: Any) -> list[tuple[int, int, int]]:
    return [(each.ledger.ledger_id, each.first, each.last) for split in splits for each in split.ranges]


async def test_a_new_stream_begins_with_what_is_to_come_or_where_it_is_told() -> None:
    cluster = chain((1, 10, 0))
    assert await follower(cluster).initial() == at(1, 10)
    begun = await follower(cluster, startingOffsets="earliest").initial()
    assert begun == at(1, 0)
    assert begun.spots[TOPIC].index == 0


async def test_a_topic_that_does_not_exist_is_an_error_at_the_start() -> None:
    with pytest.raises(TopicNotFoundError):
        await follower(FakeCluster()).initial()


async def test_offsets_go_on_with_the_topic_and_stay_when_nothing_comes() -> None:
    cluster = chain((1, 10, 0))
    one = follower(cluster, startingOffsets="earliest")
    start = await one.initial()
    latest = await one.latest(start, ALL)
    assert (latest.spots, latest.spots[TOPIC].index) == ({TOPIC: Spot(1, 10)}, 10)
    assert await one.latest(latest, ALL) is latest
    cluster.set("orders", ledger(1, 10, 0), ledger(4, 2, 10))
    assert await one.latest(latest, ALL) == at(4, 2)


async def test_a_ledger_without_messages_is_no_news() -> None:
    cluster = chain((1, 10, 0))
    one = follower(cluster)
    start = await one.initial()
    empty = segments(ledger(1, 10, 0), ledger(6, 0, 10))
    cluster.topics[TOPIC] = empty
    assert (await one.latest(start, ALL)).spots == start.spots


async def test_a_limit_in_messages_cuts_at_entries_and_knows_the_index() -> None:
    cluster = chain((1, 10, 0))
    one = follower(cluster, startingOffsets="earliest")
    limited = await one.latest(await one.initial(), Limit(messages=4))
    assert (limited.spots, limited.spots[TOPIC].index) == ({TOPIC: Spot(1, 4)}, 4)
    limited = await one.latest(limited, Limit(size_bytes=3_000))
    assert limited == at(1, 7)


async def test_a_query_that_ends_with_what_is_there_never_sees_more() -> None:
    cluster = chain((1, 10, 0))
    one = follower(cluster, startingOffsets="earliest")
    await one.available_now()
    start = await one.initial()
    cluster.set("orders", ledger(1, 15, 0))
    half = await one.latest(start, Limit(messages=6))
    assert half.spots == {TOPIC: Spot(1, 6)}
    latest = await one.latest(half, Limit(messages=6))
    assert latest == at(1, 10)
    assert await one.latest(latest, ALL) is latest


async def test_partitions_that_appear_while_it_runs_are_read_from_their_beginning() -> None:
    one, start = await with_a_new_partition(ledger(9, 3, 0))
    found = await one.latest(start, ALL)
    assert found.spots == {f"{TOPIC}-partition-0": Spot(1, 5), f"{TOPIC}-partition-1": Spot(9, 0)}
    assert await one.plan(start, found) == []
    latest = await one.latest(found, ALL)
    assert latest.spots == {f"{TOPIC}-partition-0": Spot(1, 5), f"{TOPIC}-partition-1": Spot(9, 3)}
    assert entries(await one.plan(found, latest)) == [(9, 0, 2)]
    assert (await one.latest(found, Limit(messages=1))).spots[f"{TOPIC}-partition-1"] == Spot(9, 1)


async def test_a_partition_that_appears_takes_nothing_from_the_limit_of_its_first_batch() -> None:
    one, start = await with_a_new_partition(ledger(9, 3, 0), startingOffsets="earliest")
    found = await one.latest(start, Limit(messages=2))
    assert found.spots == {f"{TOPIC}-partition-0": Spot(1, 2), f"{TOPIC}-partition-1": Spot(9, 0)}


async def test_a_partition_that_appeared_before_a_query_that_ends_with_what_is_there_is_read_by_it() -> None:
    _, start = await with_a_new_partition(ledger(9, 3, 0))
    again, _ = await with_a_new_partition(ledger(9, 3, 0))
    await again.available_now()
    found = await again.latest(start, ALL)
    latest = await again.latest(found, ALL)
    assert entries(await again.plan(found, latest)) == [(9, 0, 2)]
    assert await again.latest(latest, ALL) is latest


async def test_a_new_partition_that_is_trimmed_before_its_first_batch_is_done_again_is_an_error_that_says_so() -> None:
    one, start = await with_a_new_partition(ledger(9, 100, 0))
    found = await one.latest(start, ALL)
    latest = await one.latest(found, ALL)
    again, _ = await with_a_new_partition(ledger(12, 3, 100))
    with pytest.raises(DataTrimmedError, match="100 messages"):
        await again.plan(found, latest)


async def with_a_new_partition(*ledgers: SegmentLedger, **given: str) -> tuple[Follower, Offset]:
    """A query on a topic that had one partition when it began, and where that was."""
    cluster = chain((1, 5, 0), topic="orders-partition-0")
    cluster.partition_counts = {TOPIC: 1}
    one = follower(cluster, **given)
    start = await one.initial()
    cluster.partition_counts = {TOPIC: 2}
    cluster.set("orders-partition-1", *ledgers)
    return one, start


async def test_topics_that_come_to_match_are_read_too() -> None:
    cluster = chain((1, 5, 0), topic="orders-1")
    one = follower(cluster, topic="", topicsPattern="orders-.*")
    start = await one.initial()
    cluster.set("orders-2", ledger(7, 2, 0))
    cluster.set("other", ledger(8, 2, 0))
    assert set((await one.latest(start, ALL)).spots) == {f"{TOPIC}-1", f"{TOPIC}-2"}


async def test_a_batch_reads_what_lies_between_two_offsets_and_nothing_for_equal_ones() -> None:
    cluster = chain((1, 10, 0), (4, 6, 10))
    one = follower(cluster)
    start, end = at(1, 8, 8), at(4, 2, 12)
    assert entries(await one.plan(start, end)) == [(1, 8, 9), (4, 0, 1)]
    assert await one.plan(end, end) == []


async def test_a_batch_that_was_trimmed_before_it_was_read_is_an_error_that_says_so() -> None:
    cluster = chain((4, 6, 10))
    start, end = at(1, 8, 8), at(4, 2, 12)
    with pytest.raises(DataTrimmedError, match="2 messages"):
        await follower(cluster).plan(start, end)
    assert entries(await follower(cluster, failOnDataLoss="false").plan(start, end)) == [(4, 0, 1)]


async def test_a_gap_that_cannot_be_told_is_waited_for() -> None:
    cluster = chain((4, 6, None), (6, 1, 16))
    one = follower(cluster)
    start, end = at(1, 10, 10), at(4, 2, 12)
    planning = asyncio.create_task(one.plan(start, end))
    await until(lambda: len(cluster.asked) > 1, "it has asked again")
    cluster.set("orders", ledger(4, 6, 10), ledger(6, 1, 16))
    assert entries(await planning) == [(4, 0, 1)]


async def test_a_topic_made_anew_under_the_query_is_noticed_whether_it_has_fewer_or_more_messages() -> None:
    start = at(1, 8, 8)
    for count in (3, 20):
        cluster = chain((50, count, 0))
        one = follower(cluster)
        with pytest.raises(TopicRecreatedError, match="made anew"):
            await one.plan(start, await one.latest(start, ALL))
        one = follower(cluster, failOnDataLoss="false")
        assert entries(await one.plan(start, await one.latest(start, ALL))) == [(50, 0, count - 1)]


async def test_a_topic_deleted_under_the_query_is_noticed() -> None:
    start = at(1, 8, 8)
    with pytest.raises(TopicRecreatedError, match="deleted"):
        await follower(FakeCluster()).latest(start, ALL)
    one = follower(FakeCluster(), failOnDataLoss="false")
    assert await one.latest(start, ALL) is start
    assert await one.plan(start, at(1, 9, 9)) == []


async def test_a_topic_deleted_before_a_query_that_ends_with_what_is_there_is_noticed_too() -> None:
    one = follower(FakeCluster())
    await one.available_now()
    with pytest.raises(TopicRecreatedError, match="deleted"):
        await one.latest(at(1, 8, 8), ALL)


async def test_an_end_that_the_topic_does_not_reach_is_noticed() -> None:
    with pytest.raises(TopicRecreatedError):
        await follower(chain((1, 10, 0))).plan(at(1, 8, 8), at(1, 20, 20))


async def test_a_checkpoint_of_another_topic_is_refused() -> None:
    foreign = Offset({"persistent://public/default/other": Spot(1, 0)})
    with pytest.raises(CheckpointMismatchError, match=r"other.*orders.*checkpointLocation"):
        await follower(chain((1, 10, 0))).latest(foreign, ALL)
    with pytest.raises(CheckpointMismatchError):
        await follower(chain((1, 10, 0))).plan(foreign, foreign)


@pytest.mark.parametrize("place", ["latest", "-3"])
async def test_a_query_begins_where_it_was_first_told_though_the_topic_grows(place: str) -> None:
    cluster = chain((1, 10, 0))
    one = follower(cluster, startingOffsets=place)
    start = await one.initial()
    cluster.set("orders", ledger(1, 11, 0))
    end = await one.latest(start, ALL)
    assert await one.initial() == start
    assert entries(await one.plan(await one.initial(), end)) == [(1, 10 if place == "latest" else 7, 10)]


async def interrupted(cluster: FakeCluster, **given: str) -> Offset:
    """The end of a first batch that is not done when its query ends; the topic has grown since."""
    before = follower(cluster, **given)
    end = await before.latest(await before.initial(), ALL)
    cluster.set("orders", ledger(1, 15, 0))
    return end


@pytest.mark.parametrize("is_shown", [True, False])
async def test_a_first_batch_that_is_done_again_begins_where_it_was_to_begin(is_shown: bool) -> None:
    cluster = chain((1, 10, 0))
    end = await interrupted(cluster, startingOffsets="-3")
    again = follower(cluster, startingOffsets="-3")
    if is_shown:  # As Spark does it, before it asks for anything.
        assert await again.plan(end, end) == []
    start = await again.initial()
    assert start == (at(1, 7) if is_shown else at(1, 12))
    assert entries(await again.plan(start, end)) == [(1, 7, 9)]
    following = await again.latest(end, ALL)
    assert following == at(1, 15)
    assert entries(await again.plan(end, following)) == [(1, 10, 14)]


async def test_a_checkpoint_that_does_not_say_where_it_began_is_gone_on_with() -> None:
    again = follower(chain((1, 15, 0)), startingOffsets="-3")
    old = at(1, 10, 10)
    assert await again.plan(old, old) == []
    assert entries(await again.plan(await again.initial(), old)) == []
    following = await again.latest(old, ALL)
    assert entries(await again.plan(old, following)) == [(1, 10, 14)]


async def test_a_first_batch_that_is_done_again_is_held_from_its_beginning_on() -> None:
    cluster = chain((1, 10, 0))
    end = await interrupted(cluster, startingOffsets="-3")
    again = follower(cluster, startingOffsets="-3", subscription="spark")
    await again.plan(end, end)
    await again.plan(await again.initial(), end)
    shown: Any = again._admin
    assert shown.places == [("orders", "spark", Spot(1, 7))]


async def test_a_query_that_begins_behind_what_it_is_to_end_with_ends_where_it_begins() -> None:
    cluster = chain((1, 10, 0))
    one = follower(cluster)
    await one.available_now()
    cluster.set("orders", ledger(1, 12, 0))
    start = await one.initial()
    end = await one.latest(start, ALL)
    assert end.spots == start.spots == {TOPIC: Spot(1, 12)}
    assert await one.plan(start, end) == []
    assert await one.latest(end, ALL) is end


async def test_a_broker_that_is_away_for_a_while_is_waited_for() -> None:
    cluster = chain((1, 10, 0))
    one = follower(cluster, startingOffsets="earliest")
    start = await one.initial()
    cluster.errors = [BrokerUnavailableError("gone"), BrokerUnavailableError("gone")]
    assert (await one.latest(start, ALL)).spots == {TOPIC: Spot(1, 10)}


async def test_a_broker_that_stays_away_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PATIENCE_S", 0.01)
    cluster = chain((1, 10, 0))
    one = follower(cluster)
    start = await one.initial()
    cluster.errors = [BrokerUnavailableError("gone") for _ in range(50)]
    with pytest.raises(BrokerUnavailableError):
        await one.latest(start, ALL)


async def test_a_subscription_shows_progress_and_never_ends_the_query() -> None:
    cluster = chain((1, 10, 0))
    one = follower(cluster, subscription="spark", startingOffsets="earliest")
    shown: Any = one._admin
    start = await one.initial()
    await one.latest(start, Limit(messages=4))
    await one.latest(at(1, 4, 4), ALL)  # Asked when all before is done.
    await one.commit(at(1, 4))
    shown.errors = [BrokerUnavailableError("gone")]
    await one.commit(at(1, 6))
    await one.commit(at(1, 6))
    assert shown.places == [("orders", "spark", spot) for spot in (start.spots[TOPIC], Spot(1, 4), Spot(1, 6))]


def chunk(uuid: str, number: int, of: int) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = uuid, number, of
    return with_checksum(metadata.SerializeToString(), b"part")


@pytest.mark.parametrize(
    ("stored", "end", "held"),
    [
        ({(1, 8): ("a", 0), (1, 9): ("a", 1)}, (1, 10), (1, 8)),  # The ledger ends here, and its next one has the rest.
        ({(1, 8): ("a", 0), (1, 9): ("a", 1)}, (2, 1), (1, 8)),  # The next batch ended, and the last chunk is to come.
        ({(1, 9): ("a", 1), (2, 0): ("a", 2)}, (2, 1), (2, 1)),  # It is complete.
        ({(1, 7): ("a", 0), (1, 8): ("b", 0), (1, 9): ("b", 2)}, (1, 10), (1, 7)),  # Of two producers one is not.
        ({(0, 4): ("a", 0), (1, 0): ("a", 1)}, (1, 1), (0, 4)),  # Its first chunk is further back than a window.
        ({(0, 4): ("a", 0), (0, 5): ("a", 1)}, (1, 10), (1, 10)),  # Its producer died long ago.
        ({}, (1, 10), (1, 10)),
    ],
)
async def test_a_subscription_waits_before_the_chunks_of_a_message_that_is_not_complete(
    stored: dict[tuple[int, int], tuple[str, int]], end: tuple[int, int], held: tuple[int, int]
) -> None:
    """Else their ledger could be trimmed before the batch with the last chunk looks back for them."""
    cluster = chain((0, 6, 0), (1, 10, 6), (2, 4, 16))
    cluster.stored = {Position(*at): chunk(uuid, number, of=3) for at, (uuid, number) in stored.items()}
    one = follower(cluster, subscription="spark", startingOffsets="earliest")
    shown: Any = one._admin
    await one.initial()
    await one.commit(at(*end))
    assert shown.places[-1][2] == Spot(*held)


async def test_a_subscription_that_waited_goes_on_when_the_message_is_complete() -> None:
    cluster = chain((1, 10, 0), (2, 4, 10))
    cluster.stored = {Position(1, 9): chunk("a", 0, of=2), Position(2, 0): chunk("a", 1, of=2)}
    one = follower(cluster, subscription="spark", startingOffsets="earliest")
    shown: Any = one._admin
    await one.initial()
    for end in (at(1, 10), at(1, 10), at(2, 2)):
        await one.commit(end)
    assert [spot for _, _, spot in shown.places[1:]] == [Spot(1, 9), Spot(2, 2)]


async def test_a_poll_that_is_answered_wakes_whoever_waits() -> None:
    cluster = chain((1, 10, 0))
    news = asyncio.Event()
    original = cluster.wait

    async def wait(topic: str, after: Any, timeout_ms: int = 500) -> Any:
        if timeout_ms:
            await news.wait()
        return await original(topic, after, timeout_ms)

    cluster.wait = wait  # type: ignore[method-assign]
    one = follower(cluster)
    start = await one.initial()
    first = await one.latest(start, ALL)
    assert await one.latest(first, ALL) is first
    waiting = asyncio.create_task(one.latest(first, ALL))
    await asyncio.sleep(0)
    cluster.set("orders", ledger(1, 12, 0))
    news.set()
    assert await waiting == at(1, 12)
    await one.aclose()
