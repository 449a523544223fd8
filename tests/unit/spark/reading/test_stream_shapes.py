"""What Spark calls on a stream's reader: limits in its own words, and what travels to tasks."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from magnetar.spark.decoding import raw_columns
from magnetar.spark.reading.shares import Limit
from magnetar.spark.reading.spots import Spot, Spots
from magnetar.spark.reading.stream_reader import StreamReader
from magnetar.spark.reading.stream_reader_before_42 import StreamReaderBefore42
from tests.unit.spark.reading.topic_world import TOPIC, options

COLUMNS = raw_columns(include_headers=False)
START = {TOPIC: {"b": -1, "e": 0, "i": 0, "l": 1}, "v": 1}
END = {TOPIC: {"b": -1, "e": 9, "i": 9, "l": 1}, "v": 1}


class FakeFollower:
    def __init__(self) -> None:
        self.asked: list[tuple[Spots, Limit]] = []

    async def initial(self) -> Spots:
        return {TOPIC: Spot(1, 0, 0, 0)}

    async def latest(self, start: Spots, limit: Limit) -> Spots:
        self.asked.append((start, limit))
        return {TOPIC: Spot(1, 9, 0, 9)}

    def known(self) -> None:
        return None


def reader(cls: Any = StreamReader, **given: str) -> tuple[Any, FakeFollower]:
    made, follower = cls(options(**given), COLUMNS), FakeFollower()
    made._follower = follower
    return made, follower


def test_spark_is_told_the_limit_of_the_options() -> None:
    assert reader()[0].getDefaultReadLimit() == ReadAllAvailable()
    assert reader(maxMessagesPerTrigger="5")[0].getDefaultReadLimit() == ReadMaxRows(5)
    assert reader(maxBytesPerTrigger="7")[0].getDefaultReadLimit() == ReadMaxBytes(7)


def test_what_spark_passes_is_obeyed_and_the_other_option_added() -> None:
    made, follower = reader(maxMessagesPerTrigger="5", maxBytesPerTrigger="7")
    for limit in (ReadMaxRows(3), ReadMaxBytes(4), ReadAllAvailable()):
        assert made.latestOffset(START, limit) == END
    assert [asked for _, asked in follower.asked] == [Limit(3, 7), Limit(5, 4), Limit(None, None)]


def test_a_reader_travels_to_tasks_without_its_follower() -> None:
    made, _ = reader()
    assert pickle.loads(pickle.dumps(made))._follower is None


def test_older_releases_ask_without_saying_where_they_are() -> None:
    assert list(inspect.signature(StreamReaderBefore42.latestOffset).parameters) == ["self"]
    made, follower = reader(StreamReaderBefore42, maxMessagesPerTrigger="5")
    assert made.latestOffset() == END
    assert made.latestOffset() == END
    assert follower.asked == [({}, Limit()), ({TOPIC: Spot(1, 9)}, Limit(5))]
    made, follower = reader(StreamReaderBefore42, maxMessagesPerTrigger="5")
    assert made.initialOffset() == START
    made.latestOffset()
    assert follower.asked == [({TOPIC: Spot(1, 0)}, Limit(5))]
