"""A batch query: from its options to the tasks that read it. A snapshot: later messages are not part of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from magnetar.errors import TopicNotFoundError
from magnetar.runtime.gather import gather_bounded
from magnetar.spark.reading.gaps import tolerate
from magnetar.spark.reading.latest_offsets import AT_ONCE_MAX
from magnetar.spark.reading.options import ReadOptions
from magnetar.spark.reading.ranges import Range, Split, batch_splits, ranges_between
from magnetar.spark.reading.resolve_offsets import CLOCK_MARGIN_MS, check_names, end_spot, start_spot
from magnetar.spark.reading.start_and_end import EARLIEST
from magnetar.spark.reading.topics import TopicPart, find_parts

if TYPE_CHECKING:
    from magnetar.spark.cluster import Cluster


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Publish times in ms: rows outside are dropped when they are decoded."""

    first_ms: int | None = None
    end_ms: int | None = None


async def plan_batch(cluster: Cluster, options: ReadOptions, *, cores: int, times: TimeRange) -> list[Split]:
    """Plans the tasks. Raises TopicNotFoundError, DataLossError or ConfigError before any task is started."""
    parts = await find_parts(cluster, options.subject)
    if not parts:
        raise TopicNotFoundError(f"no {options.subject} exist in {options.subject.namespace}")
    check_names(options.places.unknown_topics({part.name: part.topic for part in parts}), options.subject)
    found = await gather_bounded([partial(_ranges_of, cluster, options, part, times) for part in parts], AT_ONCE_MAX)
    return batch_splits([each for ranges in found for each in ranges], cores, options.partitions_min)


def times_of(options: ReadOptions, now_ms: int) -> TimeRange:
    """Resolves the times once, so that planning and decoding use the same."""
    return TimeRange(options.places.start.time_ms(now_ms), options.places.end.time_ms(now_ms))


async def _ranges_of(cluster: Cluster, options: ReadOptions, part: TopicPart, times: TimeRange) -> list[Range]:
    segments = await cluster.segments(part.name)
    places = options.places
    since = "" if times.first_ms is None else f"time:{max(times.first_ms - CLOCK_MARGIN_MS, 0)}"
    until = "" if times.end_ms is None else f"time:{times.end_ms + segments.publish_lag_ms + CLOCK_MARGIN_MS}"
    begin = await start_spot(cluster, places.start, part, segments, otherwise=EARLIEST, time=since)
    tolerate(begin.trouble, fail_on_data_loss=options.fail_on_data_loss)
    end = await end_spot(cluster, places.end, part, segments, time=until)
    return ranges_between(segments, part.partition, begin.spot, end)
