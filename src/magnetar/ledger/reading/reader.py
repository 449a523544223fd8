"""LedgerReader: the entries of a ledger, and those appended during the reading.

    async for entry in reader: ...            # up to what is committed now
    async for entry in reader.tail(): ...     # and everything that comes, until the ledger is closed

Invariant: A regular read never returns an entry beyond the LAC, nor beyond the last entry of a closed ledger. For one
           reader the LAC never goes back (tailing.py). `read_unconfirmed` is the exception, by name.
Failure:   A read that fails checks once whether the ledger's bookies have changed (a bookie was replaced, or its
           entries were copied elsewhere), and tries again if so.
Limits:    Iterating holds two chunks: the one in use, and the next, which is read meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from magnetar.errors import EntryAbsentError, EntryOutOfRangeError, EntryUnavailableError
from magnetar.ids import EntryId, LedgerId
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerKeys
from magnetar.ledger.reading.lac import read_lac
from magnetar.ledger.reading.reads import EntryReads
from magnetar.ledger.reading.tailing import LedgerView, MetadataWatch, Tail
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, Versioned
from magnetar.metadata.store import Watcher
from magnetar.wire.bookkeeper.digests import Entry


class LedgerReader:
    """Is made by `open`. It needs no close: what is in progress belongs to the calls."""

    def __init__(self, stored: Versioned[LedgerMetadata], keys: LedgerKeys, context: LedgerContext) -> None:
        self.ledger_id: LedgerId = keys.ledger_id
        self._keys = keys
        self._context = context
        self._view = LedgerView(stored)
        self._watch = MetadataWatch(self.refresh)
        self._reads = EntryReads(keys, context.bookies, context.config, context.entropy)

    @classmethod
    async def open(cls, stored: Versioned[LedgerMetadata], keys: LedgerKeys, context: LedgerContext) -> LedgerReader:
        """Opens a ledger in any state and fences nothing. Raises LacUnknownError if too few of an open ledger's bookies
        answer."""
        reader = cls(stored, keys, context)
        await reader.refresh_lac()
        return reader

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as last seen."""
        return self._view.metadata

    @property
    def is_closed(self) -> bool:
        return self._view.is_closed

    @property
    def last_confirmed(self) -> EntryId:
        """The last entry that may be read, as far as this reader knows; -1 without one."""
        return self._view.lac

    @property
    def length(self) -> int | None:
        """The bytes of all payloads; known once the ledger is closed."""
        return self.metadata.length if self.is_closed else None

    async def read(self, first: int, last: int) -> list[Entry]:
        """Returns these entries, both ends included, all in memory. Raises EntryOutOfRangeError beyond the LAC."""
        _check_range(first, last)
        if last > self._view.lac:
            raise self._beyond(last)
        return await self._read(EntryId(first), EntryId(last))

    async def read_some(self, first: int, last: int) -> Sequence[Entry]:
        """Returns at least the first of these entries, and as many after it as one answer brings.

        The caller must know that they are committed, from the ledger's own writer if not from this reader.
        """
        _check_range(first, last)
        if self.is_closed and last > self._view.lac:
            raise self._beyond(last)
        return await self._read_chunk(EntryId(first), EntryId(last))

    async def read_unconfirmed(self, first: int, last: int) -> list[Entry]:
        """Returns what some bookie has, committed or not: such an entry may not be part of the ledger in the end."""
        _check_range(first, last)
        if self.is_closed and last > self._view.lac:
            raise self._beyond(last)
        return await self._read(EntryId(first), EntryId(last))

    async def refresh_lac(self) -> EntryId:
        """Asks enough bookies how far the ledger is committed; a closed ledger needs no request."""
        if not self.is_closed:
            await self.refresh()
        if not self.is_closed:
            self._view.on_lac(await read_lac(self.metadata, self._keys, self._context))
        return self._view.lac

    async def refresh(self, watch: Watcher | None = None) -> None:
        """Reads the metadata again."""
        self._view.on_metadata(await self._context.ledgers.read(self.ledger_id, watch=watch))

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self.entries()

    async def entries(self, first: int = 0, last: int | None = None) -> AsyncGenerator[Entry, None]:
        """Yields the entries from `first` to `last`, or to what is committed now."""
        end = self._view.lac if last is None else last
        if end > self._view.lac:
            raise self._beyond(end)
        _check_first(first)
        ahead = self._start_chunk(first, end)
        try:
            while ahead is not None:
                chunk = await ahead
                first = chunk[-1].entry_id + 1
                ahead = self._start_chunk(first, end)
                for entry in chunk:
                    yield entry
        finally:
            await _cancel(ahead)

    async def tail(self, first: int = 0) -> AsyncGenerator[Entry, None]:
        """Yields the entries from `first` on, and those appended later, until the ledger is closed and read to its
        end."""
        _check_first(first)
        async with Tail(self._view, self._keys, self._context, self._watch) as tail:
            while True:
                await self._view.wait_beyond(first - 1)
                end = self._view.lac
                if end < first:
                    return
                piggybacked = tail.take_piggybacked(first)
                if piggybacked is not None:
                    yield piggybacked
                    first += 1
                    continue
                async with aclosing(self.entries(first, end)) as entries:
                    async for entry in entries:
                        yield entry
                        first = entry.entry_id + 1

    def _start_chunk(self, first: int, last: int) -> asyncio.Task[Sequence[Entry]] | None:
        if first > last:
            return None
        work = self._read_chunk(EntryId(first), EntryId(last))
        return asyncio.get_running_loop().create_task(work, name=f"read ledger {self.ledger_id} from {first}")

    async def _read(self, first: EntryId, last: EntryId) -> list[Entry]:
        entries: list[Entry] = []
        while first <= last:
            entries += await self._read_chunk(first, last)
            first = EntryId(entries[-1].entry_id + 1)
        return entries

    async def _read_chunk(self, first: EntryId, last: EntryId) -> Sequence[Entry]:
        try:
            return await self._reads.read_chunk(self.metadata, first, last)
        except (EntryAbsentError, EntryUnavailableError):
            asked = self.metadata.fragment_of(first).ensemble
            await self.refresh()
            if self.metadata.fragment_of(first).ensemble == asked:
                raise
        return await self._reads.read_chunk(self.metadata, first, last)

    def _beyond(self, entry_id: int) -> EntryOutOfRangeError:
        known = self._view.lac
        if self.is_closed:
            return EntryOutOfRangeError(f"entry {entry_id}: ledger {self.ledger_id} is closed and ends with {known}")
        return EntryOutOfRangeError(
            f"entry {entry_id} of ledger {self.ledger_id} is not known to be committed; {known} is the last that is. "
            "Refresh the LAC, follow the tail, or read it as unconfirmed"
        )


async def _cancel(ahead: asyncio.Task[Sequence[Entry]] | None) -> None:
    if ahead is not None:
        ahead.cancel()
        await asyncio.gather(ahead, return_exceptions=True)


def _check_range(first: int, last: int) -> None:
    _check_first(first)
    if last < first:
        raise EntryOutOfRangeError(
            f"a range from entry {first} cannot end at entry {last}: the last entry must not be before the first"
        )


def _check_first(first: int) -> None:
    if first < 0:
        raise EntryOutOfRangeError(f"entries are counted from 0: entry {first} does not exist")
