"""LedgerStorage: everything of a bookie's ledgers but the journal, behind one door.

Add:       into the active write cache, on the loop, without waiting. Durable through the journal.
Flush:     the active cache becomes the flushing one, a new one takes its place; when logs and index are synced, the
           mark that was noted at the swap is durable, and the journal may forget everything up to it.
Read:      active cache → flushing cache → read cache → index → log. Whatever was here when a read began is found, also
           when it moves from one place to the next meanwhile: a look into the index that a flush overtook is repeated.
Flags:     master key, fence, limbo, explicit LAC: in memory at once, in the index with the next flush. Until then they
           are durable through the journal.
Invariant: "not here" (EntryMissingError, LedgerMissingError) is said only if every place was looked at without an
           error.
Failure:   a full disk leaves the flushing cache where it is; the next `flush` tries again. After a failed sync or a
           broken invariant every further flush fails: the node must stop.
Read next: flush.py, reads.py, docs/entry-logs.md
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from magnetar.config.storage import StorageConfig
from magnetar.errors import (
    DiskError,
    DiskFullError,
    IndexDamagedError,
    MagnetarError,
    StorageError,
    SyncFailedError,
)
from magnetar.runtime.entropy import Entropy
from magnetar.storage.entry_log_format import LOGS, log_path
from magnetar.storage.entry_log_reader import EntryLogReader
from magnetar.storage.entry_log_writer import EntryLogWriter
from magnetar.storage.entry_pages import entry_pages
from magnetar.storage.extents import REMEDY, Extent
from magnetar.storage.flush import Flush
from magnetar.storage.ledger_dirs import LedgerDirs
from magnetar.storage.ledger_flags import NO_FLAGS, LedgerFlags
from magnetar.storage.location_index import IndexBatch, LocationIndex
from magnetar.storage.reads import Reads
from magnetar.storage.statistics import StorageStatistics
from magnetar.storage.tombstones import Tombstones
from magnetar.storage.write_cache import WriteCache

_PAGE: Final = 1000
_SHARE_OF_DELETIONS: Final = 4
"""Of the index's reserve, 1/4 is kept from deletions: they write little, and room comes back by nothing else."""


