"""What Spark calls on a stream's reader: limits in its own words, and what travels to tasks."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from magnetar.errors import DataTrimmedError, MagnetarError
from magnetar.spark.decoding.columns import raw_columns
from magnetar.spark.reading.following import Limit
from magnetar.spark.reading.ranges import Split
from magnetar.spark.reading.stream_offsets import Offset, Spot, Spots
from magnetar.spark.reading.stream_reader import StreamReader
from magnetar.spark.reading.stream_reader_before_42 import StreamReaderBefore42
from tests.unit.spark.reading.topic_world import TOPIC, options

COLUMNS = raw_columns(include_headers=False)
START = {TOPIC: {"b": -1, "e": 0, "i": 0, "l": 1}, "v": 1}
END = {TOPIC: {"b": -1, "e": 9, "i": 9, "l": 1}, "v": 1}


class FakeFollower:
    def __init__(self) -> None:
        self.asked: list[tuple[Offset, Limit]] = []
        self.planned: list[tuple[Offset, Offset]] = []
        self.trouble: MagnetarError | None = None

    async def begin(self) -> Spots:
        if self.trouble is not None:
            raise self.trouble
        return {TOPIC: Spot(1, 0, 0, 0)}

    async def initial(self) -> Offset:
        return Offset(await self.begin())

    async def latest(self, start: Offset, limit: Limit) -> Offset:
        self.asked.append((start, limit))
        return Offset({TOPIC: Spot(1, 9, 0, 9)})

    async def plan(self, start: Offset, end: Offset) -> list[Split]:
        self.planned.append((start, end))
        return []

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
    assert made.initialOffset() == START  # Asked for when the end of the first batch is known.
    assert made.latestOffset() == END
    assert follower.asked == [(Offset({TOPIC: Spot(1, 0)}), Limit()), (Offset({TOPIC: Spot(1, 9)}), Limit(5))]


def test_older_releases_show_a_query_that_goes_on_where_it_is() -> None:
    made, follower = reader(StreamReaderBefore42)
    made.partitions(END, END)
    made.latestOffset()
    assert follower.asked == [(Offset({TOPIC: Spot(1, 9)}), Limit())]


def test_what_is_wrong_with_a_beginning_is_told_to_who_asks_for_it() -> None:
    made, follower = reader(StreamReaderBefore42)
    follower.trouble = DataTrimmedError("gone")
    assert made.latestOffset() == END  # Of a query that goes on, perhaps: it may have passed that long ago.
    assert follower.asked == [(Offset({}), Limit())]
    with pytest.raises(DataTrimmedError):
        made.initialOffset()
