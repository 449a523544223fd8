"""The options of a read, as Spark passes them: names in lower case, values as text.

Failure:   refused are an unknown name, with the nearest known one; a value of the wrong kind; two options that
           contradict each other. All of it happens before any request to the cluster.
Format:    startingOffsets and endingOffsets are earliest, latest, a message id (12:34), index:42, a time, -10m, -1000
           (topic/seek_targets.py); or JSON with one of these for each topic:
           {"orders": "earliest", "payments-partition-0": "12:34", "clicks": {"0": 42, "1": -2}}.
           A number for a partition is an index; -2 and -1 are earliest and latest, as in Kafka's connector. Topics that
           are not named begin and end as without the option.
           startingIndex ≤ index < endingIndex; startingTime ≤ publish_time < endingTime. They narrow the offsets: of
           several beginnings the last counts, of several ends the first.
Order:     places are texts for `GET …/place`, which the topic's broker resolves: its messages, its clock. publish_time
           is of the producer's clock: for a range of it a batch looks a little further, and drops rows
           (ranges.py).
Read next: docs/spark.md (what each option means)
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.client.topics import full_name, partition_name
from magnetar.errors import ConfigError, InvalidCursorPositionError, InvalidNameError
from magnetar.spark.cluster import ClusterOptions
from magnetar.spark.options import choice, flag, json_names, known_options, number
from magnetar.topic.seek_targets import AtMessage, AtTime, TimeAgo, parse_seek_target

_TOPICS: Final = ("topic", "topics", "topicsPattern")
_BEGINNINGS: Final = ("startingOffsets", "startingIndex", "startingTime")
_BATCH_ONLY: Final = ("endingOffsets", "endingIndex", "endingTime")
_STREAM_ONLY: Final = ("maxMessagesPerTrigger", "maxBytesPerTrigger", "subscription")
_OTHERS: Final = ("minPartitions", "failOnDataLoss", "includeHeaders", "valueSchema", "encrypted", "readVia")
READ_OPTIONS: Final = ("serviceUrl", "adminUrl", *_TOPICS, *_BEGINNINGS, *_BATCH_ONLY, *_STREAM_ONLY, *_OTHERS)
_FROM_LOAD: Final = ("path", "paths")  # Spark's own names for the argument of `load("orders")`.
_PARTITIONS_MAX: Final = 100_000
_LONG_MAX: Final = 2**63 - 1
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_KAFKA_NUMBERS: Final = {-2: EARLIEST, -1: LATEST}
_SHOWN_MAX: Final = 60


class ReadVia(enum.Enum):
    AUTO = "auto"
    BOOKIE = "bookie"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class Subject:
    names: tuple[str, ...] = ()
    pattern: str = ""
    """A regular expression for the name, after `namespace`; empty: `names` has the topics."""
    namespace: str = ""

    def __str__(self) -> str:
        return f"topics that match {self.pattern}" if self.pattern else ", ".join(self.names)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options. Picklable: they travel to every task."""

    cluster: ClusterOptions
    subject: Subject
    places: PlaceOptions = field(default_factory=PlaceOptions)
    messages_per_trigger_max: int | None = None
    bytes_per_trigger_max: int | None = None
    partitions_min: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    subscription: str = ""
    typed: bool = False
    """`valueSchema=topic`: the fields of the topic's schema as columns."""
    encrypted_raw: bool = False
    read_via: ReadVia = ReadVia.AUTO


def parse_read_options(given: Mapping[str, str]) -> ReadOptions:
    options = known_options(given, READ_OPTIONS, _FROM_LOAD)
    return ReadOptions(
        cluster=ClusterOptions.of(options.get("serviceUrl"), options.get("adminUrl")),
        subject=_subject(options),
        places=PlaceOptions(_bound(options, "starting"), _bound(options, "ending")),
        messages_per_trigger_max=number(options, "maxMessagesPerTrigger", 1, _LONG_MAX),
        bytes_per_trigger_max=number(options, "maxBytesPerTrigger", 1, _LONG_MAX),
        partitions_min=number(options, "minPartitions", 1, _PARTITIONS_MAX),
        fail_on_data_loss=flag(options, "failOnDataLoss", default=True),
        include_headers=flag(options, "includeHeaders", default=False),
        subscription=_subscription(options),
        typed=choice(options, "valueSchema", ("raw", "topic")) == "topic",
        encrypted_raw=choice(options, "encrypted", ("fail", "raw")) == "raw",
        read_via=ReadVia(choice(options, "readVia", [via.value for via in ReadVia])),
    )


