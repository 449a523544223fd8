"""The index rebuilt from the logs says the same as the one that was lost, or that it cannot know."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from magnetar.errors import DiskFullError
from magnetar.runtime.system import SystemRuntime
from magnetar.storage.entry_log_reader import EntryLogReader
from magnetar.storage.extents import Extent
from magnetar.storage.ledger_dirs import LedgerDirs
from magnetar.storage.ledger_flags import LedgerFlags
from magnetar.storage.location_index import LocationIndex
from magnetar.storage.memory_store import MemoryImage
from magnetar.storage.open_storage import open_rocksdb_index
from magnetar.storage.rebuild import RebuildReport, rebuild_index
from tests.unit.storage.samples import KEY, World, add, check, entry_bytes, real_storage, small_config


async def all_extents(index: LocationIndex) -> list[Extent]:
    found: list[Extent] = []
    for ledger_id in await index.ledgers(limit=10_000):
        found.extend(await index.extents(ledger_id, limit=1_000_000))
    return found


def entries(seed: int, count: int) -> list[bytes]:
    random = Random(seed)
    return [
        entry_bytes(random.randrange(6), random.choice([random.randrange(3000), 10**12]), random.randrange(400))
        for _ in range(count)
    ]


async def test_rebuilt_index_has_every_location_and_no_other(tmp_path: Path) -> None:
    storage = await real_storage(tmp_path, dirs=2)
    for seed in range(8):
        add(storage, entries(seed, 60))
        await storage.fence(seed)
        await storage.flush()
    before, flags = await all_extents(storage.index), await storage.index.all_flags()
    new = await open_rocksdb_index(SystemRuntime(), str(tmp_path / "new"))
    report = await rebuild_index(storage.dirs, storage.logs, new, old=storage.index, mark=17)
    assert await all_extents(new) == before
    assert len(before) > 50
    assert report.damage == []
    assert not report.may_miss_entries
    assert await new.mark() == 17
    rebuilt = dict(await new.all_flags())
    assert all(rebuilt[ledger] == known for ledger, known in flags)
    await new.aclose()
    await storage.aclose()


async def rebuilt(world: World, *, old: MemoryImage | None) -> tuple[LocationIndex, RebuildReport, MemoryImage]:
    dirs = await LedgerDirs.open(world.runtime, world.roots)
    logs = EntryLogReader(dirs, 4)
    image = MemoryImage()
    new = world.index(image)
    report = await rebuild_index(dirs, logs, new, old=None if old is None else world.index(old), mark=1)
    await logs.aclose()
    await dirs.aclose()
    return new, report, image


async def world_with_entries() -> tuple[World, dict[tuple[int, int], bytes]]:
    world = World(config=small_config(log_bytes_max=4096))
    storage = await world.open()
    expected = {(ledger, entry): entry_bytes(ledger, entry, 200) for ledger in range(3) for entry in range(20)}
    add(storage, expected.values())
    await storage.set_master_key(1, KEY)
    await storage.flush()
    await storage.aclose()
    return world, expected


async def test_storage_on_a_rebuilt_index_serves_everything() -> None:
    world, expected = await world_with_entries()
    _, report, world.image = await rebuilt(world, old=world.image)
    assert report.entries == len(expected)
    storage = await world.open()
    await check(storage, expected)
    assert await storage.get_flags(1) == LedgerFlags(master_key=KEY)
    await storage.aclose()


async def test_without_the_old_flags_every_ledger_is_in_limbo_and_fenced() -> None:
    world, _ = await world_with_entries()
    new, report, _ = await rebuilt(world, old=None)
    assert report.flags_lost
    in_limbo = LedgerFlags(master_key=KEY, fenced=True, limbo=True)
    assert await new.all_flags() == [(ledger, in_limbo) for ledger in range(3)]


async def test_damaged_flags_count_as_lost() -> None:
    world, _ = await world_with_entries()
    (key,) = [key for key in world.image.keys if key.startswith(b"F")]
    world.image.flip_bit(key, 9)
    new, report, _ = await rebuilt(world, old=world.image)
    assert report.flags_lost
    assert (await new.flags(1) or LedgerFlags()).limbo


async def test_damage_inside_a_log_puts_ledgers_in_limbo_and_keeps_the_rest() -> None:
    world, expected = await world_with_entries()
    world.devices[0].flip_bit("logs/00000001.log", 100)
    new, report, _ = await rebuilt(world, old=world.image)
    assert [(damage.log_id, damage.is_tail) for damage in report.damage] == [(1, False)]
    assert 0 < report.entries < len(expected)
    assert all(flags.limbo and flags.fenced for _, flags in await new.all_flags())
    assert len(await new.all_flags()) == 3


async def test_log_that_cannot_be_read_at_all_stops_no_other() -> None:
    world, expected = await world_with_entries()
    world.devices[0].flip_bit("logs/00000001.log", 3)
    _, report, _ = await rebuilt(world, old=world.image)
    assert list(report.unreadable_logs) == [1]
    assert report.may_miss_entries
    assert 0 < report.entries < len(expected)


async def test_torn_end_that_a_crash_left_is_no_damage() -> None:
    world = World()
    storage = await world.open()
    add(storage, [entry_bytes(7, entry) for entry in range(5)])
    await storage.flush()
    add(storage, [entry_bytes(7, entry) for entry in range(5, 30)])
    world.image.fail_next_write = DiskFullError("stop before the index")
    with pytest.raises(DiskFullError):
        await storage.flush()
    world.crash()
    device = world.devices[0]
    size = len(device.cached("logs/00000000.log"))
    device.flip_bit("logs/00000000.log", size - 5)
    new, report, _ = await rebuilt(world, old=world.image)
    assert [damage.is_tail for damage in report.damage] == [True]
    assert not report.may_miss_entries
    found = await new.find(7, 4)
    assert found is not None
    world.machine.release_dead()
