"""Reads that miss the write caches: from the read cache, or through the index from a log.

One miss at a time for what one read-ahead covers: readers with many reads in flight ask for entries that the first of
them brings along, so those behind it wait for it and look into the cache again. If there was no such entry, as behind
the end of a ledger, they go on all at once.
Streams:   a reader that goes on where the last fetch ended gets more each time (streams.py).
Damage:    if the copy that the index names first is damaged and there is another, that one is read.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from magnetar.config.storage import StorageConfig
from magnetar.errors import (
    DiskError,
    EntryMissingError,
    LedgerMissingError,
    LogDamagedError,
    StorageDamagedError,
    StorageError,
)
from magnetar.storage.entry_log_format import log_path
from magnetar.storage.entry_log_reader import EntryLogReader
from magnetar.storage.extents import BlockPlace, Extent
from magnetar.storage.location_index import LocationIndex
from magnetar.storage.read_ahead import LedgerRun, ledger_run
from magnetar.storage.read_cache import ReadCache
from magnetar.storage.streams import Streams


class _Fetch(NamedTuple):
    done: asyncio.Future[bool]
    """Whether the index had no such entry."""
    entries: int
    """That may come with it, as far as one can tell."""


class Reads:
    def __init__(self, logs: EntryLogReader, index: LocationIndex, config: StorageConfig) -> None:
        self.cache = ReadCache(config.read_cache_bytes_max)
        self._logs = logs
        self._index = index
        self._streams = Streams(config.read_ahead_bytes, config.read_ahead_bytes_max, config.read_cache_bytes_max)
        self._fetching: dict[int, dict[int, _Fetch]] = {}  # Ledger → entry being fetched → its end.
        self._deletions = 0

    async def read(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """None: the index has no such entry."""
        while (ahead := self._fetched_with(ledger_id, entry_id)) is not None:
            await asyncio.wait([ahead])
            found = self.cache.get(ledger_id, entry_id)
            if found is not None:
                return found
            if ahead.result():
                break
        ahead_bytes, entries = self._streams.begin(ledger_id, entry_id)
        fetching = self._fetching.setdefault(ledger_id, {})
        fetching[entry_id] = fetch = _Fetch(asyncio.get_running_loop().create_future(), entries)
        is_absent = False
        try:
            found = await self._fetch(ledger_id, entry_id, ahead_bytes)
            is_absent = found is None
            return found
        finally:
            if fetching.get(entry_id) is fetch:  # Else: another read of the same entry, which is still under way.
                del fetching[entry_id]
            if not fetching and self._fetching.get(ledger_id) is fetching:
                del self._fetching[ledger_id]
            fetch.done.set_result(is_absent)

    def forget(self, ledger_id: int) -> None:
        self._deletions += 1
        self.cache.drop(ledger_id)
        self._streams.forget(ledger_id)

    def missing(self, ledger_id: int, entry_id: int, *, is_known: bool) -> StorageError:
        if is_known:
            return EntryMissingError(f"entry {entry_id} of ledger {ledger_id} is not here")
        return LedgerMissingError(f"nothing of ledger {ledger_id} is here")

    def _fetched_with(self, ledger_id: int, entry_id: int) -> asyncio.Future[bool] | None:
        for fetched, fetch in self._fetching.get(ledger_id, {}).items():
            if fetched <= entry_id < fetched + fetch.entries:
                return fetch.done
        return None

    async def _fetch(self, ledger_id: int, entry_id: int, ahead_bytes: int) -> memoryview | None:
        extent = await self._index.find(ledger_id, entry_id)
        if extent is None:
            return None
        try:
            return await self._entry_at(extent, entry_id, ahead_bytes)
        except (StorageDamagedError, DiskError) as error:
            return await self._another_copy(extent.place, ledger_id, entry_id, error)

    async def _another_copy(
        self, damaged: BlockPlace, ledger_id: int, entry_id: int, first_error: StorageDamagedError | DiskError
    ) -> memoryview | None:
        """Also when the log was removed since the index was asked. None: the ledger was deleted since then."""
        extents = await self._index.find_all(ledger_id, entry_id)
        if not extents:
            return None
        for extent in extents:
            if extent.place == damaged:
                continue
            try:
                return await self._entry_at(extent, entry_id, 0)
            except (StorageDamagedError, DiskError):
                continue
        raise first_error

    async def _entry_at(self, extent: Extent, entry_id: int, ahead_bytes: int) -> memoryview:
        deletions = self._deletions
        data, blocks = await self._logs.read_blocks(extent.place, ahead_bytes)
        run: LedgerRun = ledger_run(extent.ledger_id, data, blocks)
        found = run.get(entry_id)
        if found is None:
            place = extent.place
            raise LogDamagedError(
                f"{log_path(place.log_id)}: the block at {place.offset} lacks entry {entry_id} of ledger "
                f"{extent.ledger_id}, which the index says is there"
            )
        if deletions == self._deletions:  # Else its ledger may be gone, and must not come back.
            self.cache.put(run)
            self._streams.end(extent.ledger_id, run.entry_ids, ahead_bytes)
        return found