class LedgerStorage:
    """Owns what it is given: directories and index. Made by `open`."""

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
        self._active = WriteCache()
        self._dirty: dict[int, LedgerFlags] = {}
        self._flushing: Flush | None = None
        self._flush_lock = asyncio.Lock()
        self._flushes = 0
        self._failure: MagnetarError | None = None
        self._mark = 0
        self._tombstones = Tombstones(index, entropy, config)
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
        """`submitted` gives the number of the last record handed to the journal; `journal_mark` is where replay begins.

        What a record stands for is put in here before it is handed to the journal, or in the same turn of the loop:
        a swap in between would count it as flushed.
        On an error the caller still owns directories and index.
        """
        storage = LedgerStorage(dirs, index, entropy, config, submitted)
        mark = await index.mark() or 0
        if mark < journal_mark:
            raise IndexDamagedError(
                f"location index: it is complete up to journal record {mark}, but the journal was told {journal_mark}: "
                f"it lost what it had synced, or belongs to another bookie; {REMEDY}"
            )
        last_log = await index.last_log()
        if last_log is not None:
            dirs.note_log(last_log)
        # Not the index's own, which may be ahead: the last life may have flushed a record that its journal then lost
        # with the power. The journal gives that number out again, and the mark must not be past it by then.
        storage._mark = journal_mark
        await storage._tombstones.load()
        return storage

    async def aclose(self) -> None:
        """Does not flush: that is a decision of the owner, who may be closing because a flush failed."""
        async with self._flush_lock:
            with contextlib.suppress(SyncFailedError):  # It is in the log, and nothing is promised from here on.
                await self._writer.aclose()
            await self.logs.aclose()
            await self.index.aclose()
            await self.dirs.aclose()

    # --- adding ---

    def add_run(
        self, ledger_id: int, chunk: bytes, entry_ids: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]
    ) -> None:
        """Entries of one ledger in one chunk of add frames, as `AddRun` has them."""
        active = self._active
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
        """The same for entries of many ledgers, each with its ledger's id."""
        active = self._active
        active.put_many(ledger_ids, chunk, entry_ids, offsets, lengths)
        if active.bytes >= self._config.write_cache_bytes_max:
            self._due.set()

    @property
    def has_room(self) -> bool:
        """Ask before adding, and `wait_for_room` if not."""
        return self._active.bytes < self._config.write_cache_bytes_max

    async def wait_for_room(self) -> bool:
        """False: there was none within `max_throttle_ms`; refuse the adds."""
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
        """Makes everything durable that was added before the call; returns the mark: the journal may go on from it.

        DiskFullError: nothing is lost, call again when there is room. Any other error is final.
        """
        async with self._flush_lock:
            if self._failure is not None:
                raise self._failure
            if self._flushing is not None:  # A try before this one found the disk full.
                await self._finish(self._flushing)
            if self._is_dirty():
                await self._finish(self._swap())
            return self._mark

    def _is_dirty(self) -> bool:
        return bool(self._active.entries or self._dirty) or self._submitted() > self._mark

    def _swap(self) -> Flush:
        self._flushing = Flush(self._active, self._dirty, self._submitted())
        self._active, self._dirty = WriteCache(), {}
        self._due.clear()
        self._room.set()
        return self._flushing

    async def _finish(self, flush: Flush) -> None:
        try:
            await self.check_reserve()
            await flush.run(self._writer, self.index, self._config.block_bytes)
        except DiskFullError:
            raise
        except (DiskError, StorageError) as error:
            self._failure = error
            raise
        self._flushes += 1  # Before the cache goes: a read that looked into the index too early looks again.
        self._mark = max(self._mark, flush.mark)
        self._flushing = None

    async def check_reserve(self, share: int = 1) -> None:
        """DiskFullError before the index itself meets a full disk. `share`: one of so many equal parts is enough."""
        first = self.dirs.dirs[0]
        free_bytes = (await first.writing.usage()).free_bytes
        if free_bytes < self._config.index_reserve_bytes // share:
            part = "" if share == 1 else f"a {share}th of "
            raise DiskFullError(
                f"{first.root} has {free_bytes} bytes free, less than {part}storage.index_reserve_bytes: nothing is "
                "lost, but nothing more is taken once the write caches are full; free some room on that device"
            )

    # --- reading ---

    def get_entry_nowait(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """From memory; None means that `get_entry` may know more."""
        found = self._active.get(ledger_id, entry_id)
        if found is None and self._flushing is not None:
            found = self._flushing.cache.get(ledger_id, entry_id)
        return self._reads.cache.get(ledger_id, entry_id) if found is None else found

    def get_entries_nowait(self, ledger_id: int, entry_ids: Sequence[int]) -> list[memoryview | None]:
        """The same for several of one ledger."""
        if any(cache.has_ledger(ledger_id) for cache in self._caches()):
            return [self.get_entry_nowait(ledger_id, entry_id) for entry_id in entry_ids]
        return self._reads.cache.get_many(ledger_id, entry_ids)

    async def get_entry(self, ledger_id: int, entry_id: int) -> memoryview:
        """The entry without its frame's head. EntryMissingError, LedgerMissingError; any other error is not a "no"."""
        while True:
            found = self.get_entry_nowait(ledger_id, entry_id)
            flushes = self._flushes
            if found is None:
                found = await self._reads.read(ledger_id, entry_id)
            if found is None:
                found = self.get_entry_nowait(ledger_id, entry_id)
            if found is not None:
                return found
            if flushes == self._flushes:
                raise self._reads.missing(ledger_id, entry_id, is_known=await self.has_ledger(ledger_id))

    async def read_range(
        self, ledger_id: int, first: int, max_count: int, max_bytes: int, *, head_bytes: int = 0
    ) -> list[memoryview]:
        """Entries from `first` on without a gap, at least one; up to the first that is not here.

        Each counts with `head_bytes` more than it has: what stands before it where it will be sent.
        Errors are the first one's. One behind it that cannot be read ends the range: whoever asks for it is told.
        """
        entry = await self.get_entry(ledger_id, first)
        found = [entry]
        size = head_bytes + len(entry)
        while len(found) < max_count:
            following = first + len(found)
            view = self.get_entry_nowait(ledger_id, following)
            if view is None:
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
        """The greatest entry id here."""
        while True:
            flushes = self._flushes
            found = [cache.last_entry(ledger_id) for cache in self._caches()]
            found.append(await self.index.last_entry(ledger_id))
            found.append(self._active.last_entry(ledger_id))
            if flushes == self._flushes:
                return max((entry_id for entry_id in found if entry_id is not None), default=None)

    def entry_pages(self, ledger_id: int) -> AsyncIterator[list[int]]:
        """Ids of everything that is here now, in order, in pages; other work goes on between them."""
        return entry_pages(self.index, self._caches(), ledger_id)

    async def list_ledgers(self, first: int = 0, limit: int = _PAGE) -> list[int]:
        """Ledgers that have entries here, in order, from `first` on."""
        known = {ledger_id for cache in self._caches() for ledger_id in cache.ledger_ids() if ledger_id >= first}
        return sorted(known.union(await self.index.ledgers(first, limit)))[:limit]

    async def list_remembered(self) -> list[int]:
        """All ledgers of which anything is here but a tombstone, in order. Not those whose first flag is unflushed."""
        found: set[int] = set()
        first = 0
        while page := await self.list_ledgers(first):
            found.update(page)
            first = page[-1] + 1
        first = 0
        while flags := await self.index.all_flags(first, _PAGE):
            found.update([ledger_id for ledger_id, known in flags if known.deleted_at_ms is None])
            first = flags[-1][0] + 1
        return sorted(found)

    def _caches(self) -> list[WriteCache]:
        return [self._active] if self._flushing is None else [self._flushing.cache, self._active]

    # --- ledgers ---

    async def has_ledger(self, ledger_id: int) -> bool:
        """Anything of it but a tombstone."""
        if any(cache.has_ledger(ledger_id) for cache in self._caches()):
            return True
        flags = await self.get_flags(ledger_id)
        if flags is not None and flags.deleted_at_ms is None:
            return True
        return bool(await self.index.extents(ledger_id, limit=1))

    async def get_flags(self, ledger_id: int) -> LedgerFlags | None:
        while True:
            known = self._flags_nowait(ledger_id)
            if known is not None:
                return known
            flushes = self._flushes
            stored = await self.index.flags(ledger_id)
            if flushes == self._flushes and self._flags_nowait(ledger_id) is None:
                return stored

    def set_flags(self, ledger_id: int, flags: LedgerFlags) -> None:
        """For who holds the current ones: made from what `get_flags` returned, with no await between."""
        if flags.deleted_at_ms is not None:  # The ledger is in use again, and no tombstone any more; still fenced.
            flags = dataclasses.replace(flags, deleted_at_ms=None)
            self._tombstones.count -= 1
        self._dirty[ledger_id] = flags

    async def set_master_key(self, ledger_id: int, master_key: bytes) -> None:
        await self._change(ledger_id, lambda flags: dataclasses.replace(flags, master_key=master_key))

    async def fence(self, ledger_id: int) -> None:
        await self._change(ledger_id, lambda flags: dataclasses.replace(flags, fenced=True))

    async def set_limbo(self, ledger_id: int, *, limbo: bool) -> None:
        await self._change(ledger_id, lambda flags: dataclasses.replace(flags, limbo=limbo))

    async def set_explicit_lac(self, ledger_id: int, explicit_lac: bytes) -> None:
        await self._change(ledger_id, lambda flags: dataclasses.replace(flags, explicit_lac=explicit_lac))

    async def _change(self, ledger_id: int, change: Callable[[LedgerFlags], LedgerFlags]) -> None:
        current = await self.get_flags(ledger_id)  # Nothing runs between its return and the next line.
        self.set_flags(ledger_id, change(current if current is not None else NO_FLAGS))

    def _flags_nowait(self, ledger_id: int) -> LedgerFlags | None:
        known = self._dirty.get(ledger_id)
        if known is None and self._flushing is not None:
            known = self._flushing.flags.get(ledger_id)
        return known

    # --- deleting ---

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forgets its entries, durably; their room comes back when their logs are compacted. The fence stays.

        DiskFullError: it is still here, and may be deleted when there is room.
        """
        async with self._flush_lock:
            await self.check_reserve(_SHARE_OF_DELETIONS)
            flags = await self.get_flags(ledger_id)
            batch = IndexBatch(deleted_ledgers=[ledger_id])
            if flags is not None and flags.fenced:
                batch.flags[ledger_id] = self._tombstones.make(ledger_id, flags)
            await self.index.apply(batch)
            late = self._flags_nowait(ledger_id)
            self._forget(ledger_id)
            if late is not None and late.fenced and ledger_id not in batch.flags:
                self._dirty[ledger_id] = late  # Fenced while the batch was written; the next deletion buries it.
            if flags is not None and flags.fenced and flags.deleted_at_ms is None:
                self._tombstones.count += 1

    def _forget(self, ledger_id: int) -> None:
        self._active.drop(ledger_id)
        self._dirty.pop(ledger_id, None)
        if self._flushing is not None:
            self._flushing.drop(ledger_id)
        self._flushes += 1  # A read that is under way must not bring it back from what it saw before.
        self._reads.forget(ledger_id)

    async def expire_tombstones(self) -> int:
        """Drops those that are old enough; returns how many. DiskFullError as in `delete_ledger`."""
        async with self._flush_lock:
            expired = await self._tombstones.expired(lambda ledger_id: self._flags_nowait(ledger_id) is not None)
            if expired:
                await self.check_reserve(_SHARE_OF_DELETIONS)
                await self._tombstones.drop(expired)
            return len(expired)

    # --- compacting ---

    async def settled_logs(self) -> list[int]:
        """Logs that are written no more and that the index knows all of; without the newest: ids are not reused."""
        async with self._flush_lock:
            busy = self._writer.log_ids()
            if self._flushing is not None and self._flushing.batch is not None:
                busy.update([extent.place.log_id for extent in self._flushing.batch.extents])
            return [log_id for log_id in self.dirs.log_ids()[:-1] if log_id not in busy]

    def new_writer(self) -> EntryLogWriter:
        """For copies, in logs of their own. They are old: nobody is about to read them."""
        return EntryLogWriter(self.dirs, self._config.log_bytes_max, cached_bytes=0)

    async def move(self, moves: Sequence[tuple[Extent, Extent]]) -> None:
        """The copies are durable; from now on they are what is read. What was deleted meanwhile stays deleted."""
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
        """Nothing in the index refers to it. Returns its size. A read that is on its way to it asks the index again."""
        directory = self.dirs.dir_of(log_id)
        size = await self.logs.size(log_id)
        self.dirs.forget(log_id)
        await self.logs.retire(log_id)
        await directory.writing.remove(log_path(log_id))
        await directory.writing.sync_dir(LOGS)
        return size

    # --- looking ---

    def statistics(self) -> StorageStatistics:
        flushing = self._flushing
        return StorageStatistics(
            mark=self._mark,
            write_cache_bytes=self._active.bytes,
            write_cache_entries=self._active.entries,
            flushing_bytes=0 if flushing is None else flushing.cache.bytes,
            flushes=self._flushes,
            read_cache_bytes=self._reads.cache.bytes,
            log_reads=self.logs.reads,
            log_bytes_read=self.logs.bytes_read,
            logs=len(self.dirs.log_ids()),
            tombstones=self._tombstones.count,
        )
