"""The options of a read, as Spark passes them: names in lower case, values as text.

Failure:   refused are an unknown name, with the nearest known one; a value of the wrong kind; two options that
           contradict each other. All of it happens before any request to the cluster.
Read next: start_and_end.py (offsets and ranges), docs/spark.md (what each option means)
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from magnetar.client.topics import full_name
from magnetar.errors import ConfigError, InvalidNameError
from magnetar.spark.cluster_values import ClusterOptions
from magnetar.spark.option_names import check_options
from magnetar.spark.reading.option_values import choice, flag, json_names, number
from magnetar.spark.reading.start_and_end import PlaceOptions, parse_place_options

READ_OPTIONS: Final = (
    "serviceUrl",
    "adminUrl",
    "topic",
    "topics",
    "topicsPattern",
    "startingOffsets",
    "endingOffsets",
    "startingIndex",
    "endingIndex",
    "startingTime",
    "endingTime",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "subscription",
    "valueSchema",
    "encrypted",
    "readVia",
)
_CANONICAL: Final = {name.lower(): name for name in READ_OPTIONS}
_FROM_LOAD: Final = ("path", "paths")  # Spark's own names for the argument of `load("orders")`.
_STREAM_ONLY: Final = ("maxMessagesPerTrigger", "maxBytesPerTrigger", "subscription")
_BATCH_ONLY: Final = ("endingOffsets", "endingIndex", "endingTime")
_PARTITIONS_MAX: Final = 100_000
_LONG_MAX: Final = 2**63 - 1


class ReadVia(enum.Enum):
    BOOKIE = "bookie"
    BROKER = "broker"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Subject:
    """The topics to read: by name, or by a pattern."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    """A regular expression for the name, after `namespace`; empty: `names` has the topics."""
    namespace: str = ""

    def __str__(self) -> str:
        return f"topics that match {self.pattern}" if self.pattern else ", ".join(self.names)


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
    """Parses the options; ConfigError names the error and the valid values."""
    options = _known(given)
    return ReadOptions(
        cluster=_cluster(options),
        subject=_subject(options),
        places=parse_place_options(options),
        messages_per_trigger_max=number(options, "maxMessagesPerTrigger", 1, _LONG_MAX),
        bytes_per_trigger_max=number(options, "maxBytesPerTrigger", 1, _LONG_MAX),
        partitions_min=number(options, "minPartitions", 1, _PARTITIONS_MAX),
        fail_on_data_loss=flag(options, "failOnDataLoss", default=True),
        include_headers=flag(options, "includeHeaders", default=False),
        subscription=_subscription(options),
        typed=choice(options, "valueSchema", ("raw", "topic"), "raw") == "topic",
        encrypted_raw=choice(options, "encrypted", ("fail", "raw"), "fail") == "raw",
        read_via=ReadVia(choice(options, "readVia", tuple(via.value for via in ReadVia), ReadVia.AUTO.value)),
    )


def require_batch(given: Mapping[str, str]) -> None:
    """Refuses options that are for a stream only."""
    _refuse(given, _STREAM_ONLY, "is for spark.readStream: a batch reads everything between its two ends")


def require_stream(given: Mapping[str, str]) -> None:
    _refuse(given, _BATCH_ONLY, "is for spark.read: a stream has no end (trigger(availableNow=True) stops at today's)")


def _refuse(given: Mapping[str, str], names: tuple[str, ...], why: str) -> None:
    lowered = {key.lower() for key in given}
    for name in names:
        if name.lower() in lowered:
            raise ConfigError(f"option {name} {why}")


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the options by their canonical names."""
    check_options((key for key in given if key.lower() not in _FROM_LOAD), READ_OPTIONS)
    return {_CANONICAL.get(key.lower(), key.lower()): value for key, value in given.items()}


def _cluster(options: Mapping[str, str]) -> ClusterOptions:
    return ClusterOptions.of(options.get("serviceUrl"), options.get("adminUrl"))


def _subscription(options: Mapping[str, str]) -> str:
    name = options.get("subscription", "")
    if "subscription" in options and not name.strip():
        raise ConfigError("option subscription is empty: give the name of the subscription that shows the progress")
    return name


# --- what is read -----------------------------------------------------------------------------------------------------


def _subject(options: Mapping[str, str]) -> Subject:
    given = [name for name in ("topic", "topics", "topicsPattern", *_FROM_LOAD) if options.get(name, "").strip()]
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
    try:
        name = full_name(text)
    except InvalidNameError as error:
        raise ConfigError(f"option {option}: {error}") from None
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
