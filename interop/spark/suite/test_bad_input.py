"""Mistakes and topics that change under a query: what the user is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from interop.spark.suite.conftest import World, ended

Refused = Callable[[Callable[[], Any]], str]
Failure = Callable[[Any, str], str]


@pytest.fixture
def failure(world: World, refused: Refused) -> Callable[[Any, str], str]:
    """What a stream that reads all there is ends with, on the checkpoint of this name."""

    def run(frame: Any, name: str) -> str:
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(world.directory / name))
        return refused(lambda: ended(writer.start()))

    return run


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "no-such-topic"}, "no-such-topic does not exist"),
        ({"topic": "no-such-topic", "startingOffset": "earliest"}, "startingOffsets"),
        ({}, "which topic"),
        ({"topic": "a", "topics": "b"}, "contradict"),
        ({"topicsPattern": "no-such-.*"}, "no topics that match"),
        ({"topic": "a", "startingOffsets": "the beginning"}, "is not a position in a topic"),
        ({"topic": "a", "maxMessagesPerTrigger": "5"}, "is for spark.readStream"),
        ({"topic": "a", "adminUrl": "http://127.0.0.1:1"}, "is the broker running"),
    ],
)
def test_a_mistake_is_answered_with_what_would_be_right(
    world: World, refused: Refused, options: dict[str, str], said: str
) -> None:
    frame = world.spark.read.format("magnetar").options(**{**world.where, **options})
    assert said in refused(lambda: frame.load().count())


def test_a_column_that_is_not_there_is_named(world: World, refused: Refused) -> None:
    reader = world.spark.read.format("magnetar").options(**world.where, topic=world.new_topic())
    assert "did you mean" in refused(lambda: reader.schema("valeu BINARY").load().count())
    assert "cast()" in refused(lambda: reader.schema("index INT").load().count())


def test_a_message_that_was_asked_for_and_is_gone_is_an_error_or_a_gap(world: World, refused: Refused) -> None:
    topic = world.new_topic()
    world.fill(topic, 10)
    first = world.read(topic=topic).orderBy("index").first().message_id
    trim(world, topic)
    world.fill(topic, 5, 10)
    said = refused(lambda: world.read(topic=topic, startingOffsets=first).count())
    assert "retention has removed" in said
    assert "failOnDataLoss" in said
    assert world.read(topic=topic, startingOffsets=first, failOnDataLoss="false").count() == 5
    assert world.read(topic=topic).count() == 5


def test_a_topic_trimmed_under_a_stream_is_an_error_with_the_number_of_messages(world: World, failure: Failure) -> None:
    topic = world.new_topic()
    world.fill(topic, 10)
    stream = {"topic": topic, "startingOffsets": "earliest"}
    world.run_now(world.read_stream(**stream, maxMessagesPerTrigger="4"), "trimmed", world.directory / "trimmed")
    world.fill(topic, 10, 10)
    trim(world, topic)
    world.fill(topic, 10, 20)
    said = failure(world.read_stream(**stream), "trimmed")
    assert "10 messages" in said
    assert "not lost" in said
    going_on = world.read_stream(**stream, failOnDataLoss="false")
    world.run_now(going_on, "after_gap", world.directory / "trimmed")
    assert len(world.rows["after_gap"]) == 10


def test_a_ledger_that_was_read_and_then_trimmed_is_no_gap(world: World) -> None:
    topic, checkpoint = world.new_topic(), world.directory / "checkpoint"
    world.fill(topic, 10)
    stream = {"topic": topic, "startingOffsets": "earliest"}
    world.run_now(world.read_stream(**stream), "before_trim", checkpoint)
    trim(world, topic)
    world.fill(topic, 7, 10)
    world.run_now(world.read_stream(**stream), "after_trim", checkpoint)
    assert (len(world.rows["before_trim"]), len(world.rows["after_trim"])) == (10, 7)


def test_a_topic_deleted_under_a_stream_and_made_anew_is_noticed(world: World, failure: Failure) -> None:
    topic = world.new_topic()
    world.fill(topic, 10)
    stream = {"topic": topic, "startingOffsets": "earliest"}
    world.run_now(world.read_stream(**stream), "first_life", world.directory / "lives")
    path = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}"
    world.admin("DELETE", f"{path}?force=true")
    assert "deleted" in failure(world.read_stream(**stream), "lives")
    world.admin("PUT", path)
    world.fill(topic, 20)
    assert "made anew" in failure(world.read_stream(**stream), "lives")
    world.run_now(world.read_stream(**stream, failOnDataLoss="false"), "second_life", world.directory / "lives")
    assert len(world.rows["second_life"]) == 20


def test_a_checkpoint_of_another_topic_is_refused(world: World, failure: Failure) -> None:
    one, other = world.new_topic(), world.new_topic()
    world.fill(one, 10)
    world.run_now(world.read_stream(topic=one, startingOffsets="earliest"), "of_one", world.directory / "shared")
    assert "checkpointLocation" in failure(world.read_stream(topic=other), "shared")


def test_an_option_of_a_batch_is_refused_for_a_stream(world: World, failure: Failure) -> None:
    frame = world.read_stream(topic=world.new_topic(), endingOffsets="latest")
    assert "is for spark.read" in failure(frame, "ends")


def trim(world: World, topic: str) -> None:
    """All ledgers but the one that is written now: what retention would do in time."""
    world.admin("DELETE", f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/truncate")
