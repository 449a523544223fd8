"""Places in a topic as people name them, and where in its log they are.

    latest, earliest          the end; the first message there is
    12:34, 12:34:-1:5         a message id: ledger, entry; with partition; with the number in its batch
    -1000                     the last thousand messages
    -10m, -2h30m, -500ms      so long ago: what the broker got since then (w, d, h, m, s, ms)
    2026-01-31T10:00:00Z      a time (without a zone: UTC), also as time:1769853600000
    index:42                  the message with this index

Result:    the first message that is to be delivered: an entry, and how many messages of its batch come before it.
Two steps: `parse_place` knows no log and cannot fail later; `find_place` reads what it must (a few entries).
Read next: log.py (position_at_time, position_at_index), cursor.py (reset)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol, TypeAlias

from magnetar.errors import InvalidCursorPositionError
from magnetar.topic.ack_sets import BATCH_MESSAGES_MAX, words_of
from magnetar.topic.chain import LedgerChain
from magnetar.topic.position import EARLIEST, LATEST, Position

_UNITS_MS: Final = {
    "w": 7 * 86_400_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
_NUMBER_MAX: Final = 2**63 - 1
_DURATION = re.compile(r"-(?:\d{1,19}(?:ms|[wdhms]))+")
_DURATION_PART = re.compile(r"(\d+)(ms|[wdhms])")
_COUNT = re.compile(r"-\d{1,19}")
_NAMED = re.compile(r"(time|index):(\d{1,19})")
_MESSAGE_ID = re.compile(r"(-?\d{1,19}):(-?\d{1,19})(?::-?\d{1,10})?(?::(-?\d{1,10}))?")
_TEXT_SHOWN_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class AtMessage:
    """A message id; `batch_index` is −1 for the whole entry."""

    position: Position
    batch_index: int = -1


@dataclass(frozen=True, slots=True)
class AtTime:
    publish_ms: int


@dataclass(frozen=True, slots=True)
class TimeAgo:
    ms: int


@dataclass(frozen=True, slots=True)
class AtIndex:
    index: int


@dataclass(frozen=True, slots=True)
class MessagesAgo:
    count: int


Place: TypeAlias = AtMessage | AtTime | TimeAgo | AtIndex | MessagesAgo


@dataclass(frozen=True, slots=True)
class Found:
    """For `Cursor.reset(found.position, found.still_unacked, found.batch_size)`."""

    position: Position
    """EARLIEST and LATEST stay what they are."""
    skipped: int = 0
    """So many messages of its batch come before the place."""
    batch_size: int = 0
    """Known only if messages are skipped."""

    @property
    def still_unacked(self) -> Sequence[int] | None:
        if not self.skipped:
            return None
        return words_of((1 << self.batch_size) - (1 << self.skipped))


class SeekableLog(Protocol):
    """As much of a `TopicLog` as is needed."""

    chain: LedgerChain

    @property
    def next_confirmed_index(self) -> int: ...
    async def position_at_time(self, publish_ms: int) -> Position: ...
    async def position_at_index(self, index: int) -> Position: ...
    async def index_of(self, position: Position) -> int: ...


# --- from text --------------------------------------------------------------------------------------------------------


def parse_place(text: str) -> Place:
    """InvalidCursorPositionError, which says what a place looks like."""
    text = text.strip()
    if text == "earliest":
        return AtMessage(EARLIEST)
    if text == "latest":
        return AtMessage(LATEST)
    if _COUNT.fullmatch(text):
        return MessagesAgo(int(text[1:]))
    if _DURATION.fullmatch(text):
        return TimeAgo(sum(int(number) * _UNITS_MS[unit] for number, unit in _DURATION_PART.findall(text)))
    if named := _NAMED.fullmatch(text):
        number = min(int(named[2]), _NUMBER_MAX)
        return AtTime(number) if named[1] == "time" else AtIndex(number)
    if message_id := _MESSAGE_ID.fullmatch(text):
        return AtMessage(Position(int(message_id[1]), int(message_id[2])), int(message_id[3] or -1))
    return AtTime(_parse_time(text))


def _parse_time(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
        when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        return max(round(when.timestamp() * 1000), 0)
    except (ValueError, OverflowError):
        shown = text if len(text) <= _TEXT_SHOWN_MAX else f"{text[:_TEXT_SHOWN_MAX]}…"
        raise InvalidCursorPositionError(
            f"{shown!r} is no place in a topic: give earliest, latest, a message id (12:34), a number of messages "
            "(-1000), a time ago (-10m), a time (2026-01-31T10:00:00Z) or index:42"
        ) from None


# --- in a log ---------------------------------------------------------------------------------------------------------


async def find_place(place: Place, log: SeekableLog, now_ms: int) -> Found:
    """Where it is now. What lies before the log is its first entry, what lies behind it is its end."""
    match place:
        case AtMessage(position, batch_index):
            return await _at_message(position, batch_index, log)
        case AtTime(publish_ms):
            return Found(await log.position_at_time(publish_ms))
        case TimeAgo(ms):
            return Found(await log.position_at_time(max(now_ms - ms, 0)))
        case AtIndex(index):
            return await _at_index(index, log)
        case MessagesAgo(count):
            return await _at_index(max(log.next_confirmed_index - count, 0), log)


async def _at_message(position: Position, batch_index: int, log: SeekableLog) -> Found:
    if batch_index <= 0 or not log.chain.contains(position):
        return Found(position)
    return await _within_batch(position, batch_index, log)


async def _at_index(index: int, log: SeekableLog) -> Found:
    if index >= log.next_confirmed_index:
        return Found(LATEST)
    position = await log.position_at_index(index)
    if not log.chain.contains(position):
        return Found(position)
    return await _within_batch(position, index - await log.index_of(position), log)


async def _within_batch(position: Position, skipped: int, log: SeekableLog) -> Found:
    """A number behind the end of its batch means the next entry."""
    if skipped <= 0:
        return Found(position)
    following = log.chain.next_position(position)
    batch_size = await log.index_of(following) - await log.index_of(position)
    if skipped >= batch_size:
        return Found(following)
    return Found(position, skipped, batch_size) if batch_size <= BATCH_MESSAGES_MAX else Found(position)
