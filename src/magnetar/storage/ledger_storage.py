"""LedgerStorage: everything of a bookie's ledgers but the journal.

Purpose:   an add goes into the active write cache, on the loop, without waiting; the journal makes it durable. A flush
           swaps in a new cache and writes the old one to logs and index. Flags (master key, fence, limbo, explicit
           LAC) are in memory at once and in the index with the next flush; until then the journal has them.
Invariant: "not here" (EntryMissingError, LedgerMissingError) is answered only after a look at every place without an
           error.
Order:     flush: logs and index synced → the mark that was noted at the swap is durable → the journal may forget
           everything up to it.
           read: active cache → flushing cache → read cache → index → log. An entry that was here when a read began is
           found, also when it moves from one place to the next during the read: a look into the index that a flush
           overtook is repeated.
           list of entries: caches first, then the index page by page. An entry goes from a cache to the index and
           never back, so the list has every entry that was here when it began; later ones may be in it.
Failure:   a full disk leaves the flushing cache where it is; the next `flush` tries again. After a failed sync or a
           broken invariant every further flush fails: the node must stop.
Limits:    a list of entries takes memory for the ids that are only in caches, and for one page.
Read next: write_cache.py, reads.py, storage/index/location_index.py, docs/entry-logs.md
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final

from magnetar.config.storage import StorageConfig
from magnetar.errors import (
    DiskError,
    DiskFullError,
    FileMissingError,
    IndexDamagedError,
    MagnetarError,
    StorageError,
    SyncFailedError,
)
from magnetar.runtime.disk import Buffer
from magnetar.runtime.runtime import Entropy, Offload, Runtime
from magnetar.storage.entry_log.format import LOGS, log_path
from magnetar.storage.entry_log.ledger_dirs import LedgerDirs
from magnetar.storage.entry_log.reader import EntryLogReader
from magnetar.storage.entry_log.writer import EntryLogWriter
from magnetar.storage.frames import lend
from magnetar.storage.index.extents import REMEDY, Extent
from magnetar.storage.index.location_index import IndexBatch, LocationIndex
from magnetar.storage.index.ordered_store import OrderedStore
from magnetar.storage.ledger_flags import LedgerFlags
from magnetar.storage.reads import Reads
from magnetar.storage.tombstones import Tombstones
from magnetar.storage.write_cache import Flush, WriteCache

PAGE_ENTRIES: Final = 10_000  # A millisecond or two.
_PAGE: Final = 1000
_SHARE_OF_DELETIONS: Final = 4
"""A quarter of the index's reserve is enough for deletions: they write little, and only they make room."""


