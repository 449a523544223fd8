"""Reading a topic's entries from bookies: what the tail cache does not have.

A reader that continues where its last read ended has the next piece read while it handles this one; what it did not
take of such a piece is kept for it. Positions that do not exist (trimmed, or after the end of a closed ledger) are
skipped.

Limits:    Reads end at the last confirmed entry. At most `ledgers_read_max` ledgers are kept open, and at most
           `read_aheads_max` pieces, of which the oldest is dropped first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from magnetar.config.topic import TopicConfig
from magnetar.errors import EntryAbsentError, LedgerOffloadedError, MagnetarError, NoSuchLedgerError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.runtime.uncancelled import ignore_outcome
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.log.managed_ledger import is_offloaded
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

_TRIMMED_MAX: Final = 3  # How often a read may find that its entries were trimmed meanwhile.
_EXPECTED_MAX: Final = 64  # Places where a reader may continue; a number and a pair each.


class LogReads:
    """Reads one topic."""

    def __init__(self, chain: LedgerChain, client: LedgerClient, config: TopicConfig) -> None:
        self._chain = chain
        self._client = client
        self._config = config
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()
        self._ahead: OrderedDict[Position, asyncio.Task[list[LogEntry]] | list[LogEntry]] = OrderedDict()
        self._expected: OrderedDict[Position, None] = OrderedDict()

    async def read(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]:
        """Returns the entries from the first one at or after `first`; at least one, unless none exists."""
        for _ in range(_TRIMMED_MAX):
            first = self._chain.at_or_after(first)
            if not self._chain.contains(first):
                return []
            try:
                return await self._read(first, entries_max, bytes_max)
            except (NoSuchLedgerError, EntryAbsentError):
                if self._chain.contains(first):
                    raise
        raise _trimmed(first)

    async def _read(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]:
        entries = await self._take_ahead(first)
        is_going_on = entries is not None or first in self._expected
        if entries is None:
            entries = await self._fetch(first, entries_max, bytes_max)
        following = self._chain.next_position(entries[-1].position)
        if is_going_on:
            self._begin_ahead(following)
        taken = _cut(entries, entries_max, bytes_max)
        if taken < len(entries):
            self._keep_ahead(entries[taken].position, entries[taken:])
        self._expected.pop(first, None)
        self._expect(following if taken == len(entries) else entries[taken].position)
        return entries[:taken]

    async def read_one(self, position: Position) -> LogEntry:
        """Returns an entry that exists."""
        return (await self._fetch(position, 1, 1))[0]

    async def _fetch(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]:
        span = self._chain.span_of(first.ledger_id)
        if span is None:
            raise _trimmed(first)
        mean = max(1, span.size_bytes // span.entries)
        count = max(1, min(entries_max, -(-bytes_max // mean), span.entries - first.entry_id))
        reader = await self._reader(span)
        found = await reader.read_some(first.entry_id, first.entry_id + count - 1)
        ledger_id = first.ledger_id
        return [LogEntry(Position(ledger_id, entry.entry_id), entry.payload) for entry in found]

    async def _take_ahead(self, first: Position) -> list[LogEntry] | None:
        ahead = self._ahead.pop(first, None)
        if not isinstance(ahead, asyncio.Task):
            return ahead
        try:
            return await ahead
        except MagnetarError:  # The read itself will report the error, if it persists.
            return None

    def _begin_ahead(self, first: Position) -> None:
        size = self._config.read_ahead_bytes
        if not size or first in self._ahead or not self._chain.contains(first):
            return
        work = self._fetch(first, 2**31, size)
        task = asyncio.get_running_loop().create_task(work, name=f"read ahead at {first}")
        task.add_done_callback(ignore_outcome)  # The read itself reports errors.
        self._keep_ahead(first, task)

    def _keep_ahead(self, first: Position, ahead: asyncio.Task[list[LogEntry]] | list[LogEntry]) -> None:
        self._ahead[first] = ahead
        while len(self._ahead) > self._config.read_aheads_max:
            _, oldest = self._ahead.popitem(last=False)
            if isinstance(oldest, asyncio.Task):
                oldest.cancel()

    def _expect(self, position: Position) -> None:
        self._expected[position] = None
        while len(self._expected) > _EXPECTED_MAX:
            self._expected.popitem(last=False)

    async def _reader(self, span: LedgerSpan) -> LedgerReader:
        reader = self._readers.get(span.ledger_id)
        if reader is None:
            reader = await self._open(span)
            self._readers[span.ledger_id] = reader
            while len(self._readers) > self._config.ledgers_read_max:
                self._readers.popitem(last=False)
        self._readers.move_to_end(span.ledger_id)
        return reader

    async def _open(self, span: LedgerSpan) -> LedgerReader:
        try:
            return await self._client.open_no_recovery(span.ledger_id)
        except NoSuchLedgerError:
            if is_offloaded(span):
                raise LedgerOffloadedError(
                    f"ledger {span.ledger_id} was moved to tiered storage and deleted from the bookies: read it "
                    "through the broker that moved it"
                ) from None
            raise

    def forget(self, ledger_ids: Sequence[int]) -> None:
        """Closes ledgers that were dropped."""
        for ledger_id in ledger_ids:
            self._readers.pop(ledger_id, None)
        for position in [position for position in self._ahead if position.ledger_id in ledger_ids]:
            self._drop_ahead(position)

    async def aclose(self) -> None:
        tasks = [ahead for ahead in self._ahead.values() if isinstance(ahead, asyncio.Task)]
        for position in list(self._ahead):
            self._drop_ahead(position)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop_ahead(self, position: Position) -> None:
        ahead = self._ahead.pop(position)
        if isinstance(ahead, asyncio.Task):
            ahead.cancel()


def _trimmed(position: Position) -> EntryAbsentError:
    return EntryAbsentError(f"entry {position} was trimmed: read from the first position that still exists")


def _cut(entries: list[LogEntry], entries_max: int, bytes_max: int) -> int:
    """Returns how many of them fit; at least one."""
    size = len(entries[0].data)
    for count in range(1, min(entries_max, len(entries))):
        size += len(entries[count].data)
        if size > bytes_max:
            return count
    return min(entries_max, len(entries))
