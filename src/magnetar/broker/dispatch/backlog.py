"""Operations on what is unacknowledged that need to look at the topic: skip, expire, peek."""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.broker.dispatch.context import DispatchContext
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

_STEPS_PER_TURN: Final = 5_000  # Positions looked at before others get a turn of the loop.


async def entries_to_skip(context: DispatchContext, entries: int) -> Position | None:
    """The last of the first so many unacknowledged entries; None if there is none."""
    return (await _count_to(context, entries))[1]


async def _count_to(context: DispatchContext, entries: int) -> tuple[int, Position | None]:
    """How many of the first so many unacknowledged entries there are, and the last of them. Nothing is read."""
    cursor, last = context.cursor, context.source.last_confirmed
    found, target = 0, None
    position = cursor.next_unacknowledged(cursor.mark_delete)
    while found < entries and position <= last:
        found, target = found + 1, position
        position = cursor.next_unacknowledged(_behind(position))
        if found % _STEPS_PER_TURN == 0:
            await asyncio.sleep(0)
    return found, target


async def acknowledge_before(context: DispatchContext, before_ms: int) -> Position | None:
    """The last entry that was published before that time; None if it is acknowledged already, or there is none."""
    async with asyncio.timeout(context.config.read_timeout_ms / 1_000):
        first_kept = await context.source.position_at_time(before_ms)
    target = context.source.chain.previous_position(min(first_kept, _behind(context.source.last_confirmed)))
    return target if target > context.cursor.mark_delete else None


def _behind(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id + 1)


async def peek(context: DispatchContext, number: int) -> LogEntry | None:
    if number > context.cursor.backlog_entries():
        return None
    found, position = await _count_to(context, number)
    if found < number or position is None:  # Some were acknowledged meanwhile.
        return None
    async with asyncio.timeout(context.config.read_timeout_ms / 1_000):
        entries = await context.source.read(position, 1, 1)
    return entries[0] if entries else None
