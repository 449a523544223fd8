"""Operations on what is unacknowledged that need to look at the topic: skip, expire, peek."""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.broker.dispatch.context import DispatchContext
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

_STEPS_PER_TURN: Final = 5_000  # Positions looked at before others get a turn of the loop.
_PEEKED_MAX: Final = 10_000


async def entries_to_skip(context: DispatchContext, entries: int) -> Position | None:
    """The last of the first so many unacknowledged entries; None if there is none."""
    cursor, last = context.cursor, context.source.last_confirmed
    target: Position | None = None
    position = cursor.next_unacknowledged(cursor.mark_delete)
    for step in range(entries):
        if position > last:
            break
        target = position
        position = cursor.next_unacknowledged(Position(position.ledger_id, position.entry_id + 1))
        if step % _STEPS_PER_TURN == _STEPS_PER_TURN - 1:
            await asyncio.sleep(0)
    return target


async def acknowledge_before(context: DispatchContext, before_ms: int) -> Position | None:
    """The last entry that was published before that time; None if it is acknowledged already, or there is none."""
    async with asyncio.timeout(context.config.read_timeout_ms / 1_000):
        first_kept = await context.source.position_at_time(before_ms)
    target = context.source.chain.previous_position(min(first_kept, _behind(context.source.last_confirmed)))
    return target if target > context.cursor.mark_delete else None


def _behind(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id + 1)


async def peek(context: DispatchContext, entries: int) -> list[LogEntry]:
    cursor, source, config = context.cursor, context.source, context.config
    found: list[LogEntry] = []
    wanted = min(entries, _PEEKED_MAX)
    position = cursor.next_unacknowledged(cursor.mark_delete)
    while len(found) < wanted and position <= source.last_confirmed:
        async with asyncio.timeout(config.read_timeout_ms / 1_000):
            run = await source.read(position, min(wanted - len(found), config.read_entries_max), config.read_bytes_max)
        if not run:
            break
        found.extend(entry for entry in run if not cursor.is_acknowledged(entry.position))
        position = cursor.next_unacknowledged(_behind(run[-1].position))
    return found[:wanted]
