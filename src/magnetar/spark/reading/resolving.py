"""From what the user says (places.py) to spots in one topic partition, as its ledgers are now.

Exact:     a message id or an index in startingOffsets is one that somebody wants: that it is gone, or not there yet, is
           trouble. Ranges and times only narrow what there is.
Time:      the broker finds a time by its own clock, entries have their producer's. A batch that wants a range of
           publish times begins and ends a margin further out; the decoder drops what lies between. What a sink staged
           comes later than that: the topic knows how much.
Ago:       so many messages before the end that `segments` has, not before one that came since.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Protocol

from magnetar.errors import ConfigError, DataLossError
from magnetar.spark.cluster_values import FoundPlace, Segments
from magnetar.spark.reading.gaps import Begin, begin_at, earliest_of, end_of
from magnetar.spark.reading.places import EARLIEST, LATEST, Bound, PlaceText
from magnetar.spark.reading.spots import UNKNOWN, Spot
from magnetar.spark.reading.topics import TopicPart
from magnetar.topic.position import EARLIEST as BEFORE_ALL
from magnetar.topic.position import LATEST as BEHIND_ALL
from magnetar.topic.seek import MessagesAgo, parse_place

CLOCK_MARGIN_MS: Final = 60_000  # How far clocks of producers and brokers may be apart, and a message be under way.


class PlaceFinder(Protocol):
    """As much of a `Cluster` as is needed."""

    async def place(self, topic: str, text: str) -> FoundPlace: ...


async def spot_of(finder: PlaceFinder, part: str, text: str) -> Spot:
    """The first message at or behind a place as people name it."""
    found = await finder.place(part, text)
    return Spot(*found.position, max(found.batch_index, 0), UNKNOWN if found.index is None else found.index)


async def start_spot(
    finder: PlaceFinder, bound: Bound, part: TopicPart, segments: Segments, *, otherwise: str, time: str = ""
) -> Begin:
    """`time`: of the range, as a place; empty: there is none."""
    offset, *narrowing = bound.of(part.topic, part.name, otherwise)
    begin = await _begin(finder, offset, part, segments)
    narrowing += [PlaceText(time, is_exact=False)] if time else []
    spots = [(await _begin(finder, place, part, segments)).spot for place in narrowing]
    latest = max([begin.spot, *spots])
    return Begin(latest, begin.trouble if latest == begin.spot else None)


async def end_spot(finder: PlaceFinder, bound: Bound, part: TopicPart, segments: Segments, *, time: str = "") -> Spot:
    """The first message that is not read any more."""
    places = bound.of(part.topic, part.name, LATEST)
    places += [PlaceText(time, is_exact=False)] if time else []
    return min([await _spot(finder, place.text, part, segments) for place in places])


async def _begin(finder: PlaceFinder, place: PlaceText, part: TopicPart, segments: Segments) -> Begin:
    earliest, end = earliest_of(segments), end_of(segments)
    spot = await _spot(finder, place.text, part, segments)
    if not place.is_exact:
        return Begin(max(spot, earliest))
    if place.text.startswith("index:"):
        return _at_index(int(place.text.removeprefix("index:")), spot, segments)
    if spot > end:
        return Begin(end, _behind_end(place.text, part.name, end))
    return begin_at(spot if spot >= earliest else replace(spot, index=UNKNOWN), segments)


def _at_index(index: int, spot: Spot, segments: Segments) -> Begin:
    earliest = earliest_of(segments)
    first_left = spot.index if earliest.index == UNKNOWN else earliest.index
    if index < first_left:
        return begin_at(Spot(*BEFORE_ALL, 0, index), segments)
    return Begin(max(spot, earliest))


async def _spot(finder: PlaceFinder, text: str, part: TopicPart, segments: Segments) -> Spot:
    """Not behind the end as `segments` has it: what came since is not part of it."""
    if text == EARLIEST:
        return earliest_of(segments)
    end = end_of(segments)
    if text == LATEST:
        return end
    spot = await spot_of(finder, part.name, _from_end(text, end))
    if spot.position == BEFORE_ALL:
        return earliest_of(segments)
    return end if spot.position == BEHIND_ALL else spot


def _from_end(text: str, end: Spot) -> str:
    """So many messages ago, as an index: the broker would count from the end that the topic has by now."""
    place = parse_place(text)
    if not isinstance(place, MessagesAgo) or end.index == UNKNOWN:
        return text
    return f"index:{max(end.index - place.count, 0)}"


def _behind_end(text: str, part: str, end: Spot) -> DataLossError:
    return DataLossError(
        f"startingOffsets {text} lies behind the end of {part}, which is at {end}: a message of another topic, or "
        "of one that was deleted and made anew. With failOnDataLoss=false nothing is read"
    )


def check_names(unknown: list[str], subject: object) -> None:
    """Of the JSON in startingOffsets and endingOffsets."""
    if unknown:
        raise ConfigError(
            f"startingOffsets or endingOffsets name {', '.join(unknown)}, which this query does not read: it reads "
            f"{subject}"
        )
