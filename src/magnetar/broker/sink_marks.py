"""What a topic remembers of those who publish staged epochs to it: how far each is, in a property of its node.

Property:  `magnetar.sink.<owner>` = {"epoch", "state": "copying" | "done", "start": "ledger:entry"}
Copying:   entries of this epoch may be in the log, all of them behind `start`, in their order, others between them.
           Nothing behind `start` is trimmed meanwhile.
Done:      all of this epoch, and of all epochs before it, is in the log.
Late:      what is staged says that it was published when its task wrote it, and comes to the log when the epoch is
           decided, however much later. `magnetar.staged.lag` is the most that this was, for those who look for a range
           of publish times in a log that is ordered by the broker's.
Read next: staged_publishing.py, docs/staging.md
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
_LAG_MS_MIN: Final = 10_000  # Clocks differ as much.


def property_of(owner: str) -> str:
    return PREFIX + owner


@dataclass(frozen=True, slots=True)
class SinkMark:
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
            raise StagingRecordError(
                f"what a topic remembers of a sink cannot be read: {text[:100]!r}: {error}"
            ) from None


def mark_of(properties: Mapping[str, str], owner: str) -> SinkMark | None:
    text = properties.get(property_of(owner))
    return None if text is None else SinkMark.from_text(text)


def has_marks(properties: Mapping[str, str]) -> bool:
    """Whether a sink publishes to the topic, and may do so again."""
    return any(key.startswith(PREFIX) for key in properties)


def unfinished(properties: Mapping[str, str]) -> dict[str, Position]:
    """Property → from where on the log is still needed to go on. What cannot be read keeps its sink from publishing,
    and not the topic from being served."""
    found: dict[str, Position] = {}
    for key, text in properties.items():
        if not key.startswith(PREFIX):
            continue
        try:
            mark = SinkMark.from_text(text)
        except StagingRecordError as error:
            log.warning("what a topic remembers of a sink is damaged", extra={"property": key, "why": str(error)})
            continue
        if not mark.is_done:
            found[key] = mark.start
    return found


def lag_ms_of(properties: Mapping[str, str]) -> int:
    """How long after their publish time messages came to the log, at the most; of those that were staged."""
    text = properties.get(LAG, "")
    return int(text) if text.isdecimal() else 0


def lag_to_note(properties: Mapping[str, str], lag_ms: int) -> str | None:
    """None: it is known, or too short to matter. Twice of it is noted, so that few are."""
    return str(2 * lag_ms) if lag_ms > max(lag_ms_of(properties), _LAG_MS_MIN) else None
