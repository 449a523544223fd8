"""Where in a topic's log something begins, by time or by index: bisection over its entries, each step one read.

The index is a continuous number for every message of a topic, from the very first one on. Each entry that this project
writes carries the index of its last message (broker entry metadata). Apache's brokers write none by default. A ledger
has one writer, so either all of its entries carry an index or none does; the latter are counted, from the nearest
ledger that has one: from an earlier one if possible, otherwise backwards from a later one, so that trimming changes no
index.

Limits:    A ledger with indexes costs a few reads; one without is read once, and its counts are kept for `_COUNTED_MAX`
           ledgers. The indexes of `_BOUNDS_MAX` entries are kept for counts that come again (topic/backlog.py).
           Both are caches: everything here can be computed again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from magnetar.errors import MalformedEntryError
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.entry_format.head import broker_header_of
from magnetar.topic.log.managed_ledger import INDEX_PROPERTY, OwnedNode
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST, Position

ReadOne = Callable[[Position], Awaitable[LogEntry]]


async def first_where(low: int, high: int, holds: Callable[[int], Awaitable[bool]]) -> int:
    """Returns the first number from `low` on for which this holds, if it holds for all later ones too; or `high`."""
    while low < high:
        middle = (low + high) // 2
        if await holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


async def first_position_where(chain: LedgerChain, read_one: ReadOne, is_there: Callable[[LogEntry], bool]) -> Position:
    """Returns the first entry for which `is_there` holds, given that it holds for all later ones, or `end`.

    Entries that were not confirmed when it began are not looked at.
    """

    async def holds(rank: int) -> bool:
        return is_there(await read_one(chain.position_after(EARLIEST, rank)))

    end = chain.entries_between(EARLIEST, chain.last_confirmed) + 1
    rank = await first_where(1, end, holds)
    return chain.position_after(EARLIEST, rank) if rank < end else chain.end


def time_of(entry: LogEntry) -> int:
    """Returns when the broker took it, otherwise when its producer published it; in milliseconds."""
    broker_ms = broker_header_of(entry.data)[1]
    return broker_ms if broker_ms is not None else entry.head.publish_ms


_COUNTED_MAX: Final = 32  # Ledgers whose counts are kept: 50,000 entries are 400 kB.
_BOUNDS_MAX: Final = 2_048  # Entries whose indexes are kept: about 600 kB, and only where backlogs have many gaps.
_READ_ENTRIES: Final = 1_000
_READ_BYTES: Final = 2**20

ReadMany = Callable[[Position, int, int], Awaitable[list[LogEntry]]]
CountsOf: TypeAlias = Callable[[LedgerSpan], Awaitable["array[int] | None"]]


class LogIndex:
    def __init__(self, node: OwnedNode, read_one: ReadOne, read_many: ReadMany) -> None:
        self._node = node
        self._chain = node.chain
        self._read_one = read_one
        self._read_many = read_many
        self._counted: OrderedDict[int, array[int]] = OrderedDict()
        """Ledger → for each entry, the messages in all entries up to it."""
        self._bounds: OrderedDict[Position, tuple[int, int]] = OrderedDict()

    async def recover(self) -> int:
        """Returns the index of the next message, when a topic is opened."""
        noted = _noted(self._node.properties) + 1
        counted = 0
        for span in reversed(self._spans()):
            last = index_of_last(await self._read_one(Position(span.ledger_id, span.entries - 1)))
            if last is not None:
                return last + 1 + counted
            counted += (await self._counts(span))[-1]
        return max(noted, counted)

    async def index_of(self, position: Position) -> int:
        """Returns the index of the first message at or after this position; at the end, that of the next one to
        come."""
        position = self._chain.at_or_after(position)
        if not self._chain.contains(position):
            return self._node.next_index
        entry = await self._read_one(position)
        last = index_of_last(entry)
        if last is not None:
            return last - _messages(entry) + 1
        span = self._chain.span_of(position.ledger_id)
        assert span is not None
        counts = await self._counts(span)
        before = counts[position.entry_id - 1] if position.entry_id else 0
        return await self._first_index(span) + before

    async def bounds_of(self, position: Position) -> tuple[int, int] | None:
        """Returns the index of an existing entry's first message and the one after its last message.

        It reads a few entries, and returns None if the entry carries no index and its ledger is not counted already.
        """
        bounds = self._bounds.get(position)
        if bounds is not None:
            self._bounds.move_to_end(position)
            return bounds
        entry = await self._read_one(position)
        last = index_of_last(entry)
        bounds = (last - _messages(entry) + 1, last + 1) if last is not None else await self._counted_bounds(position)
        if bounds is None:
            return None
        self._bounds[position] = bounds
        while len(self._bounds) > _BOUNDS_MAX:
            self._bounds.popitem(last=False)
        return bounds

    async def _counted_bounds(self, position: Position) -> tuple[int, int] | None:
        counts, span = self._counted.get(position.ledger_id), self._chain.span_of(position.ledger_id)
        first = None if counts is None or span is None else await self._index_before(span, self._kept_counts)
        if counts is None or first is None:
            return None
        before = counts[position.entry_id - 1] if position.entry_id else 0
        return first + before, first + counts[position.entry_id]

    async def position_at(self, index: int) -> Position:
        """Returns the entry that holds this message; the first existing one or `end` if the index is outside."""
        spans = self._spans()

        async def reaches(at: int) -> bool:
            return await self._last_index(spans[at]) >= index

        at = await first_where(0, len(spans), reaches)
        return self._chain.end if at == len(spans) else await self._position_in(spans[at], index)

    async def _position_in(self, span: LedgerSpan, index: int) -> Position:
        """Searches a ledger whose last message has this index or a higher one."""
        if not await self._has_index(span):
            first = await self._first_index(span)
            return Position(span.ledger_id, bisect_left(await self._counts(span), index - first + 1))

        async def reaches(entry_id: int) -> bool:
            last = index_of_last(await self._read_one(Position(span.ledger_id, entry_id)))
            return last is None or last >= index

        return Position(span.ledger_id, await first_where(0, span.entries - 1, reaches))

    def _spans(self) -> list[LedgerSpan]:
        return [span for span in self._chain.spans if span.entries]

    async def _has_index(self, span: LedgerSpan) -> bool:
        """Decides by the entry that its last index was read from: any other one may be unreadable."""
        return index_of_last(await self._read_one(Position(span.ledger_id, span.entries - 1))) is not None

    async def _last_index(self, span: LedgerSpan) -> int:
        last = index_of_last(await self._read_one(Position(span.ledger_id, span.entries - 1)))
        if last is not None:
            return last
        return await self._first_index(span) + (await self._counts(span))[-1] - 1

    async def _first_index(self, span: LedgerSpan) -> int:
        """Returns the index of the first message of a ledger that carries no index itself."""
        index = await self._index_before(span, self._counts)
        assert index is not None, "every ledger can be counted"
        return index

    async def _index_before(self, span: LedgerSpan, counts_of: CountsOf) -> int | None:
        """Returns the same; None if the counts of a ledger are needed that `counts_of` does not give."""
        spans = self._spans()
        at = [other.ledger_id for other in spans].index(span.ledger_id)
        before = await self._from_before(spans[:at], counts_of)
        return before if before is not None else await self._from_behind(spans[at:], counts_of)

    async def _from_before(self, spans: list[LedgerSpan], counts_of: CountsOf) -> int | None:
        """Returns the index after these ledgers; None if none of them has any."""
        between = 0
        for span in reversed(spans):
            last = index_of_last(await self._read_one(Position(span.ledger_id, span.entries - 1)))
            if last is not None:
                return last + 1 + between
            counts = await counts_of(span)
            if counts is None:
                return None
            between += counts[-1]
        return None

    async def _from_behind(self, spans: list[LedgerSpan], counts_of: CountsOf) -> int | None:
        """Returns the index before these ledgers, from the first later one that has one, or from the end of the log."""
        between = 0
        for span in spans:
            entry = await self._read_one(Position(span.ledger_id, 0))
            last = index_of_last(entry)
            if last is not None:
                return last - _messages(entry) + 1 - between
            counts = await counts_of(span)
            if counts is None:
                return None
            between += counts[-1]
        return self._node.next_index - between

    async def _kept_counts(self, span: LedgerSpan) -> array[int] | None:
        """Returns the counts of a ledger that was counted not long ago."""
        return self._counted.get(span.ledger_id)

    async def _counts(self, span: LedgerSpan) -> array[int]:
        """Counts a closed ledger; only closed ones lack indexes."""
        known = self._counted.get(span.ledger_id)
        if known is not None:
            self._counted.move_to_end(span.ledger_id)
            return known
        counts = array("q")
        total = 0
        while len(counts) < span.entries:
            for entry in await self._read_many(Position(span.ledger_id, len(counts)), _READ_ENTRIES, _READ_BYTES):
                total += _messages(entry)
                counts.append(total)
        self._counted[span.ledger_id] = counts
        while len(self._counted) > _COUNTED_MAX:
            self._counted.popitem(last=False)
        return counts


def index_of_last(entry: LogEntry) -> int | None:
    try:
        return broker_header_of(entry.data)[0]
    except MalformedEntryError:  # An entry that Apache's broker stored unchecked.
        return None


def _messages(entry: LogEntry) -> int:
    """Returns 1 for an entry that cannot be read as a message."""
    try:
        return entry.messages
    except MalformedEntryError:
        return 1


def _noted(properties: Mapping[str, str]) -> int:
    try:
        return int(properties.get(INDEX_PROPERTY, -1))
    except ValueError:  # Another program's property of the same name.
        return -1
