"""Housekeeping against a real (in-memory) metadata store: what goes, what stays, and what ends the bookie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from magnetar.bookie.housekeeping import Collector, MetadataCatalogue
from magnetar.bookie.ledgers import LedgerTable
from magnetar.bookie.read_only import DiskVerdict
from magnetar.config.storage import StorageConfig
from magnetar.errors import DiskFullError, SyncFailedError
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.local import LocalStore
from magnetar.metadata.memory import MemoryServer
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.runtime import Entropy
from magnetar.runtime.system import SystemEntropy
from magnetar.sim.device import Fault
from magnetar.storage.entry_log.writer import EntryLogWriter
from magnetar.storage.ledger_flags import LedgerFlags
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.testing.waiting import until
from tests.unit.storage.full_device import FullDevice
from tests.unit.storage.samples import KEY, World, add, entry_bytes, real_storage, small_config

PATHS = BookKeeperPaths()
ANOTHER = BookieId("another.example.org:3181")


@dataclass
class Node:
    machine: World
    store: LocalStore
    ledgers: LedgerMetadataStore
    storage: LedgerStorage
    table: LedgerTable
    verdict: DiskVerdict
    config: StorageConfig

    def collector(self) -> Collector:
        catalogue = MetadataCatalogue(self.store, self.ledgers)
        return Collector(self.storage, catalogue, self.table, self.config, lambda: self.verdict)

    async def make(self, *ledgers: int) -> None:
        """In the metadata and here, though no ensemble names this bookie."""
        for ledger_id in ledgers:
            metadata = LedgerMetadata(
                ledger_id=LedgerId(ledger_id),
                ensemble_size=1,
                write_quorum=1,
                ack_quorum=1,
                fragments=(Fragment(0, (ANOTHER,)),),
            )
            await self.ledgers.create(metadata)
            add(self.storage, [entry_bytes(ledger_id, entry) for entry in range(40)])
            self.machine.submitted.value += 1


@pytest.fixture
async def node(server: MemoryServer) -> AsyncIterator[Node]:
    config = small_config(minor_compaction_interval_ms=1, major_compaction_interval_ms=1, gc_interval_ms=1)
    machine = World(config=config)
    storage = await machine.open()
    async with server.connect() as store:
        ledgers = LedgerMetadataStore(store, PATHS, SystemEntropy())
        yield Node(machine, store, ledgers, storage, LedgerTable(storage), DiskVerdict(), config)
    await storage.aclose()


async def test_a_ledger_deleted_from_the_metadata_is_dropped_and_forgotten(node: Node) -> None:
    await node.make(1, 2)
    await node.table.load(1)
    await node.table.load(2)
    await node.ledgers.delete(LedgerId(1), 0)
    await node.collector().collect()
    assert await node.storage.list_ledgers() == [2]
    assert node.table.find(1) is None
    assert node.table.find(2) is not None


async def test_a_ledger_whose_ensembles_do_not_name_this_bookie_stays(node: Node) -> None:
    """The copy may be in progress: copies are written before the metadata names their bookie."""
    await node.make(1)
    await node.collector().collect()
    assert await node.storage.list_ledgers() == [1]


async def test_malformed_metadata_keeps_its_ledger(node: Node) -> None:
    await node.make(1)
    await node.store.put(PATHS.ledger(LedgerId(1)), b"not metadata")
    catalogue = MetadataCatalogue(node.store, node.ledgers)
    collector = node.collector()
    collector.garbage._catalogue = catalogue

    async def nothing() -> AsyncIterator[int]:
        for ledger_id in ():
            yield ledger_id

    catalogue.list = nothing  # type: ignore[method-assign]
    await collector.collect()
    assert await node.storage.list_ledgers() == [1]
    assert collector.garbage.statistics.doubtful == 1


async def test_a_closed_session_deletes_nothing(node: Node) -> None:
    await node.make(1)
    await node.ledgers.delete(LedgerId(1), 0)
    await node.store.aclose()
    await node.collector().collect()
    assert await node.storage.list_ledgers() == [1]


async def test_a_fence_that_is_not_durable_yet_is_not_forgotten(node: Node) -> None:
    """A second fence request would find it fenced, with nothing to wait for, and be answered too early."""
    await node.make(1)
    ledger = await node.table.load(1)
    ledger.fencing = asyncio.get_running_loop().create_future()
    node.table.fence(ledger, KEY)
    await node.ledgers.delete(LedgerId(1), 0)
    await node.collector().collect()
    assert node.table.find(1) is ledger


async def test_old_tombstones_expire_with_the_rounds(node: Node) -> None:
    tombstones = node.storage.tombstones
    today = tombstones._entropy
    tombstones._entropy = _AMonthBefore(today)  # type: ignore[assignment]
    node.storage.set_flags(9, LedgerFlags(master_key=KEY, fenced=True))
    await node.storage.flush()
    collector = node.collector()
    await collector.collect()
    assert node.storage.tombstones.count == 1
    tombstones._entropy = today
    await collector.collect()
    assert node.storage.tombstones.count == 0


class _AMonthBefore:
    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def wall_ms(self) -> int:
        return self._entropy.wall_ms() - 30 * 86_400_000


async def compaction_due(collector: Collector) -> None:
    loop = asyncio.get_running_loop()
    await until(lambda: loop.time() > collector.compactor._major_at, "the end of the interval")


async def _half_dead(node: Node) -> None:
    await node.make(*range(8))
    await node.storage.flush()
    await node.make(100)
    await node.storage.flush()
    for ledger_id in range(1, 8):
        await node.ledgers.delete(LedgerId(ledger_id), 0)


async def test_room_of_deleted_ledgers_comes_back(node: Node) -> None:
    await _half_dead(node)
    before = len(node.storage.dirs.log_ids())
    collector = node.collector()
    await compaction_due(collector)
    await collector.collect()
    assert len(node.storage.dirs.log_ids()) < before / 2
    assert bytes(await node.storage.get_entry(0, 39)) == entry_bytes(0, 39)


async def test_a_disk_without_reserve_puts_compaction_off_but_dead_logs_go(node: Node) -> None:
    await _half_dead(node)
    node.verdict = DiskVerdict(full=("/ledgers-0",), compaction=False)
    collector = node.collector()
    await compaction_due(collector)
    await collector.collect()
    statistics = collector.compactor.statistics
    assert statistics.put_off == 1
    assert statistics.bytes_moved == 0
    assert statistics.logs_removed > 0
    node.verdict = DiskVerdict()
    await collector.collect()
    assert statistics.logs_rewritten > 0


async def test_a_full_disk_puts_a_round_off_and_a_failed_sync_ends_the_collector(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = node.collector()
    errors: list[Exception] = [DiskFullError("full"), SyncFailedError("the device said no")]

    async def fails() -> None:
        raise errors.pop(0)

    monkeypatch.setattr(collector.compactor, "run", fails)
    with pytest.raises(SyncFailedError):
        await asyncio.wait_for(collector.run(), 10)
    assert collector.rounds == 1


async def test_a_failed_sync_of_the_last_bytes_of_a_copy_ends_the_collector(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the map of the copy's ledgers is in them; but a device that fails here fails anywhere."""
    await _half_dead(node)
    faults = node.machine.devices[0].faults
    close = EntryLogWriter.aclose

    async def close_badly(writer: EntryLogWriter) -> None:
        faults.strike_next(Fault.SYNC_ERROR)
        await close(writer)

    with monkeypatch.context() as patch:
        patch.setattr(EntryLogWriter, "aclose", close_badly)
        with pytest.raises(SyncFailedError):
            await asyncio.wait_for(node.collector().run(), 10)
    assert faults.counts[Fault.SYNC_ERROR] == 1
    assert bytes(await node.storage.get_entry(0, 39)) == entry_bytes(0, 39)


