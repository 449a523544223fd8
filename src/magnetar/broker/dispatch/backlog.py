"""How large a backlog is, in messages, and where operations on it end: skip, expire, peek.

Each needs a look at the topic, and changes nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from magnetar.broker.dispatch.context import DispatchContext
from magnetar.topic.backlog import PARTS_MAX, MessageCount
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.words import at_least, counted

_STEPS_PER_TURN: Final = 5_000  # Positions to look at before the loop may run something else.
_COUNT_S_MAX: Final = 1.0
"""Seconds that counting may wait for bookies. A person asks, and the number of entries is an answer, too."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Describes what a subscription has not acknowledged, at one moment."""

    entries: int
    messages: int
    unread_entries: int
    """Those from the next entry on that is read for a consumer; some may be acknowledged."""
    unread_messages: int
    """Those of them that are not acknowledged."""
    is_exact: bool
    """If not, the messages are not known: the numbers are those of entries, so there may be more messages."""

    @property
    def text(self) -> str:
        return self.counted(self.messages)

    def counted(self, messages: int) -> str:
        """Returns some of these messages in words."""
        return at_least(counted(messages, "message"), is_exact=self.is_exact)


def backlog_in_entries(context: DispatchContext, next_read: Position | None) -> Backlog:
    """Counts each entry as one message, without a look at any. `next_read` is None before the first consumer."""
    entries = context.cursor.backlog_entries()
    before = context.cursor.mark_delete if next_read is None else next_read.previous
    unread = context.source.chain.entries_between(before, context.source.last_confirmed)
    return Backlog(entries, entries, unread, min(entries, unread), is_exact=False)


async def count_backlog(context: DispatchContext, next_read: Position | None) -> Backlog:
    """Counts as of now, in messages if that takes few reads, which succeed soon. Otherwise it counts in entries."""
    in_entries = backlog_in_entries(context, next_read)
    mark_delete = context.cursor.mark_delete
    count = MessageCount(context.source, context.cursor.acked_parts(PARTS_MAX))
    try:
        async with asyncio.timeout(_COUNT_S_MAX):
            messages = await count.unacknowledged(mark_delete)
            unread = messages if next_read is None else await count.unacknowledged(max(mark_delete, next_read.previous))
    except TimeoutError:
        return in_entries
    if messages is None or unread is None:
        return in_entries
    return replace(in_entries, messages=messages, unread_messages=unread, is_exact=True)


async def count_before(context: DispatchContext, position: Position) -> int | None:
    """Returns the unacknowledged messages before an unacknowledged entry; None if that takes more than a few reads."""
    mark_delete = context.cursor.mark_delete
    count = MessageCount(context.source, context.cursor.acked_parts(PARTS_MAX))
    try:
        async with asyncio.timeout(_COUNT_S_MAX):
            messages = await count.unacknowledged(mark_delete)
            rest = await count.unacknowledged(max(mark_delete, context.source.chain.previous_position(position)))
    except TimeoutError:
        return None
    return None if messages is None or rest is None else messages - rest


async def skip_target(context: DispatchContext, entries: int) -> Position | None:
    """Returns the last of the first `entries` unacknowledged entries; None if none is unacknowledged."""
    return (await _count_to(context, entries))[1]


async def _count_to(context: DispatchContext, entries: int) -> tuple[int, Position | None]:
    """Returns how many unacknowledged entries exist, counted up to `entries`, and the last of these. Reads nothing."""
    cursor, last = context.cursor, context.source.last_confirmed
    found, target = 0, None
    position = cursor.next_unacknowledged(cursor.mark_delete)
    while found < entries and position <= last:
        found, target = found + 1, position
        position = cursor.next_unacknowledged(position.next)
        if found % _STEPS_PER_TURN == 0:
            await asyncio.sleep(0)
    return found, target


async def last_published_before(context: DispatchContext, before_ms: int) -> Position | None:
    """Returns the last entry that was published before that time; None if none was, or all such are acknowledged."""
    async with asyncio.timeout(context.config.read_timeout_ms / 1_000):
        first_kept = await context.source.position_at_time(before_ms)
    target = context.source.chain.previous_position(min(first_kept, context.source.last_confirmed.next))
    return target if target > context.cursor.mark_delete else None


async def peek(context: DispatchContext, number: int) -> LogEntry | None:
    """Returns the unacknowledged entry with this number, counted from 1; None if the backlog is shorter."""
    if number > context.cursor.backlog_entries():
        return None
    found, position = await _count_to(context, number)
    if found < number or position is None:  # Some were acknowledged meanwhile.
        return None
    async with asyncio.timeout(context.config.read_timeout_ms / 1_000):
        entries = await context.source.read(position, 1, 1)
    return entries[0] if entries else None
