"""What Spark calls on a stream's reader: limits in its own words, and what travels to tasks."""

from __future__ import annotations

import pickle
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from magnetar.spark.decoding.columns import raw_columns
from magnetar.spark.reading.following import Limit
from magnetar.spark.reading.ranges import Split
from magnetar.spark.reading.readers import StreamReader
from magnetar.spark.reading.stream_offsets import Offset, Spot, Spots
from tests.unit.spark.reading.topic_world import TOPIC, options

COLUMNS = raw_columns(include_headers=False)
START = {TOPIC: {"b": -1, "e": 0, "i": 0, "l": 1}, "v": 1}
END = {TOPIC: {"b": -1, "e": 9, "i": 9, "l": 1}, "v": 1}


class FakeFollower:
    def __init__(self) -> None:
        self.asked: list[tuple[Offset, Limit]] = []
        self.planned: list[tuple[Offset, Offset]] = []

    async def begin(self) -> Spots:
        return {TOPIC: Spot(1, 0, 0, 0)}

    async def initial(self) -> Offset:
        return Offset(await self.begin())

    async def latest(self, start: Offset, limit: Limit) -> Offset:
        self.asked.append((start, limit))
        return Offset({TOPIC: Spot(1, 9, 0, 9)})

    async def plan(self, start: Offset, end: Offset) -> list[Split]:
        self.planned.append((start, end))
        return []

    async def known(self) -> None:
        return None


def reader(**given: str) -> tuple[Any, FakeFollower]:
    made, follower = StreamReader(options(**given), COLUMNS), FakeFollower()
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
