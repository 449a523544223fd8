"""Where operations on the backlog end: skip, expire, peek. Each needs a look at the topic, and changes nothing."""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.broker.dispatch.context import DispatchContext
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

_STEPS_PER_TURN: Final = 5_000  # Positions to look at before the loop may run something else.


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
