"""The beginning and the end of a read as the user writes them: startingOffsets, endingOffsets, and ranges.

Format:    earliest, latest, a message id (12:34), index:42, a time, -10m, -1000 (topic/seek_targets.py); or JSON with
           one of these for each topic:
           {"orders": "earliest", "payments-partition-0": "12:34", "clicks": {"0": 42, "1": -2}}.
           A number for a partition is an index; -2 and -1 are earliest and latest, as in Kafka's connector. Topics that
           are not named begin and end as without the option.
           startingIndex ≤ index < endingIndex; startingTime ≤ publish_time < endingTime. They narrow the offsets: of
           several beginnings the last counts, of several ends the first.
Order:     the results are texts for `GET …/place`, which the topic's broker resolves: its messages, its clock.
           publish_time is of the producer's clock: for a range of it a batch looks a little further, and drops rows
           (batch_plan.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.client.topics import full_name, partition_name
from magnetar.errors import ConfigError, InvalidCursorPositionError, InvalidNameError
from magnetar.spark.reading.option_values import number
from magnetar.topic.seek_targets import AtMessage, AtTime, TimeAgo, parse_seek_target

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_KAFKA_NUMBERS: Final = {-2: EARLIEST, -1: LATEST}
_LONG_MAX: Final = 2**63 - 1
_SHOWN_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class PlaceText:
    """One bound of a read. A place outside the topic is its first or last message, unless it was given exactly."""

    text: str
    is_exact: bool
    """Whether it is a message id or an index, which was chosen: if that message is missing, it is an error."""


@dataclass(frozen=True, slots=True)
class Bound:
    """All options for one end, for one topic or for all that are not named."""

    default: str = ""
    by_topic: Mapping[str, str] = field(default_factory=dict)
    """Full name of a topic or of a partition → place."""
    index: int | None = None
    """The index of the range: counts for every topic."""
    time: str = ""
    """The time of the range, or a time ago: counts for every topic."""

    def of(self, topic: str, part: str, otherwise: str) -> list[PlaceText]:
        """Returns the given places without the time."""
        chosen = self.by_topic.get(part) or self.by_topic.get(topic) or self.default or otherwise
        index = [] if self.index is None else [PlaceText(f"index:{self.index}", is_exact=False)]
        return [place_text(chosen), *index]

    def time_ms(self, now_ms: int) -> int | None:
        match parse_seek_target(self.time) if self.time else None:
            case AtTime(publish_ms):
                return publish_ms
            case TimeAgo(ms):
                return max(now_ms - ms, 0)
            case _:
                return None


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    start: Bound = field(default_factory=Bound)
    end: Bound = field(default_factory=Bound)

    def unknown_topics(self, known: Mapping[str, str]) -> list[str]:
        """Returns names in the JSON of either option that are not read: part → topic."""
        names = {*known, *known.values()}
        given = {**self.start.by_topic, **self.end.by_topic}
        return sorted(name for name in given if name not in names)


def place_text(text: str) -> PlaceText:
    place = parse_seek_target(text)
    is_named = text in (EARLIEST, LATEST)
    return PlaceText(text, (isinstance(place, AtMessage) or text.startswith("index:")) and not is_named)


def parse_place_options(options: Mapping[str, str]) -> PlaceOptions:
    return PlaceOptions(_bound(options, "starting"), _bound(options, "ending"))


def _bound(options: Mapping[str, str], side: str) -> Bound:
    index = number(options, f"{side}Index", 0, _LONG_MAX)
    time = options.get(f"{side}Time")
    time = "" if time is None else _time(f"{side}Time", time)
    name = f"{side}Offsets"
    text = options.get(name, "").strip()
    if text.startswith("{"):
        return Bound("", _by_topic(name, text), index, time)
    return Bound(_checked(name, text) if name in options else "", {}, index, time)


def _checked(option: str, text: str) -> str:
    text = text.strip()
    text = text.lower() if text.lower() in (EARLIEST, LATEST) else text
    try:
        parse_seek_target(text)
    except InvalidCursorPositionError as error:
        raise ConfigError(f"option {option}: {error}") from None
    return text


def _time(option: str, text: str) -> str:
    """Returns a time, or a time ago; a bare number is milliseconds since 1970."""
    text = text.strip()
    text = f"time:{text}" if text.isascii() and text.isdigit() else text
    try:
        is_time = isinstance(parse_seek_target(text), AtTime | TimeAgo)
    except InvalidCursorPositionError:
        is_time = False
    if not is_time:
        raise ConfigError(
            f"option {option} is {text[:_SHOWN_MAX]!r}: give a time (2026-01-31T10:00:00Z), a time ago (-10m) or "
            "milliseconds since 1970"
        )
    return text


# --- one for each topic -----------------------------------------------------------------------------------------------


def _by_topic(option: str, text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"option {option} is not JSON: {error}") from None
    places: dict[str, str] = {}
    for name, value in found.items():
        topic = _full(option, name)
        if isinstance(value, dict):
            places.update({_partition(option, topic, part): _place(option, place) for part, place in value.items()})
        else:
            places[topic] = _place(option, value)
    return places


def _full(option: str, name: str) -> str:
    try:
        return full_name(name)
    except InvalidNameError as error:
        raise ConfigError(f"option {option}: {error}") from None


def _partition(option: str, topic: str, text: str) -> str:
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"option {option}: {text!r} of {topic} is not the number of a partition")
    return partition_name(topic, int(text))


def _place(option: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0 and value not in _KAFKA_NUMBERS:
            raise ConfigError(
                f'option {option}: {value} is not an index; for the last {-value} messages write "{value}"'
            )
        return _KAFKA_NUMBERS.get(value, f"index:{value}")
    if not isinstance(value, str):
        raise ConfigError(
            f'option {option}: {json.dumps(value)[:60]} is not a place: write it as a text, as in "earliest"'
        )
    return _checked(option, value)
