"""Backlogs in messages: how many messages of a topic a subscription has not acknowledged.

Every entry carries the index of its last message, so the messages between two positions are a difference of indexes:
those from a position to the end, without those of each acknowledged run after it, and without the acknowledged messages
of each batch that is acknowledged in part. Only the entries at both ends of such a stretch are looked at. Nothing is
counted while messages are published, delivered or acknowledged.

Failure:   The number is unknown (None) if an entry at one of these places cannot be read or carries no index, as those
           of Apache's brokers by default, unless the log has counted its ledger already; or if too much is acknowledged
           out of order. The number of entries is always known, and never higher than that of messages.
Limits:    An entry is read once, and its index kept (topic/log/index.py): asking again costs a read per place that has
           changed, and none for those in the tail cache.
Read next: topic/cursor/acks.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

from magnetar.errors import MagnetarError
from magnetar.topic.cursor.acks import AckedParts
from magnetar.topic.position import Position

PARTS_MAX: Final = 1_000
"""Runs and partly acknowledged batches that are looked at for one answer: two entries each, which the log keeps."""
_ENTRIES_PER_TURN: Final = 200  # Entries to look at before the loop may run something else.


class Steps(Protocol):
    """The part of a `LedgerChain` that is needed."""

    @property
    def last_confirmed(self) -> Position: ...
    def next_position(self, position: Position) -> Position: ...
    def contains(self, position: Position) -> bool: ...


class IndexedLog(Protocol):
    """The part of a `TopicLog` that is needed."""

    @property
    def chain(self) -> Steps: ...
    @property
    def next_confirmed_index(self) -> int: ...
    async def index_bounds(self, position: Position) -> tuple[int, int] | None: ...


Bounds: TypeAlias = tuple[int, int]
"""The index of an entry's first message and the one after its last message."""


class MessageCount:
    """Counts messages of a log as it is when this is made."""

    def __init__(self, log: IndexedLog, acked: AckedParts | None) -> None:
        """`acked` is what is acknowledged after the mark-delete position; None if that is too much to look at."""
        self._log = log
        self._acked = acked
        self._last = log.chain.last_confirmed
        self._end_index = log.next_confirmed_index

    async def unacknowledged(self, after: Position) -> int | None:
        """Returns the messages after this position that are not acknowledged; None if that is not known.

        The position is the mark-delete position or a later one.
        """
        first, acked = self._log.chain.next_position(after), self._acked
        if first > self._last:
            return 0
        if acked is None:
            return None
        runs = [(max(start, first), last) for start, last in acked.ranges if last >= first]
        batches = [position for position in acked.batches if position >= first]
        begin = await self._index_at(first, after)
        bounds = None if begin is None else await self._bounds_of([*(end for run in runs for end in run), *batches])
        if begin is None or bounds is None:
            return None
        whole = sum(bounds[last][1] - bounds[start][0] for start, last in runs)
        partly = sum(bounds[each][1] - bounds[each][0] - acked.batches[each].bit_count() for each in batches)
        return max(0, self._end_index - begin - whole - partly)

    async def _index_at(self, first: Position, before: Position) -> int | None:
        """Returns the index of an entry's first message. If the entry does not give it, the one before may."""
        bounds = await self._bounds(first)
        if bounds is not None:
            return bounds[0]
        bounds = await self._bounds(before) if self._log.chain.contains(before) else None
        return None if bounds is None else bounds[1]

    async def _bounds_of(self, positions: Sequence[Position]) -> dict[Position, Bounds] | None:
        """Returns the indexes of these entries; None if one of them is not known."""
        found: dict[Position, Bounds] = {}
        for number, position in enumerate(positions, 1):
            bounds = await self._bounds(position)
            if bounds is None:
                return None
            found[position] = bounds
            if number % _ENTRIES_PER_TURN == 0:
                await asyncio.sleep(0)
        return found

    async def _bounds(self, position: Position) -> Bounds | None:
        try:
            return await self._log.index_bounds(position)
        except MagnetarError:
            return None
