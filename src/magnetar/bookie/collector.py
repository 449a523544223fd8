"""Collector: the bookie's housekeeping, on a period: deleted ledgers, old tombstones, dead and half-dead logs.

Round:     garbage.py → tombstones → compaction.py, one behind the other, never two rounds at a time.
Failure:   what is known to be harmless (no metadata, a full disk, a damaged log or ledger) is logged and counted, and
           the next round tries again. Anything else ends `run`: after a failed sync the bookie must stop.
Room:      while the disk watch forbids it, nothing is compacted; logs in which nothing is alive are removed all the
           same, as that needs no room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from magnetar.bookie.disk_watch import DiskVerdict
from magnetar.bookie.ledgers import LedgerTable
from magnetar.config.storage import StorageConfig
from magnetar.errors import DiskFullError, NoSuchLedgerError, StorageDamagedError
from magnetar.ids import LedgerId
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.metrics import Metrics
from magnetar.storage.compaction import Compactor
from magnetar.storage.garbage import GarbageCollector
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
        """Only "no such ledger" is a no."""
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
        """For ever; the first round comes after one interval, when the bookie has long been serving."""
        while True:
            await asyncio.sleep(self._config.gc_interval_ms / 1000)
            await self.collect()

    async def collect(self) -> None:
        """One round. Not while another one runs."""
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
            log.error("housekeeping of %s is put off: %s", what, error)

    def observe(self, metrics: Metrics) -> None:
        garbage, compaction = self.garbage.statistics, self.compactor.statistics
        for name, doc, read in (
            ("deleted_ledgers", "Ledgers dropped because the metadata has them no more.", lambda: garbage.deleted),
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
