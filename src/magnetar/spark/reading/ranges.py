"""The plan of a batch: from the user's places to spots, from spots to ranges of entries, from ranges to tasks' splits.

Invariant: a message id or an index in startingOffsets is chosen: if it is deleted, or does not exist yet, that is an
           error. Ranges and times only narrow the messages. A batch query is a snapshot: later messages are not part of
           it.
Order:     a range is of one ledger, a split of about the same size in bytes as the others. A
           split is the work of one task: ranges in the order of the log, of one topic or of several small ones. Splits
           in their order are the log in its order. A ledger is cut between entries, which count as equally large.
           The broker finds a time by its own clock, entries have their producer's. A batch with a range of publish
           times begins and ends a margin further out; the decoder drops the rows between. Messages of a sink come even
           later: the topic knows by how much. A number of messages ago counts from the end of `segments`, without later
           ones.
Limits:    a task costs Spark some 60 ms of processor time before its first row, as much as 20 MB of messages do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from magnetar.errors import ConfigError, DataLossError, TopicNotFoundError
from magnetar.runtime.gather import gather_bounded
from magnetar.spark.cluster import AT_ONCE_MAX, Cluster, SegmentLedger, Segments
from magnetar.spark.reading.options import EARLIEST, LATEST, Bound, PlaceText, ReadOptions
from magnetar.spark.reading.stream_offsets import UNKNOWN, Begin, Spot, begin_at, earliest_of, end_of, tolerate
from magnetar.spark.reading.topics import TopicPart, find_parts
from magnetar.topic.position import EARLIEST as BEFORE_ALL
from magnetar.topic.position import LATEST as BEHIND_ALL
from magnetar.topic.seek_targets import MessagesAgo, parse_seek_target

SPLIT_BYTES_MIN: Final = 8 * 2**20  # Below that a second task costs more than it brings.
SPLIT_BYTES_MAX: Final = 128 * 2**20  # The work that is lost when a task fails; smaller ones end more evenly.
_ENTRY_OVERHEAD: Final = 64  # So that even empty entries have a size.


@dataclass(frozen=True, slots=True)
class Range:
    """Entries `first` … `last` of a ledger, both included."""

    topic: str
    """The name of the partition, for a partitioned topic."""
    partition: int
    ledger: SegmentLedger
    first: int
    last: int
    skipped: int = 0
    """The number of messages of the first entry before the range."""
    stop: int | None = None
    """Messages of the last entry from this one on are not part of it; None: all of them are."""

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    @property
    def entry_bytes(self) -> float:
        return self.ledger.size_bytes / max(self.ledger.entries, 1) + _ENTRY_OVERHEAD

    @property
    def size_bytes(self) -> float:
        return self.entries * self.entry_bytes

    @property
    def first_index(self) -> int | None:
        """The index of its first entry's first message; None: only that entry, or the broker, knows."""
        return self.ledger.first_index if self.first == 0 else None

    def cut(self, entries: int) -> tuple[Range, Range]:
        assert 0 < entries < self.entries
        middle = self.first + entries
        return replace(self, last=middle - 1, stop=None), replace(self, first=middle, skipped=0)


@dataclass(frozen=True, slots=True)
class Split:
    ranges: tuple[Range, ...]


def ranges_between(segments: Segments, partition: int, start: Spot, end: Spot) -> list[Range]:
    """Returns all listed entries that have a message at or after `start` and before `end`."""
    found = [_in_ledger(segments.topic, partition, ledger, start, end) for ledger in segments.ledgers]
    return [each for each in found if each is not None]


def _in_ledger(topic: str, partition: int, ledger: SegmentLedger, start: Spot, end: Spot) -> Range | None:
    ledger_id = ledger.ledger_id
    if not start.ledger_id <= ledger_id <= end.ledger_id:
        return None
    first, skipped = (start.entry_id, start.skipped) if ledger_id == start.ledger_id else (0, 0)
    last, stop = ledger.entries - 1, None
    if ledger_id == end.ledger_id:
        last = min(last, end.entry_id if end.skipped else end.entry_id - 1)
        stop = end.skipped or None if last == end.entry_id else None
    is_empty = first > last or (first == last and stop is not None and skipped >= stop)
    return None if is_empty else Range(topic, partition, ledger, first, last, skipped, stop)


def batch_splits(ranges: Sequence[Range], cores: int, partitions_min: int | None) -> list[Split]:
    """Splits a query over everything: every core has something to do, and no task has too much."""
    size = sum(each.size_bytes for each in ranges)
    count = max(math.ceil(size / SPLIT_BYTES_MAX), min(cores, math.ceil(size / SPLIT_BYTES_MIN)))
    return divide(ranges, max(count, partitions_min or 1))


def stream_splits(ranges: Sequence[Range], cores: int, partitions_min: int | None) -> list[Split]:
    """Splits one batch of a stream: at most one split for each core."""
    size = sum(each.size_bytes for each in ranges)
    return divide(ranges, max(min(cores, math.ceil(size / SPLIT_BYTES_MIN)), partitions_min or 1))