class LedgerStorage:
    """Owns its directories and index. Made by `open`."""

    def __init__(
        self,
        dirs: LedgerDirs,
        index: LocationIndex,
        entropy: Entropy,
        config: StorageConfig,
        submitted: Callable[[], int],
    ) -> None:
        self.dirs = dirs
        self.index = index
        self.logs = EntryLogReader(dirs, config.open_logs_max)
        self._config = config
        self._submitted = submitted
        self._writer = EntryLogWriter(dirs, config.log_bytes_max, config.log_cached_bytes)
        self._reads = Reads(self.logs, index, config)
        self.active = WriteCache()
        self._dirty: dict[int, LedgerFlags] = {}
        self.flushing: Flush | None = None
        """Set while a cache that was swapped out is not durable in logs and index."""
        self._flush_lock = asyncio.Lock()
        self.flushes = 0
        """Flushes that ended, and deletions: a read that one of them overtook looks again."""
        self._failure: MagnetarError | None = None
        self.mark = 0
        self.tombstones = Tombstones(index, entropy, config)
        self._room = asyncio.Event()
        self._due = asyncio.Event()

    @staticmethod
    async def open(
        dirs: LedgerDirs,
        index: LocationIndex,
        entropy: Entropy,
        config: StorageConfig,
        *,
        submitted: Callable[[], int],
        journal_mark: int = 0,
    ) -> LedgerStorage:
        """`submitted` gives the number of the last record handed to the journal; replay begins after `journal_mark`.

        A record's effect is put in here before the record is handed to the journal, or in the same turn of the loop:
        a swap in between would count it as flushed.
        On an error the caller still owns directories and index.
        """
        storage = LedgerStorage(dirs, index, entropy, config, submitted)
        mark = await index.mark() or 0
        if mark < journal_mark:
            raise IndexDamagedError(
                f"location index: complete up to journal record {mark}, but the journal's mark is {journal_mark}: "
                f"it lost synced data, or belongs to another bookie; {REMEDY}"
            )
        last_log = await index.last_log()
        if last_log is not None:
            dirs.note_log(last_log)
        # Not the index's own mark, which may be ahead: the last process may have flushed a record that its journal then
        # lost with the power. The journal gives that number out again, and the mark must not be past it by then.
        storage.mark = journal_mark
        await storage.tombstones.load()
        return storage

    async def aclose(self) -> None:
        """Does not flush: the owner decides, and may close because a flush failed."""
        async with self._flush_lock:
            with contextlib.suppress(SyncFailedError):  # The data is in the log, and nothing is promised after this.
                await self._writer.aclose()
            await self.logs.aclose()
            await self.index.aclose()
            await self.dirs.aclose()

    # --- adding ---

    def add_run(
        self, ledger_id: int, chunk: bytes, entry_ids: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]
    ) -> None:
        """Adds entries of one ledger in one chunk of add frames, as `AddRun` has them."""
        active = self.active
        active.put_run(ledger_id, chunk, entry_ids, offsets, lengths)
        if active.bytes >= self._config.write_cache_bytes_max:
            self._due.set()

    def add_many(
        self,
        ledger_ids: Sequence[int],
        chunk: bytes,
        entry_ids: Sequence[int],
        offsets: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Adds entries of many ledgers, each with its ledger's id."""
        active = self.active
        active.put_many(ledger_ids, chunk, entry_ids, offsets, lengths)
        if active.bytes >= self._config.write_cache_bytes_max:
            self._due.set()

    @property
    def has_room(self) -> bool:
        """Ask this before adding, and `wait_for_room` if it is false."""
        return self.active.bytes < self._config.write_cache_bytes_max

    async def wait_for_room(self) -> bool:
        """Returns False if there was no room within `max_throttle_ms`; refuse the adds then."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.max_throttle_ms / 1000
        while not self.has_room:
            self._due.set()
            self._room.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._room.wait()
            except TimeoutError:
                return self.has_room
        return True

    # --- flushing ---

    async def wait_flush_due(self) -> None:
        """Returns when the active cache is full, or `flush_interval_ms` has passed."""
        try:
            async with asyncio.timeout(self._config.flush_interval_ms / 1000):
                await self._due.wait()
        except TimeoutError:
            return

    async def flush(self) -> int:
        """Makes everything durable that was added before the call; returns the mark, which the journal may forget up
        to.

        DiskFullError: nothing is lost, call again when there is room. Any other error is final.
        """
        async with self._flush_lock:
            if self._failure is not None:
                raise self._failure
            if self.flushing is not None:  # An earlier try found the disk full.
                await self._finish(self.flushing)
            if self._is_dirty():
                await self._finish(self._swap())
            return self.mark

    def _is_dirty(self) -> bool:
        return bool(self.active.entries or self._dirty) or self._submitted() > self.mark

    def _swap(self) -> Flush:
        self.flushing = Flush(self.active, self._dirty, self._submitted())
        self.active, self._dirty = WriteCache(), {}
        self._due.clear()
        self._room.set()
        return self.flushing

    async def _finish(self, flush: Flush) -> None:
        try:
            await self.check_reserve()
            await flush.run(self._writer, self.index, self._config.block_bytes)
        except DiskFullError:
            raise
        except (DiskError, StorageError) as error:
            self._failure = error
            raise
        self.flushes += 1  # Before the cache goes: a read that looked into the index too early looks again.
        self.mark = max(self.mark, flush.mark)
        self.flushing = None

    async def check_reserve(self, share: int = 1) -> None:
        """Raises DiskFullError before the index itself meets a full disk. `share`: a `share`-th of the reserve is
        enough."""
        first = self.dirs.dirs[0]
        free_bytes = (await first.writing.usage()).free_bytes
        if free_bytes < self._config.index_reserve_bytes // share:
            part = "" if share == 1 else f"a {share}th of "
            raise DiskFullError(
                f"{first.root} has {free_bytes} bytes free, less than {part}storage.index_reserve_bytes: nothing is "
                "lost, but adds are refused once the write caches are full; free some room on that device"
            )

    # --- reading ---

    def get_entry_nowait(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """Looks into memory; None means that `get_entry` may know more."""
        found = self.active.get(ledger_id, entry_id)
        if found is None and self.flushing is not None:
            found = self.flushing.cache.get(ledger_id, entry_id)
        return self._reads.cache.get(ledger_id, entry_id) if found is None else found

    def get_entries_nowait(self, ledger_id: int, entry_ids: Sequence[int]) -> list[memoryview | None]:
        """Looks into memory for several entries of one ledger."""
        if any(cache.has_ledger(ledger_id) for cache in self._caches()):
            return [self.get_entry_nowait(ledger_id, entry_id) for entry_id in entry_ids]
        return self._reads.cache.get_many(ledger_id, entry_ids)

    async def get_entry(self, ledger_id: int, entry_id: int) -> memoryview:
        """Returns the entry without its frame's head. Raises EntryMissingError, LedgerMissingError; others are not a
        "no"."""
        while True:
            found = self.get_entry_nowait(ledger_id, entry_id)
            flushes = self.flushes
            if found is None:
                found = await self._reads.read(ledger_id, entry_id)
            if found is None:
                found = self.get_entry_nowait(ledger_id, entry_id)
            if found is not None:
                return found
            if flushes == self.flushes:
                raise self._reads.missing(ledger_id, entry_id, is_known=await self.has_ledger(ledger_id))

    async def read_range(
        self, ledger_id: int, first: int, max_count: int, max_bytes: int, *, head_bytes: int = 0
    ) -> list[Buffer]:
        """Returns entries from `first` on without a gap, at least one; up to the first that is missing.

        Each counts with `head_bytes` more than it has, for its head in the answer.
        Errors are those of the first entry. A later entry that cannot be read ends the range: a read of that entry
        reports the error.
        """
        found: list[Buffer] = [await self.get_entry(ledger_id, first)]
        settled = 0
        size = head_bytes + len(found[0])
        while len(found) < max_count:
            following = first + len(found)
            view = self.get_entry_nowait(ledger_id, following)
            if view is None:
                lend(found, settled)  # The caches may drop these chunks during the wait.
                settled = len(found)
                try:
                    view = await self.get_entry(ledger_id, following)
                except (StorageError, DiskError):
                    break
            size += head_bytes + len(view)
            if size > max_bytes:
                break
            found.append(view)
        return found

    async def last_entry(self, ledger_id: int) -> int | None:
        """Returns the greatest entry id."""
        while True:
            flushes = self.flushes
            found = [cache.last_entry(ledger_id) for cache in self._caches()]
            found.append(await self.index.last_entry(ledger_id))
            found.append(self.active.last_entry(ledger_id))
            if flushes == self.flushes:
                return max((entry_id for entry_id in found if entry_id is not None), default=None)

    def entry_pages(self, ledger_id: int) -> AsyncIterator[list[int]]:
        """Yields the ids of all entries, in order, in pages; other tasks run between them."""
        return entry_pages(self.index, self._caches(), ledger_id)

    async def list_ledgers(self, first: int = 0, limit: int = _PAGE) -> list[int]:
        """Returns ledgers that have entries here, in order, from `first` on."""
        known = {ledger_id for cache in self._caches() for ledger_id in cache.ledger_ids() if ledger_id >= first}
        return sorted(known.union(await self.index.ledgers(first, limit)))[:limit]

    async def list_remembered(self) -> list[int]:
        """Returns all ledgers of which more than a tombstone is here, in order. Ledgers with only unflushed flags are
        left out."""
        found: set[int] = set()
        first = 0
        while page := await self.list_ledgers(first):
            found.update(page)
            first = page[-1] + 1
        async for flags in self.index.flag_pages():
            found.update([ledger_id for ledger_id, known in flags if known.deleted_at_ms is None])
        return sorted(found)

    def _caches(self) -> list[WriteCache]:
        return [self.active] if self.flushing is None else [self.flushing.cache, self.active]

    # --- ledgers ---

    async def has_ledger(self, ledger_id: int) -> bool:
        """Reports whether anything but a tombstone of it is here."""
        if any(cache.has_ledger(ledger_id) for cache in self._caches()):
            return True
        flags = await self.get_flags(ledger_id)
        return (flags is not None and flags.deleted_at_ms is None) or await self._has_entries(ledger_id)

    async def _has_entries(self, ledger_id: int) -> bool:
        if any(cache.has_ledger(ledger_id) for cache in self._caches()):
            return True
        return bool(await self.index.extents(ledger_id, limit=1))

    async def get_flags(self, ledger_id: int) -> LedgerFlags | None:
        while True:
            known = self._flags_nowait(ledger_id)
            if known is not None:
                return known
            flushes = self.flushes
            stored = await self.index.flags(ledger_id)
            if flushes == self.flushes and self._flags_nowait(ledger_id) is None:
                return stored

    def set_flags(self, ledger_id: int, flags: LedgerFlags) -> None:
        """Sets flags made from what `get_flags` returned, with no await in between."""
        if flags.deleted_at_ms is not None:  # The ledger is in use again: not a tombstone any more; still fenced.
            flags = dataclasses.replace(flags, deleted_at_ms=None)
            self.tombstones.count -= 1
        self._dirty[ledger_id] = flags

    def _flags_nowait(self, ledger_id: int) -> LedgerFlags | None:
        known = self._dirty.get(ledger_id)
        if known is None and self.flushing is not None:
            known = self.flushing.flags.get(ledger_id)
        return known

    # --- deleting ---

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forgets its entries, durably; their room comes back when their logs are compacted. The fence stays.

        DiskFullError: the ledger is unchanged, and may be deleted when there is room. TombstonesFullError: its entries
        are deleted, and its fence stays until there is room for another tombstone.
        """
        async with self._flush_lock:
            await self.check_reserve(_SHARE_OF_DELETIONS)
            flags = await self.get_flags(ledger_id)
            batch = IndexBatch(deleted_ledgers=[ledger_id])
            is_buried = False
            if flags is not None and flags.fenced:
                is_buried = flags.deleted_at_ms is not None or not self.tombstones.is_full
                if not is_buried and not await self._has_entries(ledger_id):
                    raise self.tombstones.full_error(ledger_id)
                batch.flags[ledger_id] = self.tombstones.make(flags) if is_buried else _fence_of(flags)
            await self.index.apply(batch)
            late = self._flags_nowait(ledger_id)
            self._forget(ledger_id)
            if late is not None and late.fenced and ledger_id not in batch.flags:
                self._dirty[ledger_id] = late  # Fenced while the batch was written; a later deletion buries it.
            if is_buried and flags is not None and flags.deleted_at_ms is None:
                self.tombstones.count += 1

    def _forget(self, ledger_id: int) -> None:
        self.active.drop(ledger_id)
        self._dirty.pop(ledger_id, None)
        if self.flushing is not None:
            self.flushing.drop(ledger_id)
        self.flushes += 1  # A read in progress must not bring it back from what it saw before.
        self._reads.forget(ledger_id)

    async def expire_tombstones(self) -> int:
        """Drops those that are old enough; returns how many. DiskFullError as in `delete_ledger`."""
        async with self._flush_lock:
            due = await self.tombstones.due(lambda ledger_id: self._flags_nowait(ledger_id) is not None)
            if due is None:
                return 0
            await self.check_reserve(_SHARE_OF_DELETIONS)
            return await self.tombstones.apply(due)

    # --- compacting ---

    async def settled_logs(self) -> list[int]:
        """Returns the logs that are complete and in the index, without the newest, whose id must not be reused."""
        async with self._flush_lock:
            busy = self._writer.log_ids()
            if self.flushing is not None and self.flushing.batch is not None:
                busy.update([extent.place.log_id for extent in self.flushing.batch.extents])
            return [log_id for log_id in self.dirs.log_ids()[:-1] if log_id not in busy]

    def new_writer(self) -> EntryLogWriter:
        """Returns a writer for copies, in logs of their own, whose pages are not cached: their entries are old."""
        return EntryLogWriter(self.dirs, self._config.log_bytes_max, cached_bytes=0)

    async def move(self, moves: Sequence[tuple[Extent, Extent]]) -> None:
        """Makes reads use the copies, which are durable. A ledger that was deleted during the copy stays deleted."""
        async with self._flush_lock:
            if self._failure is not None:
                raise self._failure
            await self.check_reserve()
            present = await self.index.present([old for old, _ in moves])
            kept = [move for move, is_there in zip(moves, present, strict=True) if is_there]
            try:
                await self.index.apply(IndexBatch(removed=[old for old, _ in kept], extents=[new for _, new in kept]))
            except DiskFullError:
                raise
            except (DiskError, StorageError) as error:
                self._failure = error
                raise

    async def remove_log(self, log_id: int) -> int:
        """Removes a log to which the index does not refer; returns its size. A read that meant to use it asks the index
        again."""
        directory = self.dirs.dir_of(log_id)
        size = await self.logs.size(log_id)
        self.dirs.forget(log_id)
        await self.logs.retire(log_id)
        try:
            await directory.writing.remove(log_path(log_id))
        except FileMissingError:
            pass  # It was removed already.
        except DiskError:
            self.dirs.remember(log_id, directory)  # It still takes room, and the next round tries again.
            raise
        await directory.writing.sync_dir(LOGS)
        return size


async def entry_pages(
    index: LocationIndex, caches: Sequence[WriteCache], ledger_id: int, page_entries: int = PAGE_ENTRIES
) -> AsyncIterator[list[int]]:
    lists = [ids for cache in caches if (ids := cache.entry_ids(ledger_id))]
    cached = lists[0] if len(lists) == 1 else sorted({entry_id for ids in lists for entry_id in ids})
    taken = 0
    following: int | None = 0
    while following is not None:
        ids, following = await index.entry_ids(ledger_id, following, page_entries)
        end = len(cached) if following is None else bisect_left(cached, following, taken)
        if end - taken > page_entries:
            end = bisect_left(cached, cached[taken + page_entries], taken)
            following = cached[end]
            ids = ids[: bisect_left(ids, following)]
        if end > taken:
            ids = sorted({*ids, *cached[taken:end]})
            taken = end
        if ids:
            yield ids
        await asyncio.sleep(0)


def _fence_of(flags: LedgerFlags) -> LedgerFlags:
    return LedgerFlags(master_key=flags.master_key, fenced=True)


INDEX: Final = "index"


async def open_storage(
    runtime: Runtime,
    roots: Sequence[str],
    config: StorageConfig,
    *,
    submitted: Callable[[], int],
    journal_mark: int = 0,
) -> LedgerStorage:
    dirs = await LedgerDirs.open(runtime, roots)
    index: LocationIndex | None = None
    try:
        index = await open_rocksdb_index(runtime, f"{roots[0]}/{INDEX}")
        await dirs.dirs[0].writing.sync_dir("")
        return await LedgerStorage.open(
            dirs, index, runtime.entropy, config, submitted=submitted, journal_mark=journal_mark
        )
    except BaseException:
        if index is not None:
            await index.aclose()
        await dirs.aclose()
        raise


async def open_rocksdb_index(runtime: Runtime, path: str, *, read_only: bool = False) -> LocationIndex:
    """Opens RocksDB, or the counterpart that a simulated runtime has for it. `read_only`: nothing changes."""
    open_store = runtime.ordered_store or _rocksdb(read_only)
    reading, writing = runtime.offload(name="index-read"), runtime.offload(name="index-write")
    try:
        return LocationIndex(await writing(open_store, path), reading, writing)
    except BaseException:
        await _close(reading, writing)
        raise


def _rocksdb(read_only: bool) -> Callable[[str], OrderedStore]:
    # Imported here: loading the library takes a good part of a second of every command that does not need it.
    from magnetar.storage.index.rocksdb_store import RocksDbStore

    return partial(RocksDbStore, read_only=read_only)


async def _close(*lanes: Offload) -> None:
    for lane in lanes:
        await lane.aclose()