def require_batch(given: Mapping[str, str]) -> None:
    _refuse(given, _STREAM_ONLY, "is for spark.readStream: a batch reads everything between its two ends")


def require_stream(given: Mapping[str, str]) -> None:
    _refuse(given, _BATCH_ONLY, "is for spark.read: a stream has no end (trigger(availableNow=True) stops at today's)")


def _refuse(given: Mapping[str, str], names: tuple[str, ...], why: str) -> None:
    lowered = {key.lower() for key in given}
    for name in names:
        if name.lower() in lowered:
            raise ConfigError(f"option {name} {why}")


def _subscription(options: Mapping[str, str]) -> str:
    name = options.get("subscription", "")
    if "subscription" in options and not name.strip():
        raise ConfigError("option subscription is empty: give the name of the subscription that shows the progress")
    return name


# --- what is read -----------------------------------------------------------------------------------------------------


def _subject(options: Mapping[str, str]) -> Subject:
    given = [name for name in (*_TOPICS, *_FROM_LOAD) if options.get(name, "").strip()]
    if not given:
        raise ConfigError(
            'which topic? Give option topic (or topics, or topicsPattern), as in .option("topic", "orders"). A table '
            "of CREATE TABLE keeps no options: use CREATE TEMPORARY VIEW … USING magnetar OPTIONS (topic '…')"
        )
    if len(given) > 1:
        raise ConfigError(f"options {' and '.join(given)} contradict each other: give one of them")
    (name,) = given
    value = options[name].strip()
    if name == "topicsPattern":
        return _pattern(value)
    if name in ("topic", "path"):
        return Subject((_full(name, value),))
    texts = json_names(value) if name == "paths" else [text.strip() for text in value.split(",")]
    names = [_full(name, text) for text in texts if text]
    if len(set(names)) != len(names):
        raise ConfigError(f"option {name} names a topic twice: {value}")
    return Subject(tuple(names))


def _full(option: str, text: str) -> str:
    if "," in text:
        raise ConfigError(
            f"option {option} is one topic, and {text!r} has a comma in it: use option topics for several"
        )
    name = _full_name(option, text)
    if not name.startswith("persistent://"):
        raise ConfigError(f"option {option}: {name} is not persistent, so it keeps no messages that could be read")
    return name


def _pattern(text: str) -> Subject:
    name = _full("topicsPattern", text.replace(",", "\0")).replace("\0", ",")  # A comma may be part of an expression.
    tenant, namespace, local = name.removeprefix("persistent://").split("/", 2)
    for part in (tenant, namespace):
        if not re.fullmatch(r"[\w\-=:.]+", part):
            raise ConfigError(
                f"option topicsPattern: write the whole namespace, as in public/default/orders-.*; {part!r} is "
                "not a name"
            )
    try:
        re.compile(local)
    except re.error as error:
        raise ConfigError(f"option topicsPattern: {local!r} is not a regular expression: {error}") from None
    return Subject(pattern=local, namespace=f"{tenant}/{namespace}")


# --- where a read begins and ends -------------------------------------------------------------------------------------


def place_text(text: str) -> PlaceText:
    place = parse_seek_target(text)
    is_named = text in (EARLIEST, LATEST)
    return PlaceText(text, (isinstance(place, AtMessage) or text.startswith("index:")) and not is_named)


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


def _by_topic(option: str, text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"option {option} is not JSON: {error}") from None
    places: dict[str, str] = {}
    for name, value in found.items():
        topic = _full_name(option, name)
        if isinstance(value, dict):
            places.update({_partition(option, topic, part): _place(option, place) for part, place in value.items()})
        else:
            places[topic] = _place(option, value)
    return places


def _full_name(option: str, name: str) -> str:
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
            f'option {option}: {json.dumps(value)[:60]} is not a position: write it as a text, as in "earliest"'
        )
    return _checked(option, value)