def divide(ranges: Sequence[Range], count: int) -> list[Split]:
    """Returns `count` splits of about the same size; fewer if there are not enough entries."""
    share = sum(each.size_bytes for each in ranges) / max(count, 1)
    splits: list[list[Range]] = [[]]
    done = 0.0  # Bytes in all splits so far.
    for whole in ranges:
        rest: Range | None = whole
        while rest is not None:
            room = share * len(splits) - done if len(splits) < count else rest.size_bytes
            entries = round(room / rest.entry_bytes)
            if entries > 0:
                piece, rest = (rest, None) if entries >= rest.entries else rest.cut(entries)
                splits[-1].append(piece)
                done += piece.size_bytes
            if rest is not None:
                splits.append([])
    return [Split(tuple(each)) for each in splits if each]


_LEDGERS_SHOWN_MAX: Final = 5
CLOCK_MARGIN_MS: Final = 60_000  # How far clocks of producers and brokers differ, and the time of a message in flight.


async def spot_of(cluster: Cluster, part: str, text: str) -> Spot:
    """Returns the first message at a place given as text, or after it."""
    found = await cluster.place(part, text)
    return Spot(*found.position, max(found.batch_index, 0), UNKNOWN if found.index is None else found.index)


async def start_spot(
    cluster: Cluster, bound: Bound, part: TopicPart, segments: Segments, *, otherwise: str, time: str = ""
) -> Begin:
    """`time`: of the range, as a place; empty: there is none."""
    offset, *narrowing = bound.of(part.topic, part.name, otherwise)
    begin = await _begin(cluster, offset, part, segments)
    narrowing += [PlaceText(time, is_exact=False)] if time else []
    spots = [(await _begin(cluster, place, part, segments)).spot for place in narrowing]
    latest = max([begin.spot, *spots])
    return Begin(latest, begin.trouble if latest == begin.spot else None)


async def end_spot(cluster: Cluster, bound: Bound, part: TopicPart, segments: Segments, *, time: str = "") -> Spot:
    places = bound.of(part.topic, part.name, LATEST)
    places += [PlaceText(time, is_exact=False)] if time else []
    return min([await _spot(cluster, place.text, part, segments) for place in places])


async def _begin(cluster: Cluster, place: PlaceText, part: TopicPart, segments: Segments) -> Begin:
    earliest, end = earliest_of(segments), end_of(segments)
    spot = await _spot(cluster, place.text, part, segments)
    if not place.is_exact:
        return Begin(max(spot, earliest))
    if place.text.startswith("index:"):
        return _at_index(int(place.text.removeprefix("index:")), spot, segments)
    if spot > end:
        error = DataLossError(
            f"startingOffsets {place.text} is past the end of {part.name} ({end}): it is a message of another topic, "
            "or of one that was deleted and created again. With failOnDataLoss=false nothing is read"
        )
        return Begin(end, error)
    if earliest <= spot < end and spot.ledger_id not in {ledger.ledger_id for ledger in segments.ledgers}:
        return Begin(spot, _of_another(place.text, part.name, segments))
    return begin_at(spot if spot >= earliest else replace(spot, index=UNKNOWN), segments)


def _at_index(index: int, spot: Spot, segments: Segments) -> Begin:
    earliest = earliest_of(segments)
    first_left = spot.index if earliest.index == UNKNOWN else earliest.index
    if index < first_left:
        return begin_at(Spot(*BEFORE_ALL, 0, index), segments)
    return Begin(max(spot, earliest))


async def _spot(cluster: Cluster, text: str, part: TopicPart, segments: Segments) -> Spot:
    """Returns a spot not after the end of `segments`: later messages are not part of the read."""
    if text == EARLIEST:
        return earliest_of(segments)
    end = end_of(segments)
    if text == LATEST:
        return end
    spot = await spot_of(cluster, part.name, _from_end(text, end))
    if spot.position == BEFORE_ALL:
        return earliest_of(segments)
    return end if spot.position == BEHIND_ALL else spot


def _from_end(text: str, end: Spot) -> str:
    """Turns a number of messages ago into an index: the broker would count from the topic's present end."""
    place = parse_seek_target(text)
    if not isinstance(place, MessagesAgo) or end.index == UNKNOWN:
        return text
    return f"index:{max(end.index - place.count, 0)}"


def _of_another(text: str, part: str, segments: Segments) -> DataLossError:
    ledgers = ", ".join(str(ledger.ledger_id) for ledger in segments.ledgers[-_LEDGERS_SHOWN_MAX:])
    return DataLossError(
        f"startingOffsets {text} is not a message of {part}, whose last ledgers are {ledgers}: it is the id of a "
        "message of another topic. With failOnDataLoss=false reading begins with the first message after it"
    )


def check_names(unknown: list[str], subject: object) -> None:
    if unknown:
        raise ConfigError(
            f"startingOffsets or endingOffsets name {', '.join(unknown)}, which this query does not read: it reads "
            f"{subject}"
        )


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
