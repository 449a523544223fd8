"""Where in a topic's log something begins: by bisection over its entries, each step one read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from magnetar.topic.chain import LedgerChain
from magnetar.topic.log_entry import LogEntry, broker_header_of
from magnetar.topic.position import EARLIEST, Position

ReadOne = Callable[[Position], Awaitable[LogEntry]]


async def first_position_where(
    chain: LedgerChain, read_one: ReadOne, is_there: Callable[[LogEntry], bool], *, after: Position = EARLIEST
) -> Position:
    """The first entry behind `after` for which `is_there` holds, given that it holds for all that follow; else `end`.

    Bounded by what was confirmed when it began: entries that come meanwhile are not looked at.
    """
    low, high = 1, chain.entries_between(after, chain.last_confirmed) + 1
    end = high
    while low < high:
        middle = (low + high) // 2
        if is_there(await read_one(chain.position_after(after, middle))):
            high = middle
        else:
            low = middle + 1
    return chain.position_after(after, low) if low < end else chain.end


def time_of(entry: LogEntry) -> int:
    """When the broker took it, or else when its producer says it was published; milliseconds."""
    broker_ms = broker_header_of(entry.data)[1]
    return broker_ms if broker_ms is not None else int(entry.head.metadata.publish_time)
