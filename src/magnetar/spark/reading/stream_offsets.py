"""Spots: places in a topic partition; and the offsets of a stream, which are one spot for each.

Format:    {"persistent://t/n/x-partition-0": {"b": -1, "e": 4711, "i": 98765, "l": 12}, …, "v": 1}
           = the next message to read: ledger, entry, the number of messages of the entry's batch before it (-1: none),
           and its index (-1: not known). Keys are sorted: Spark compares offsets as text. The end of a query's first
           batch has "begin", too: the beginning of that batch. Spark keeps only the ends of batches and asks for the
           beginning of the first one anew, when "latest" or "-10m" is another place.
Invariant: the index continues when ledgers are added and deleted, so it shows what a position cannot: whether entries
           ever existed between a spot and the first that is left (gaps.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.errors import CheckpointMismatchError
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

    @property
    def before(self) -> Position:
        """The last entry that is read completely."""
        return self.position.previous

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
