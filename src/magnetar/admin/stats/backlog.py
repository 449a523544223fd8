"""Looking through a whole backlog: how many entries and messages it has, markers apart."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.subscription import Subscription
from magnetar.topic.position import Position

_ENTRIES_MAX: Final = 100_000
_SECONDS_MAX: Final = 50.0
_RUN: Final = 500
_RUN_BYTES: Final = 2**20


async def analyze_backlog(topic: PersistentTopic, subscription: Subscription) -> dict[str, Any]:
    """`aborted`: there is more than may be looked at in one request."""
    cursor, log = subscription.cursor, topic.log
    entries = messages = markers = 0
    first = last = ""
    deadline = asyncio.get_running_loop().time() + _SECONDS_MAX
    position = cursor.next_unacknowledged(_behind(cursor.mark_delete))
    is_aborted = False
    while log.chain.contains(position):
        if entries >= _ENTRIES_MAX or asyncio.get_running_loop().time() > deadline:
            is_aborted = True
            break
        run = await log.read(position, _RUN, _RUN_BYTES)
        for entry in run:
            if cursor.is_acknowledged(entry.position):
                continue
            last = f"{entry.position.ledger_id}:{entry.position.entry_id}"
            first = first or last
            entries += 1
            if entry.head.metadata.HasField("marker_type"):
                markers += 1
            else:
                messages += entry.messages
        position = cursor.next_unacknowledged(_behind(run[-1].position)) if run else log.chain.end
    return {
        "entries": entries,
        "messages": messages,
        "markerMessages": markers,
        "filterRejectedEntries": 0,
        "filterAcceptedEntries": entries,
        "filterRescheduledEntries": 0,
        "filterRejectedMessages": 0,
        "filterAcceptedMessages": messages,
        "filterRescheduledMessages": 0,
        "aborted": is_aborted,
        "firstMessageId": first,
        "lastMessageId": last,
    }


def _behind(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id + 1)
