"""Spots: places in a topic partition; the offsets of a stream, one spot for each; and gaps between spots and topics.

Format:    {"persistent://t/n/x-partition-0": {"b": -1, "e": 4711, "i": 98765, "l": 12}, …, "v": 1}
           = the next message to read: ledger, entry, the number of messages of the entry's batch before it (-1: none),
           and its index (-1: not known). Keys are sorted: Spark compares offsets as text. The end of a query's first
           batch has "begin", too: the beginning of that batch. Spark keeps only the ends of batches and asks for the
           beginning of the first one anew, when "latest" or "-10m" is another place.
Invariant: the index continues when ledgers are added and deleted, so it shows what a position cannot: whether entries
           ever existed between a spot and the first that is left.
Failure:   a query continues at a spot, but the topic begins after it, or ends before it: a gap.
           trimmed: the spot lies before the first entry that is left: retention, or trimming after compaction, removed
           the messages between. Their index shows their number.
           nothing: the same, but the index of the first entry left is the spot's: no message is missing, only a ledger
           that was read to its end was deleted.
           another: the spot lies after the end, or its index does not fit: the topic was deleted and made anew, or the
           cluster was restored from an older state.
           untold: it lies before the first entry that is left, and that one cannot be read now: it is unknown whether
           anything was between. A later try may succeed, as its bookies may come back.
           loss: no bookie can return an entry that the topic lists; the task that reads it reports this (fetching.py).
           With failOnDataLoss (the default) all but the second are errors; without it, the query continues with the
           existing messages, and the log names what was left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.errors import (
    CheckpointMismatchError,
    DataLossError,
    DataTrimmedError,
    GapUnknownError,
    TopicRecreatedError,
)
from magnetar.spark.cluster import Segments
from magnetar.topic.position import Position

VERSION: Final = 1
_VERSION_KEY: Final = "v"
_BEGIN_KEY: Final = "begin"
UNKNOWN: Final = -1
_FIELDS: Final = ("b", "e", "i", "l")


@dataclass(frozen=True, slots=True, order=True)
class Spot:
    """A place, ordered as the messages are."""

    ledger_id: int
    entry_id: int
    skipped: int = 0
    index: int = field(default=UNKNOWN, compare=False)

    @property
    def position(self) -> Position:
        return Position(self.ledger_id, self.entry_id)

    @classmethod
    def behind(cls, last: Position, next_index: int) -> Spot:
        """Returns the place of the next entry."""
        return cls(*last.next, 0, next_index)

    def __str__(self) -> str:
        text = f"{self.ledger_id}:{self.entry_id}"
        return f"{text} (message {self.skipped} of its batch)" if self.skipped else text


Spots = dict[str, Spot]
"""Full name of a topic without partitions, or of one partition → spot."""


@dataclass(frozen=True, slots=True)
class Offset:
    """An offset of a stream for Spark: between two of them lies a batch."""

    spots: Spots
    begin: Spots | None = None
    """For the end of a query's first batch: the spots at which it begins."""


def to_json(offset: Offset) -> dict[str, Any]:
    begin = {} if offset.begin is None else {_BEGIN_KEY: _spots_json(offset.begin)}
    # Names of topics begin with "persistent", so this is in order.
    return {**begin, **_spots_json(offset.spots), _VERSION_KEY: VERSION}


def _spots_json(spots: Mapping[str, Spot]) -> dict[str, Any]:
    return {
        part: {"b": spot.skipped or -1, "e": spot.entry_id, "i": spot.index, "l": spot.ledger_id}
        for part, spot in sorted(spots.items())
    }


def from_json(offset: Mapping[str, Any]) -> Offset:
    """Parses a checkpoint, which may be from anywhere. Raises CheckpointMismatchError."""
    version = offset.get(_VERSION_KEY)
    if version != VERSION:
        raise CheckpointMismatchError(
            f"the checkpoint has offsets that this release cannot read ({_VERSION_KEY} is {version!r}, not {VERSION}): "
            "of another source, or of a newer release. Use what wrote it, or another checkpointLocation"
        )
    parts = {part: value for part, value in offset.items() if part not in (_VERSION_KEY, _BEGIN_KEY)}
    begin = offset.get(_BEGIN_KEY)
    if begin is not None and not isinstance(begin, dict):
        raise CheckpointMismatchError(f"the checkpoint does not say where its query began: {begin!r}")
    return Offset(_spots(parts), None if begin is None else _spots(begin))


def _spots(parts: Mapping[str, Any]) -> Spots:
    return {part: _spot(part, value) for part, value in sorted(parts.items())}


def _spot(part: str, value: Any) -> Spot:
    numbers = [value.get(name) for name in _FIELDS] if isinstance(value, dict) else []
    whole = [each for each in numbers if isinstance(each, int) and not isinstance(each, bool)]
    if len(whole) != len(_FIELDS):
        raise CheckpointMismatchError(f"the checkpoint's offset of {part} is damaged: {value!r}")
    skipped, entry_id, index, ledger_id = whole
    return Spot(ledger_id, entry_id, max(skipped, 0), index)


