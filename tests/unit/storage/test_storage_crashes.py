"""Power loss at any moment: what a finished flush covers exists, byte for byte; and every sync is needed."""

from __future__ import annotations

import asyncio
import itertools
from random import Random

import pytest

from magnetar.errors import MagnetarError
from magnetar.sim.device import Crash
from magnetar.storage.ledger_flags import LedgerFlags
from magnetar.storage.ledger_storage import LedgerStorage
from tests.unit.storage.samples import KEY, World, add, check, entry_bytes, listed, small_config

ENTRIES_MAX = 40


class Workload:
    """Adds, flags and flushes; knows what must be there after a crash, and what may be."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.durable: dict[tuple[int, int], bytes] = {}
        self.durable_flags: dict[int, LedgerFlags] = {}
        self.mark = 0

    async def run(self, storage: LedgerStorage) -> None:
        """Runs forever, until the simulated world ends."""
        pending: dict[tuple[int, int], bytes] = {}
        pending_flags: dict[int, LedgerFlags] = {}
        while True:
            added = self._some_entries()
            flags = {self.random.randrange(8): LedgerFlags(master_key=KEY, fenced=True) for _ in range(2)}
            add(storage, added.values())
            for ledger_id, new in flags.items():
                storage.set_flags(ledger_id, new)
            pending |= added
            pending_flags |= flags
            self.world.submitted.value += 1
            if self.random.random() < 0.7:
                assert await storage.flush() == self.world.submitted.value
                self.mark = self.world.submitted.value
                self.durable |= pending
                self.durable_flags |= pending_flags
                pending, pending_flags = {}, {}

    def _some_entries(self) -> dict[tuple[int, int], bytes]:
        found = {}
        for _ in range(self.random.randrange(1, ENTRIES_MAX)):
            ledger_id, entry_id = self.random.randrange(5), self.random.randrange(2000)
            found[ledger_id, entry_id] = entry_bytes(ledger_id, entry_id, 10 + entry_id % 200)
        return found


@pytest.fixture(autouse=True)
def _many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a crash finds a flush between two of its writes."""
    monkeypatch.setattr("magnetar.storage.write_cache.SLICE_BYTES", 600)


@pytest.mark.parametrize("kind", list(Crash))
@pytest.mark.parametrize("seed", range(8))
async def test_everything_flushed_is_there_after_any_crash(seed: int, kind: Crash) -> None:
    random = Random(f"{seed}/{kind.value}")
    config = small_config(read_cache_bytes_max=1 << 20, read_ahead_bytes=16384)
    world = World(f"{seed}", config, dirs=1 + seed % 3)
    stopped: list[asyncio.Task[None]] = []
    try:
        await crash_again_and_again(world, random, kind, stopped)
    finally:
        world.crash()
        world.machine.release_dead()
        await asyncio.gather(*stopped, return_exceptions=True)


async def crash_again_and_again(world: World, random: Random, kind: Crash, stopped: list[asyncio.Task[None]]) -> None:
    workload = Workload(world, random)
    for turns in (500, *(random.randrange(150) for _ in range(7))):
        storage = await world.open(workload.mark)
        await check(storage, workload.durable)
        for ledger_id, flags in workload.durable_flags.items():
            assert await storage.get_flags(ledger_id) == flags
        running = asyncio.create_task(workload.run(storage))
        stopped.append(running)
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not running.done(), running
        world.crash(kind)
        assert workload.mark
    storage = await world.open(workload.mark)
    await check(storage, workload.durable)
    await storage.aclose()


async def deterministic_run(world: World) -> None:
    """Touches every place that syncs, then loses all that is not durable."""
    expected: dict[tuple[int, int], bytes] = {}
    for _process, number in itertools.product(range(2), range(3)):
        if not number:
            storage = await world.open(world.submitted.value)
        added = {(ledger, entry): entry_bytes(ledger, entry) for ledger in range(4) for entry in range(number * 9 + 9)}
        add(storage, added.values())
        expected |= added
        world.submitted.value += 1
        await storage.flush()
        if number == 2:
            world.crash(Crash.DROP_UNSYNCED)
    storage = await world.open(world.submitted.value)
    await check(storage, expected)
    await storage.aclose()


def sites_of_a_run() -> list[str]:
    async def run() -> list[str]:
        world = World(config=small_config(read_cache_bytes_max=0))
        await deterministic_run(world)
        world.machine.release_dead()
        return list(world.machine.sites.counts)

    return asyncio.run(run())


SITES = sites_of_a_run()


def test_every_kind_of_sync_is_among_the_places() -> None:
    assert sorted({site.rpartition(":")[2] for site in SITES}) == ["EntryLogWriter.sync", "LedgerDirs._load"]
    assert len(SITES) == 3


@pytest.mark.parametrize("site", SITES)
async def test_without_this_sync_something_is_lost(site: str) -> None:
    world = World(config=small_config(read_cache_bytes_max=0))
    world.machine.sites.ignored.add(site)
    with pytest.raises((MagnetarError, AssertionError)):
        await deterministic_run(world)
    world.crash()
    world.machine.release_dead()


async def test_index_applied_without_anybody_told_is_harmless() -> None:
    """The batch reached the index, the crash came before the answer: replay adds the same entries again."""
    world = World()
    storage = await world.open()
    expected = {(7, entry): entry_bytes(7, entry) for entry in range(30)}
    add(storage, expected.values())
    world.submitted.value = 4
    await storage.flush()
    world.crash()
    storage = await world.open(0)  # The journal's mark did not move.
    add(storage, expected.values())
    assert await storage.flush() == 4
    await check(storage, expected)
    assert await listed(storage, 7) == list(range(30))
    await storage.aclose()
    world.machine.release_dead()
