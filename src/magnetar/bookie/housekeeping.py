"""A bookie's housekeeping: the write cache is flushed, and the room of deleted ledgers comes back.

Order:     `Flushing`: write cache to entry logs and index, then the marks, then old journal files. Replayed entries are
           flushed before the first request, if they fill the write cache: otherwise a bookie that is killed repeatedly
           would have one cache more to replay each time. From then on the cache waits for nothing but the disk, not
           even for the registration, which may take as long as a session lives.
           `Collector`: garbage → tombstones → compaction (storage/entry_log/compaction.py), never two rounds at a time.
Failure:   on a full disk nothing is lost; the flush is tried again every second, even if none is due. Every other
           failure of a flush ends the bookie. Harmless errors of a collection (no metadata, a full disk, a damaged log
           or ledger) are logged and counted, and the next round tries again; any other error ends `run`.
Limits:    while the disk watch forbids it, nothing is compacted; logs in which nothing is alive are removed anyway, as
           that needs no room.
Read next: storage/write_cache.py, journals.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from magnetar.bookie.admission import Gate
from magnetar.bookie.journals import Journals
from magnetar.bookie.ledgers import LedgerTable
from magnetar.bookie.read_only import DiskVerdict
from magnetar.config.storage import StorageConfig
from magnetar.errors import DiskFullError, NoSuchLedgerError, StorageDamagedError
from magnetar.ids import LedgerId
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.uncancelled import ignore_outcome
from magnetar.storage.entry_log.compaction import Compactor, GarbageCollector
from magnetar.storage.ledger_storage import LedgerStorage

log = logging.getLogger(__name__)


class MetadataCatalogue:
    """The cluster's ledgers, for garbage collection."""

    def __init__(self, store: MetadataStore, ledgers: LedgerMetadataStore) -> None:
        self._store = store
        self._ledgers = ledgers

    @property
    def is_usable(self) -> bool:
        return self._store.session.state.is_usable

    async def refresh(self) -> None:
        await self._store.sync()

    def list(self) -> AsyncIterator[int]:
        return self._ledgers.list()

    async def exists(self, ledger_id: int) -> bool:
        """Reports absence only after the answer "no such ledger"."""
        try:
            await self._ledgers.read(LedgerId(ledger_id))
        except NoSuchLedgerError:
            return False
        return True


class Collector:
    def __init__(
        self,
        storage: LedgerStorage,
        catalogue: MetadataCatalogue,
        table: LedgerTable,
        config: StorageConfig,
        verdict: Callable[[], DiskVerdict],
    ) -> None:
        self._storage = storage
        self._config = config
        self._verdict = verdict
        self.garbage = GarbageCollector(storage, catalogue, table.forget, config.gc_ledgers_max)
        self.compactor = Compactor(storage, config, may_write=lambda: self._verdict().compaction)
        self.rounds = 0

    async def run(self) -> None:
        """Collects forever; the first round comes after one interval, when the bookie has long been serving."""
        while True:
            await asyncio.sleep(self._config.gc_interval_ms / 1000)
            await self.collect()

    async def collect(self) -> None:
        """Runs one round; never two at a time."""
        await self._do("deleted ledgers", self._collect_garbage)
        await self._do("logs", self.compactor.run)
        self.rounds += 1

    async def _collect_garbage(self) -> None:
        deleted = await self.garbage.collect()
        expired = await self._storage.expire_tombstones()
        if deleted or expired:
            log.info("garbage collected", extra={"ledgers": deleted, "tombstones_expired": expired})

    async def _do(self, what: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except (DiskFullError, StorageDamagedError) as error:
            log.error("housekeeping of %s is postponed: %s", what, error)

    def observe(self, metrics: Metrics) -> None:
        garbage, compaction = self.garbage.statistics, self.compactor.statistics
        for name, doc, read in (
            ("deleted_ledgers", "Ledgers dropped because they are no longer in the metadata.", lambda: garbage.deleted),
            ("gc_rounds_given_up", "Rounds without usable metadata.", lambda: garbage.rounds_given_up),
            ("removed_logs", "Entry logs removed.", lambda: compaction.logs_removed),
            ("compacted_bytes", "Bytes of entries moved by compaction.", lambda: compaction.bytes_moved),
            ("freed_bytes", "Bytes of entry logs removed.", lambda: compaction.bytes_freed),
        ):
            metrics.counter_callback(f"magnetar_bookie_{name}_total", doc, read)
        metrics.gauge_callback(
            "magnetar_bookie_damaged_logs",
            "Entry logs that cannot be compacted because they are damaged.",
            lambda: len(self.compactor.damaged),
        )


_FULL_DISK_RETRY_S = 1.0


class Flushing:
    """Made when storage and journals are open; `run` and `open_gate` are tasks of its owner."""

    def __init__(self, storage: LedgerStorage, journals: Journals, cache_gate: Gate) -> None:
        self._storage = storage
        self._journals = journals
        self._cache_gate = cache_gate
        self._lock = asyncio.Lock()
        self._last: asyncio.Future[None] | None = None
        self._is_disk_full = False

    async def flush_replayed(self) -> None:
        """Flushes replayed entries before the first request."""
        if not self._storage.has_room:
            await self._try()

    async def run(self) -> None:
        while True:
            if self._is_disk_full:  # The unwritten entries are in the other cache, which makes no flush due.
                await asyncio.sleep(_FULL_DISK_RETRY_S)
            else:
                await self._storage.wait_flush_due()
            await self._try()

    async def open_gate(self) -> None:
        """Opens the gate when the caches are swapped: that makes room, and no journal group announces it."""
        while True:
            await self._cache_gate.wait_shut()
            while not await self._storage.wait_for_room():
                log.warning("the write cache is full and the disk is slow: adds are refused")
            self._cache_gate.open()

    async def _try(self) -> None:
        """Flushes, or notes that the disk is full."""
        try:
            await self.flush()
        except DiskFullError as error:
            self._is_disk_full = True
            log.error("the write cache cannot be flushed: the disk is full", extra={"why": str(error)})
        else:
            self._is_disk_full = False

    async def flush(self) -> None:
        """Flushes; one flush at a time.

        It continues to its end even if its caller is cancelled: a stop in the middle would find files that are removed
        and still counted.
        """
        self._last = asyncio.ensure_future(self._flush_one_by_one())
        self._last.add_done_callback(ignore_outcome)  # Its caller may have been cancelled.
        await asyncio.shield(self._last)

    async def _flush_one_by_one(self) -> None:
        async with self._lock:
            await self._journals.settle(await self._storage.flush())

    async def aclose(self) -> None:
        """Returns when no flush is in progress."""
        if self._last is not None:  # Those before it have ended.
            await asyncio.wait([self._last])