log = logging.getLogger(__name__)
_GO_ON = "To continue with the remaining messages, set option failOnDataLoss to false"


@dataclass(frozen=True, slots=True)
class Begin:
    """The real beginning of a read, and its error, if it has one."""

    spot: Spot
    trouble: DataLossError | None = None


def end_of(segments: Segments) -> Spot:
    return Spot.behind(segments.last_confirmed, segments.next_index)


def earliest_of(segments: Segments) -> Spot:
    earliest = segments.earliest
    for ledger in segments.ledgers:
        if ledger.ledger_id == earliest.ledger_id:
            index = ledger.first_index if earliest.entry_id == 0 else None
            return Spot(*earliest, 0, UNKNOWN if index is None else index)
    return Spot(*earliest, 0, segments.next_index if earliest > segments.last_confirmed else UNKNOWN)


def begin_at(spot: Spot, segments: Segments) -> Begin:
    end, earliest = end_of(segments), earliest_of(segments)
    if spot > end:
        if spot.index != UNKNOWN and spot.index == end.index:
            return Begin(end)  # An empty ledger was dropped when the topic moved: nothing is between.
        return Begin(earliest, _another(segments.topic, spot, end, "ends before that"))
    if spot >= earliest:
        return Begin(spot)
    if spot.index == UNKNOWN:
        return Begin(earliest, _before_all(segments.topic, spot, earliest))
    if earliest.index == UNKNOWN:
        return Begin(earliest, _untold(segments.topic, spot, earliest))
    if spot.index > earliest.index:
        return Begin(earliest, _another(segments.topic, spot, earliest, "now begins with a lower index"))
    missing = earliest.index - spot.index
    return Begin(earliest, _trimmed(segments.topic, spot, earliest, f"{missing} messages") if missing else None)


def require_reached(end: Spot, segments: Segments) -> DataLossError | None:
    """Checks that a batch that was planned once still exists when it is repeated."""
    reached = end_of(segments)
    if end <= reached or (end.index != UNKNOWN and end.index <= reached.index):
        return None
    return _another(segments.topic, end, reached, "ends before that")


def deleted(topic: str, spot: Spot) -> DataLossError:
    return TopicRecreatedError(
        f"{topic} does not exist any more, and the query was at {spot}: it was deleted. Begin with a new "
        f"checkpointLocation, without this topic or after making it anew. {_GO_ON}"
    )


def tolerate(trouble: DataLossError | None, *, fail_on_data_loss: bool) -> None:
    """Raises the error, or logs it."""
    if trouble is None:
        return
    if fail_on_data_loss:
        raise trouble
    log.warning(
        "continuing after a gap, because failOnDataLoss is false: %s", str(trouble).partition(_GO_ON)[0].rstrip()
    )


def _trimmed(topic: str, spot: Spot, earliest: Spot, what: str) -> DataTrimmedError:
    return DataTrimmedError(
        f"{what} of {topic} are gone: the query was to begin at {spot}, and the first entry left is {earliest}. They "
        "were not lost: retention removed them, as the namespace's policies say, or compaction has moved on. Keep them "
        f"longer, or hold them with option subscription. {_GO_ON}"
    )


def _before_all(topic: str, spot: Spot, earliest: Spot) -> DataTrimmedError:
    """Returns the error for a message id from a user: no index shows whether it was ever one of this topic."""
    return DataTrimmedError(
        f"{topic} has no message {spot}: its first one is {earliest}. Either retention has removed {spot}, as the "
        "namespace's policies say, or it is the id of a message of another topic. Begin with earliest, or with an id "
        f"that a read of this topic shows. {_GO_ON}"
    )


def _untold(topic: str, spot: Spot, earliest: Spot) -> GapUnknownError:
    return GapUnknownError(
        f"it is unknown whether messages of {topic} are gone: the query was to begin at {spot}, index {spot.index}, "
        f"and the first entry left, {earliest}, cannot be read. Its bookies are away, or it is lost: magnetar pipeline "
        f"scrub finds out. {_GO_ON}"
    )


def _another(topic: str, spot: Spot, found: Spot, how: str) -> TopicRecreatedError:
    index = "" if spot.index == UNKNOWN else f", index {spot.index}"
    found_index = "" if found.index == UNKNOWN else f", index {found.index}"
    return TopicRecreatedError(
        f"{topic} is not the topic that this query was reading: the query was at {spot}{index}, and the topic {how} "
        f"({found}{found_index}). It was deleted and made anew, or restored from an older state. Begin with a new "
        f"checkpointLocation. {_GO_ON}: it then begins with the first message"
    )
