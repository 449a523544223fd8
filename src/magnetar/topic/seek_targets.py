"""Seek targets: where a user wants a subscription or a reader to begin, as text, and where that is in a log.

    latest, earliest          the end; the first message that exists
    12:34, 12:34:-1:5         a message id: ledger, entry; with partition; with the number in its batch
    -1000                     the last thousand messages
    -10m, -2h30m, -500ms      a time ago: what the broker received since then (w, d, h, m, s, ms)
    2026-01-31T10:00:00Z      a time (without a zone: UTC), also as time:1769853600000
    index:42                  the message with this index

The result is the first message that is to be delivered, which is an entry, and how many messages of its batch come
before it.

Order:     `parse_seek_target` knows no log; what it returns is well-formed. `require_existing` refuses the id or index
           of a message that the log does not have. `find_seek_position` then reads what it must, a few entries.
Limits:    A message id, an index and a number of messages have a meaning in one log only (`is_of_one_log`).
Read next: topic/log/log.py (position_at_time, position_at_index), topic/cursor/cursors.py (reset)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol, TypeAlias

from magnetar.errors import InvalidCursorPositionError, MalformedPlaceError
from magnetar.topic.chain import LedgerChain
from magnetar.topic.cursor.acks import BATCH_MESSAGES_MAX, words_of
from magnetar.topic.position import EARLIEST, LATEST, Position

_UNITS_MS: Final = {"w": 7 * 86_400_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
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


SeekTarget: TypeAlias = AtMessage | AtTime | TimeAgo | AtIndex | MessagesAgo


def is_of_one_log(target: SeekTarget) -> bool:
    """Whether the target names or counts messages of one log. Times, earliest and latest exist in every partition."""
    if isinstance(target, AtMessage):
        return target.position not in (EARLIEST, LATEST)
    return isinstance(target, AtIndex | MessagesAgo)


@dataclass(frozen=True, slots=True)
class SeekPosition:
    """Is the place of a target in a log, for `Cursor.reset(found.position, found.still_unacked, found.batch_size)`."""

    position: Position
    """EARLIEST and LATEST stay as they are."""
    skipped: int = 0
    """The number of messages of its batch that come before the target."""
    batch_size: int = 0
    """Is known only if messages are skipped."""

    @property
    def still_unacked(self) -> Sequence[int] | None:
        if not self.skipped:
            return None
        return words_of((1 << self.batch_size) - (1 << self.skipped))


class SeekableLog(Protocol):
    """The part of a `TopicLog` that is needed."""

    chain: LedgerChain

    @property
    def next_confirmed_index(self) -> int: ...
    async def position_at_time(self, publish_ms: int) -> Position: ...
    async def position_at_index(self, index: int) -> Position: ...
    async def index_of(self, position: Position) -> int: ...


def parse_seek_target(text: str) -> SeekTarget:
    """Raises MalformedPlaceError, which lists what is accepted."""
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
        raise MalformedPlaceError(
            f"{shown!r} is not a position in a topic: give earliest, latest, a message id (12:34), a number of "
            "messages (-1000), a time ago (-10m), a time (2026-01-31T10:00:00Z) or index:42"
        ) from None


async def require_existing(target: SeekTarget, log: SeekableLog) -> None:
    """Raises InvalidCursorPositionError for a message id or an index that the log does not have.

    The error names those that exist. The index of the next message to come is accepted: it is the end of the log.
    """
    match target:
        case AtMessage(position) if is_of_one_log(target) and not log.chain.contains(position):
            first, last = log.chain.first_position, log.chain.last_confirmed
            raise _missing(f"no message has the id {position}", f"{first} to {last}" if log.chain.entries else "")
        case AtIndex(index):
            first_index, end = await log.index_of(log.chain.first_position), log.next_confirmed_index
            if not first_index <= index <= end:
                existing = f"index:{first_index} to index:{end - 1}" if first_index < end else ""
                raise _missing(f"no message has the index {index}", existing)


def _missing(what: str, existing: str) -> InvalidCursorPositionError:
    range_ = f"the messages that exist are {existing}" if existing else "the topic is empty"
    return InvalidCursorPositionError(f"{what}: {range_}; earliest, latest and times are always accepted")


async def find_seek_position(target: SeekTarget, log: SeekableLog, now_ms: int) -> SeekPosition:
    """Finds the target as of now. A target before the log is its first entry, one after the log is its end."""
    match target:
        case AtMessage(position, batch_index):
            return await _at_message(position, batch_index, log)
        case AtTime(publish_ms):
            return SeekPosition(await log.position_at_time(publish_ms))
        case TimeAgo(ms):
            return SeekPosition(await log.position_at_time(max(now_ms - ms, 0)))
        case AtIndex(index):
            return await _at_index(index, log)
        case MessagesAgo(count):
            return await _at_index(max(log.next_confirmed_index - count, 0), log)


async def _at_message(position: Position, batch_index: int, log: SeekableLog) -> SeekPosition:
    if batch_index <= 0 or not log.chain.contains(position):
        return SeekPosition(position)
    return await _within_batch(position, batch_index, log)


async def _at_index(index: int, log: SeekableLog) -> SeekPosition:
    if index >= log.next_confirmed_index:
        return SeekPosition(LATEST)
    position = await log.position_at_index(index)
    if not log.chain.contains(position):
        return SeekPosition(position)
    return await _within_batch(position, index - await log.index_of(position), log)


async def _within_batch(position: Position, skipped: int, log: SeekableLog) -> SeekPosition:
    """Skips within a batch. A number past its end means the next entry."""
    if skipped <= 0:
        return SeekPosition(position)
    following = log.chain.next_position(position)
    batch_size = await log.index_of(following) - await log.index_of(position)
    if skipped >= batch_size:
        return SeekPosition(following)
    return SeekPosition(position, skipped, batch_size) if batch_size <= BATCH_MESSAGES_MAX else SeekPosition(position)