async def test_rounds_on_a_full_disk_stop_no_read_and_the_first_with_room_deletes(
    server: MemoryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle bookie that is read-only has no flush that would open its index again."""
    device = FullDevice(monkeypatch)
    config = small_config(read_cache_bytes_max=0)
    storage = await real_storage(tmp_path, config)
    add(storage, [entry_bytes(ledger_id, 0) for ledger_id in (1, 2)])
    await storage.flush()
    async with server.connect() as store:
        ledgers = LedgerMetadataStore(store, PATHS, SystemEntropy())
        collector = Collector(
            storage, MetadataCatalogue(store, ledgers), LedgerTable(storage), config, lambda: DiskVerdict()
        )
        device.is_full = True
        for _ in range(4):
            await collector.collect()
            assert bytes(await storage.get_entry(1, 0)) == entry_bytes(1, 0)
        assert collector.garbage.statistics.deleted == 0
        device.is_full = False
        await collector.collect()
        assert await storage.list_ledgers() == []
    await storage.aclose()


async def test_the_collector_goes_on_round_after_round(node: Node) -> None:
    collector = node.collector()
    running = asyncio.create_task(collector.run())
    await until(lambda: collector.rounds >= 3, "three rounds")
    running.cancel()
    await asyncio.wait([running])


async def test_what_it_did_is_published(node: Node) -> None:
    await node.make(1)
    await node.ledgers.delete(LedgerId(1), 0)
    collector = node.collector()
    metrics = Metrics()
    collector.observe(metrics)
    await collector.collect()
    assert b"magnetar_bookie_deleted_ledgers_total 1" in metrics.render()
