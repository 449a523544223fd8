"""Power loss at any moment of a compaction: what was flushed and not deleted exists, and every sync is needed."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from magnetar.errors import MagnetarError
from magnetar.sim.device import Crash
from magnetar.storage.entry_log.compaction import Compactor
from magnetar.storage.ledger_storage import LedgerStorage
from tests.unit.storage.samples import World, add, check, entry_bytes
from tests.unit.storage.test_compaction import compact_all, compactor_of, config, delete, interleaved, referenced_logs

LEDGERS = 6


class Workload:
    """Adds, flushes, deletes and compacts forever; knows what must exist."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.durable: dict[tuple[int, int], bytes] = {}
        self.mark = 0
        self.next_ledger = LEDGERS
        self.compactors: list[Compactor] = []

    async def run(self, storage: LedgerStorage) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write(storage))
            group.create_task(self._compact(storage))

    async def _write(self, storage: LedgerStorage) -> None:
        while True:
            added = {}
            for _ in range(self.random.randrange(1, 40)):
                ledger_id = self.next_ledger - self.random.randrange(LEDGERS) - 1
                entry_id = self.random.randrange(1500)
                added[ledger_id, entry_id] = entry_bytes(ledger_id, entry_id, 10 + entry_id % 200)
            add(storage, added.values())
            self.world.submitted.value += 1
            self.mark = await storage.flush()
            self.durable |= added
            if self.random.random() < 0.4:
                await self._delete(storage, self.next_ledger - LEDGERS)
                self.next_ledger += 1

    async def _delete(self, storage: LedgerStorage, ledger_id: int) -> None:
        for key in [key for key in self.durable if key[0] == ledger_id]:
            del self.durable[key]  # From here on it may or may not exist.
        await storage.delete_ledger(ledger_id)

    async def _compact(self, storage: LedgerStorage) -> None:
        compactor = compactor_of(storage)
        self.compactors.append(compactor)
        while True:
            await compact_all(compactor)
            assert not compactor.damaged
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a crash finds a copy between two of its writes, and between two moves of its extents."""
    monkeypatch.setattr("magnetar.storage.write_cache.SLICE_BYTES", 600)
    monkeypatch.setattr("magnetar.storage.entry_log.compaction.SLICE_BYTES", 600)
    monkeypatch.setattr("magnetar.storage.entry_log.compaction._MOVES_MAX", 6)


@pytest.mark.parametrize("kind", list(Crash))
@pytest.mark.parametrize("seed", range(6))
async def test_everything_that_was_not_deleted_is_there_after_any_crash(seed: int, kind: Crash) -> None:
    random = Random(f"compaction/{seed}/{kind.value}")
    world = World(f"{seed}", config(read_cache_bytes_max=1 << 20), dirs=1 + seed % 2)
    workload = Workload(world, random)
    stopped: list[asyncio.Task[None]] = []
    try:
        for turns in (2000, *(random.randrange(800) for _ in range(6))):
            storage = await world.open(workload.mark)
            await check(storage, workload.durable)
            assert set(await referenced_logs(storage)) <= set(storage.dirs.log_ids())
            running = asyncio.create_task(workload.run(storage))
            stopped.append(running)
            for _ in range(turns):
                await asyncio.sleep(0)
            assert not running.done(), running
            world.crash(kind)
        storage = await world.open(workload.mark)
        await check(storage, workload.durable)
        await storage.aclose()
        assert sum(compactor.statistics.logs_rewritten for compactor in workload.compactors) >= 3
    finally:
        world.crash()
        world.machine.release_dead()
        await asyncio.gather(*stopped, return_exceptions=True)


class CrashedError(Exception):
    """Instead of the removal of a log: the index already refers to the copy."""


async def crash_after_compaction(world: World, ignored: str | None = None, *, removes: bool = True) -> list[str]:
    """Everything before the compaction is durable for certain; what only it synced is seen after the crash."""
    storage = await world.open()
    expected = await interleaved(storage, range(6))
    await delete(storage, expected, 1, 2, 3, 4)
    before = dict(world.machine.sites.counts)
    if ignored is not None:
        world.machine.sites.ignored.add(ignored)
    compactor = compactor_of(storage)
    if removes:
        await compact_all(compactor)
    else:
        storage.remove_log = crash  # type: ignore[method-assign]
        with pytest.raises(CrashedError):
            await compact_all(compactor)
    assert compactor.statistics.bytes_moved
    logs = storage.dirs.log_ids()
    counts = world.machine.sites.counts
    world.crash(Crash.DROP_UNSYNCED)
    world.machine.sites.ignored.clear()
    storage = await world.open(world.submitted.value)
    await check(storage, expected)
    assert storage.dirs.log_ids() == logs
    await storage.aclose()
    return [site for site, count in counts.items() if count > before.get(site, 0)]


async def crash(_: int) -> int:
    raise CrashedError


def sites_of_a_compaction() -> list[str]:
    async def run() -> list[str]:
        world = World(config=config())
        sites = await crash_after_compaction(world)
        world.machine.release_dead()
        return sites

    return asyncio.run(run())


SITES = sites_of_a_compaction()


async def test_a_crash_between_move_and_removal_loses_nothing() -> None:
    world = World(config=config())
    await crash_after_compaction(world, removes=False)
    world.machine.release_dead()


def test_every_kind_of_sync_is_among_the_places() -> None:
    names = sorted(site.rpartition(":")[2] for site in SITES if not site.endswith("LedgerDirs._load"))
    assert names == ["EntryLogWriter.sync", "EntryLogWriter.sync", "LedgerStorage.remove_log"]


@pytest.mark.parametrize("site", [site for site in SITES if not site.endswith("LedgerDirs._load")])
async def test_without_this_sync_a_compaction_loses_something_or_frees_nothing(site: str) -> None:
    world = World(config=config())
    with pytest.raises((MagnetarError, AssertionError)):
        await crash_after_compaction(world, site, removes=site.endswith("remove_log"))
    world.crash()
    world.machine.release_dead()


class Hasty(Compactor):
    """Planted: the old log goes before the index refers to the copy."""

    async def _rewrite(self, log_id: int, writer: object) -> None:
        storage, move = self._storage, self._storage.move

        async def remove_first(moves: object) -> None:
            if log_id in storage.dirs.log_ids():
                await storage.remove_log(log_id)
            await move(moves)  # type: ignore[arg-type]

        storage.move = remove_first  # type: ignore[assignment,method-assign]
        try:
            await super()._rewrite(log_id, writer)  # type: ignore[arg-type]
        finally:
            storage.move = move  # type: ignore[method-assign]


async def test_a_compaction_that_removes_before_the_index_is_durable_is_caught() -> None:
    lost = 0
    for turns in range(20, 320, 3):
        world = World(config=config())
        storage = await world.open()
        expected = await interleaved(storage, range(6))
        await delete(storage, expected, 1, 2, 3, 4)
        running = asyncio.create_task(compact_all(Hasty(storage, storage._config, lambda: True)))
        for _ in range(turns):
            await asyncio.sleep(0)
        world.crash()
        storage = await world.open(world.submitted.value)
        try:
            await check(storage, expected)
        except MagnetarError:
            lost += 1
        await storage.aclose()
        world.machine.release_dead()
        await asyncio.gather(running, return_exceptions=True)
    assert lost
