"""Reads that miss the write caches: from the read cache, or through the index from a log.

Order:     one fetch at a time for what one read-ahead covers: readers with many reads in flight ask for entries that
           the first fetch brings along, so the later reads wait for it and look into the cache again. If that entry
           does not exist, as after the end of a ledger, they all continue at once. A fetch that begins where the last
           one of its ledger ended takes twice as much, up to `ahead_max`, so that a fast reader needs fewer. Any
           other one begins with `ahead_min` again: a random read must not wait for entries that are not wanted.
Format:    the cache has chunks, each the entries of one ledger from one read of a log, and per ledger a dict from entry
           to chunk << 48 | offset << 24 | length. Logs are sorted by ledger, so the entries after one in the file are
           those that its reader asks for next; other ledgers in the block are not kept, as they may be deleted.
Failure:   if the copy that the index names first is damaged and another exists, that one is read.
Limits:    the cache takes `bytes_max`, bookkeeping included; the chunk not used for the longest time is evicted. All
           streams together take at most half of it; otherwise they would evict what other readers have fetched and not
           yet asked for. STREAMS_MAX ledgers are remembered; the one that was idle longest is dropped.
Read next: write_cache.py
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from magnetar.config.storage import StorageConfig
from magnetar.errors import (
    DiskError,
    EntryMissingError,
    LedgerMissingError,
    LogDamagedError,
    StorageDamagedError,
    StorageError,
)
from magnetar.storage.entry_log.format import BLOCK_HEADER_BYTES, Block, log_path
from magnetar.storage.entry_log.reader import EntryLogReader, frames_of
from magnetar.storage.frames import by_ledger
from magnetar.storage.index.extents import BlockPlace, Extent
from magnetar.storage.index.location_index import LocationIndex
from magnetar.storage.write_cache import CHUNK_BYTES_MAX, ENTRY_OVERHEAD_BYTES

_OFFSET: Final = 24
_CHUNK: Final = 48
_FIELD: Final = (1 << 24) - 1


class LedgerRun(NamedTuple):
    ledger_id: int
    data: bytes
    entry_ids: list[int]
    offsets: list[int]
    """Places of the entries in `data`."""
    lengths: list[int]

    def get(self, entry_id: int) -> memoryview | None:
        try:
            index = self.entry_ids.index(entry_id)
        except ValueError:
            return None
        return memoryview(self.data)[self.offsets[index] : self.offsets[index] + self.lengths[index]]


class ReadCache:
    __slots__ = ("_bytes_max", "_chunks", "_locations", "_next_number", "bytes", "evictions")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.evictions = 0
        self._bytes_max = bytes_max
        self._chunks: OrderedDict[int, LedgerRun] = OrderedDict()
        self._locations: dict[int, dict[int, int]] = {}
        self._next_number = 0

    def put(self, run: LedgerRun) -> None:
        size = _size(run)
        if size > self._bytes_max or len(run.data) > CHUNK_BYTES_MAX:
            return  # It would evict everything else, or has offsets that a location cannot hold.
        number = self._next_number
        self._next_number += 1
        self._chunks[number] = run
        self.bytes += size
        shifted = number << _CHUNK
        packed = [shifted | offset << _OFFSET | length for offset, length in zip(run.offsets, run.lengths, strict=True)]
        self._locations.setdefault(run.ledger_id, {}).update(zip(run.entry_ids, packed, strict=True))
        while self.bytes > self._bytes_max:
            self._evict(next(iter(self._chunks)))
            self.evictions += 1

    def get(self, ledger_id: int, entry_id: int) -> memoryview | None:
        known = self._locations.get(ledger_id)
        location = known.get(entry_id) if known is not None else None
        if location is None:
            return None
        number = location >> _CHUNK
        self._chunks.move_to_end(number)
        offset = location >> _OFFSET & _FIELD
        return memoryview(self._chunks[number].data)[offset : offset + (location & _FIELD)]

    def get_many(self, ledger_id: int, entry_ids: Sequence[int]) -> list[memoryview | None]:
        """As `get` for each of these, with less work: they are usually in one chunk."""
        known = self._locations.get(ledger_id)
        if known is None:
            return [None] * len(entry_ids)
        chunks = self._chunks
        found: list[memoryview | None] = []
        add, locate = found.append, known.get
        current = -1
        data = memoryview(b"")
        for entry_id in entry_ids:
            location = locate(entry_id)
            if location is None:
                add(None)
                continue
            if location >> _CHUNK != current:
                current = location >> _CHUNK
                chunks.move_to_end(current)
                data = memoryview(chunks[current].data)
            offset = location >> _OFFSET & _FIELD
            add(data[offset : offset + (location & _FIELD)])
        return found

    def drop(self, ledger_id: int) -> None:
        for number in [number for number, run in self._chunks.items() if run.ledger_id == ledger_id]:
            self._evict(number)

    def _evict(self, number: int) -> None:
        run = self._chunks.pop(number)
        self.bytes -= _size(run)
        known = self._locations[run.ledger_id]
        for entry_id in run.entry_ids:
            if known.get(entry_id, -1) >> _CHUNK == number:  # Otherwise a later chunk has it too.
                del known[entry_id]
        if not known:
            del self._locations[run.ledger_id]


def ledger_run(ledger_id: int, data: bytes, blocks: Sequence[Block]) -> LedgerRun:
    """Takes entries from the first block on, up to the first block without the ledger."""
    run = LedgerRun(ledger_id, data, [], [], [])
    for block in blocks:
        before = len(run.entry_ids)
        _take(run, block, block.place.offset - blocks[0].place.offset + BLOCK_HEADER_BYTES)
        if len(run.entry_ids) == before:
            break
    return _trimmed(run)


def _take(run: LedgerRun, block: Block, shift: int) -> None:
    frames = frames_of(block)
    for ledger_id, first, end in by_ledger(frames):
        if ledger_id == run.ledger_id:
            run.entry_ids.extend(frames.entry_ids[first:end])
            run.offsets.extend([shift + offset for offset in frames.offsets[first:end]])
            run.lengths.extend(frames.lengths[first:end])


def _trimmed(run: LedgerRun) -> LedgerRun:
    """Returns a copy of the used part, if less than half of the bytes are used."""
    if not run.entry_ids:
        return run
    start, end = run.offsets[0], run.offsets[-1] + run.lengths[-1]
    if end - start > len(run.data) // 2:
        return run
    offsets = [offset - start for offset in run.offsets]
    return LedgerRun(run.ledger_id, run.data[start:end], run.entry_ids, offsets, run.lengths)


def _size(run: LedgerRun) -> int:
    return len(run.data) + len(run.entry_ids) * ENTRY_OVERHEAD_BYTES


STREAMS_MAX: Final = 1_000
_ENTRIES_UNKNOWN: Final = 256  # For a fetch of which nothing is known.


class _Stream(NamedTuple):
    following: int
    """The next entry of a reader in sequence."""
    ahead_bytes: int
    entries: int
    """The number of entries that the last fetch brought."""


class Fetched(NamedTuple):
    ahead_bytes: int
    entries: int


class Streams:
    def __init__(self, ahead_min: int, ahead_max: int, cache_bytes: int) -> None:
        self._ahead_min = ahead_min
        self._ahead_max = ahead_max
        self._cache_bytes = cache_bytes
        self._streams: OrderedDict[int, _Stream] = OrderedDict()

    def begin(self, ledger_id: int, entry_id: int) -> Fetched:
        """Returns how much to read for this entry, and how many entries that is likely to bring."""
        stream = self._streams.get(ledger_id)
        if stream is None or stream.following != entry_id:
            return Fetched(self._ahead_min, _ENTRIES_UNKNOWN)
        share = self._cache_bytes // (2 * len(self._streams))
        ahead = max(self._ahead_min, min(2 * stream.ahead_bytes, self._ahead_max, share))
        return Fetched(ahead, max(1, stream.entries * ahead // max(1, stream.ahead_bytes)))

    def end(self, ledger_id: int, entry_ids: Sequence[int], ahead_bytes: int) -> None:
        """Notes what a fetch brought."""
        self._streams[ledger_id] = _Stream(entry_ids[-1] + 1, ahead_bytes, len(entry_ids))
        self._streams.move_to_end(ledger_id)
        if len(self._streams) > STREAMS_MAX:
            self._streams.popitem(last=False)

    def forget(self, ledger_id: int) -> None:
        self._streams.pop(ledger_id, None)


class _Fetch(NamedTuple):
    done: asyncio.Future[bool]
    """Returns whether the index had no such entry."""
    entries: int
    """The end of the entries that are likely to come with it."""


class Reads:
    def __init__(self, logs: EntryLogReader, index: LocationIndex, config: StorageConfig) -> None:
        self.cache = ReadCache(config.read_cache_bytes_max)
        self._logs = logs
        self._index = index
        self._streams = Streams(config.read_ahead_bytes, config.read_ahead_bytes_max, config.read_cache_bytes_max)
        self._fetching: dict[int, dict[int, _Fetch]] = {}  # Ledger → entry being fetched → its end.
        self._deletions = 0

    async def read(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """Returns None if the index has no such entry."""
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
            if fetching.get(entry_id) is fetch:  # Otherwise another read of the same entry is still in progress.
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
        """Reads another copy, also when the log was removed since the index was asked. None: the ledger was deleted."""
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
                f"{extent.ledger_id}, which the index has for it"
            )
        if deletions == self._deletions:  # Otherwise its ledger may be deleted, and must not come back.
            self.cache.put(run)
            self._streams.end(extent.ledger_id, run.entry_ids, ahead_bytes)
        return found
