"""SinkProgress: how far each job that publishes staged epochs to a topic is, in a property of the topic's node.

In state "copying", entries of this epoch may be in the log, all of them after `start`, in their order, others between
them; nothing after `start` is trimmed meanwhile. In state "done", all of this epoch, and of all epochs before it, is in
the log.

Format:    `magnetar.sink.<owner>` = {"epoch", "state": "copying" | "done", "start": "ledger:entry"}.
           `magnetar.staged.lag` is the longest time between a staged message's publish time, which is when its task
           wrote it, and its append, which comes when the epoch is decided. Readers that look for a range of publish
           times need it, as a log is ordered by the broker's time.
Read next: publishing.py, docs/staging.md
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from magnetar.errors import StagingRecordError
from magnetar.topic.position import Position

log = logging.getLogger(__name__)

PREFIX: Final = "magnetar.sink."
LAG: Final = "magnetar.staged.lag"
_LAG_MS_MIN: Final = 10_000  # Clocks differ by this much.


def property_of(owner: str) -> str:
    return PREFIX + owner


@dataclass(frozen=True, slots=True)
class SinkProgress:
    epoch: int
    is_done: bool
    start: Position
    """The last entry of the log before any of this epoch."""

    def covers(self, epoch: int) -> bool:
        """Whether all of that epoch is in the log."""
        return self.epoch > epoch or (self.epoch == epoch and self.is_done)

    def to_text(self) -> str:
        state = "done" if self.is_done else "copying"
        return json.dumps({"epoch": self.epoch, "state": state, "start": str(self.start)}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        try:
            value = json.loads(text)
            ledger_id, entry_id = value["start"].split(":")
            return cls(int(value["epoch"]), value["state"] == "done", Position(int(ledger_id), int(entry_id)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StagingRecordError(f"a topic's property of a sink cannot be read: {text[:100]!r}: {error}") from None


def progress_of(properties: Mapping[str, str], owner: str) -> SinkProgress | None:
    text = properties.get(property_of(owner))
    return None if text is None else SinkProgress.from_text(text)


def has_progress(properties: Mapping[str, str]) -> bool:
    """Whether a sink publishes to the topic, and may do so again."""
    return any(key.startswith(PREFIX) for key in properties)


def unfinished(properties: Mapping[str, str]) -> dict[str, Position]:
    """Returns for each property the position from which the log is still needed to continue.

    A property that cannot be read keeps its sink from publishing, and not the topic from being served.
    """
    found: dict[str, Position] = {}
    for key, text in properties.items():
        if not key.startswith(PREFIX):
            continue
        try:
            progress = SinkProgress.from_text(text)
        except StagingRecordError as error:
            log.warning("a topic's property of a sink is damaged", extra={"property": key, "why": str(error)})
            continue
        if not progress.is_done:
            found[key] = progress.start
    return found


def lag_ms_of(properties: Mapping[str, str]) -> int:
    """Returns the longest time between publish time and append of staged messages."""
    text = properties.get(LAG, "")
    return int(text) if text.isdecimal() else 0


def lag_to_note(properties: Mapping[str, str], lag_ms: int) -> str | None:
    """Returns None if it is known, or too short to matter. Twice the lag is noted, so that few notes are written."""
    return str(2 * lag_ms) if lag_ms > max(lag_ms_of(properties), _LAG_MS_MIN) else None
