"""The index rebuilt from the logs says the same as the one that was lost, or that it cannot know."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from magnetar.errors import DiskFullError
from magnetar.runtime.system import SystemRuntime
from magnetar.storage.entry_log.format import encode_header, log_path
from magnetar.storage.entry_log.ledger_dirs import LedgerDirs
from magnetar.storage.entry_log.reader import EntryLogReader
from magnetar.storage.index.extents import Extent
from magnetar.storage.index.location_index import LocationIndex
from magnetar.storage.index.ordered_store import MemoryImage
from magnetar.storage.index.rebuild import RebuildReport, rebuild_index
from magnetar.storage.ledger_flags import LedgerFlags
from magnetar.storage.ledger_storage import open_rocksdb_index
from tests.unit.storage.samples import KEY, World, add, change_flags, check, entry_bytes, real_storage, small_config


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
        await change_flags(storage, seed, fenced=True)
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
    await change_flags(storage, 1, master_key=KEY)
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


async def test_log_that_is_gone_puts_ledgers_in_limbo_if_the_old_index_refers_to_it() -> None:
    world, _ = await world_with_entries()
    await world.runtime.disk(world.roots[0], name="d").remove(log_path(0))
    new, report, _ = await rebuilt(world, old=world.image)
    assert list(report.unreadable_logs) == [0]
    assert "none of the ledger directories" in report.unreadable_logs[0]
    assert report.may_miss_entries
    assert not report.may_miss_ledgers
    assert all(flags.limbo for _, flags in await new.all_flags())
    assert await new.ledgers(), "the other logs are there"


async def test_id_of_a_newest_log_that_is_gone_is_not_used_again() -> None:
    world, _ = await world_with_entries()
    dirs = await LedgerDirs.open(world.runtime, world.roots)
    newest = dirs.log_ids()[-1]
    await dirs.aclose()
    await world.runtime.disk(world.roots[0], name="d").remove(log_path(newest))
    for image in (world.image, (await rebuilt(world, old=world.image))[2]):
        world.image = image
        storage = await world.open()
        add(storage, [entry_bytes(9, 0, 200)])
        await storage.flush()
        (found,) = await storage.index.extents(9)
        assert found.place.log_id > newest
        await storage.aclose()
        await world.runtime.disk(world.roots[0], name="d").remove(log_path(found.place.log_id))


async def test_other_log_under_the_name_of_one_that_is_gone_puts_ledgers_in_limbo() -> None:
    world, _ = await world_with_entries()
    disk = world.runtime.disk(world.roots[0], name="d")
    other = World(config=small_config(log_bytes_max=4096))
    storage = await other.open()
    add(storage, [entry_bytes(ledger, entry, 200) for ledger in range(5, 8) for entry in range(20)])
    await storage.flush()
    await storage.aclose()
    theirs = await other.runtime.disk(other.roots[0], name="d").open(log_path(0))
    content = bytes(await theirs.read(0, theirs.size))
    await theirs.aclose()
    await disk.remove(log_path(0))
    file = await disk.open(log_path(0), create=True)
    await file.append_and_sync([content])
    await file.aclose()
    new, report, _ = await rebuilt(world, old=world.image)
    assert report.damage == []
    assert list(report.unreadable_logs) == [0]
    assert "another log" in report.unreadable_logs[0]
    assert all(flags.limbo for _, flags in await new.all_flags())


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
    assert [damage.log_id for damage in report.torn_ends] == [0]
    assert not report.may_miss_entries
    found = await new.find(7, 4)
    assert found is not None
    world.machine.release_dead()


# --- the end of a log without a footer: torn, or rotten ---------------------------------------------------------------

OLD_LOG = "logs/00000000.log"


async def world_after_a_crash(*ledgers: int) -> World:
    """All entries are flushed and indexed; their log has no footer, and another life has passed since."""
    world = World(config=small_config(log_bytes_max=1 << 20))
    storage = await world.open()
    world.submitted.value = 1
    for ledger_id in ledgers:
        add(storage, [entry_bytes(ledger_id, entry, 200) for entry in range(20)])
    await change_flags(storage, 7, master_key=KEY)
    await storage.flush()
    world.crash()
    storage = await world.open(mark=1)
    world.submitted.value = 2
    add(storage, [entry_bytes(30, entry, 200) for entry in range(5)])
    await change_flags(storage, 30, master_key=KEY)
    await storage.flush()
    await storage.aclose()
    world.machine.release_dead()
    return world


def rot_last_block(world: World) -> None:
    device = world.devices[0]
    device.flip_bit(OLD_LOG, len(device.cached(OLD_LOG)) - 5)


async def cut_log(world: World, size: int) -> None:
    disk = world.runtime.disk(world.roots[0], name="knife")
    file = await disk.open(OLD_LOG)
    await file.truncate(size)
    await file.aclose()
    await disk.aclose()


async def append_to_log(world: World, data: bytes) -> None:
    disk = world.runtime.disk(world.roots[0], name="pen")
    file = await disk.open(OLD_LOG)
    await file.append([data])
    await file.aclose()
    await disk.aclose()


async def make_log(world: World, log_id: int, content: bytes) -> None:
    disk = world.runtime.disk(world.roots[0], name="crash")
    file = await disk.open(log_path(log_id), create=True)
    await file.append_and_sync([content])
    await file.aclose()
    await disk.aclose()


async def read_all_flags(index: LocationIndex) -> dict[int, tuple[bool, bool]]:
    return {ledger_id: (flags.fenced, flags.limbo) for ledger_id, flags in await index.all_flags()}


async def test_bit_rot_in_the_last_block_of_an_unfinished_log_is_damage_if_the_old_index_refers_to_it() -> None:
    world = await world_after_a_crash(7)
    rot_last_block(world)
    new, report, world.image = await rebuilt(world, old=world.image)
    assert (report.flags_lost, report.locations_lost) == (False, False)
    assert [(damage.log_id, damage.is_tail) for damage in report.damage] == [(0, True)]
    assert report.torn_ends == []
    assert report.may_miss_entries
    assert await read_all_flags(new) == {7: (True, True), 30: (True, True)}


async def test_bit_rot_in_the_last_block_of_an_unfinished_log_is_damage_if_there_is_no_old_index() -> None:
    world = await world_after_a_crash(7)
    rot_last_block(world)
    new, report, _ = await rebuilt(world, old=None)
    assert report.locations_lost
    assert report.may_miss_entries
    assert await read_all_flags(new) == {7: (True, True), 30: (True, True)}


async def test_bit_rot_in_the_last_block_of_an_unfinished_log_is_damage_if_only_the_old_flags_can_be_read() -> None:
    world = await world_after_a_crash(7)
    rot_last_block(world)
    first = min(key for key in world.image.keys if key.startswith(b"E"))
    world.image.flip_bit(first, 9)
    new, report, _ = await rebuilt(world, old=world.image)
    assert (report.flags_lost, report.locations_lost) == (False, True)
    assert (report.may_miss_entries, report.may_miss_ledgers) == (True, True)
    assert await read_all_flags(new) == {7: (True, True), 30: (True, True)}


async def test_limbo_stays_when_the_index_is_rebuilt_once_more() -> None:
    world = await world_after_a_crash(7)
    rot_last_block(world)
    _, _, world.image = await rebuilt(world, old=world.image)
    new, _, _ = await rebuilt(world, old=world.image)
    assert await read_all_flags(new) == {7: (True, True), 30: (True, True)}


async def test_ledger_that_stood_only_in_the_rotten_block_and_has_no_flags_is_in_limbo_too() -> None:
    world = await world_after_a_crash(7, 8)
    extents = await world.index().extents(8)
    await cut_log(world, extents[0].place.offset + 10)
    new, report, _ = await rebuilt(world, old=world.image)
    assert await new.extents(8) == []
    assert report.may_miss_entries
    assert (await read_all_flags(new))[8] == (True, True)


async def test_log_that_was_cut_off_between_two_blocks_is_damage_if_the_old_index_refers_to_what_is_gone() -> None:
    world = await world_after_a_crash(7)
    last = (await world.index().extents(7))[-1].place
    await cut_log(world, last.offset)
    new, report, _ = await rebuilt(world, old=world.image)
    assert [(damage.offset, damage.end) for damage in report.damage] == [(last.offset, last.offset + last.size)]
    assert (await read_all_flags(new))[7] == (True, True)
    assert not report.may_miss_ledgers, "the old index has all their names"


async def test_torn_flush_behind_what_the_old_index_has_puts_nothing_in_limbo() -> None:
    world = await world_after_a_crash(7)
    end = len(world.devices[0].cached(OLD_LOG))
    await append_to_log(world, b"half of a block that no index refers to")
    new, report, _ = await rebuilt(world, old=world.image)
    assert [(damage.log_id, damage.offset) for damage in report.torn_ends] == [(0, end)]
    assert (report.damage, report.may_miss_entries) == ([], False)
    assert await read_all_flags(new) == {7: (False, False), 30: (False, False)}


@pytest.mark.parametrize("left", [b"", bytes(64), b"mgntrlog\x01", bytes(20) + b"blocks without a header"], ids=repr)
async def test_log_that_a_crash_left_without_its_header_puts_nothing_in_limbo(left: bytes) -> None:
    """It was begun by a flush that never ended, so the journal has what counts of it."""
    world = await world_after_a_crash(7)
    await make_log(world, 1000, left)
    new, report, _ = await rebuilt(world, old=world.image)
    assert [(damage.log_id, damage.offset, damage.end) for damage in report.torn_ends] == [(1000, 0, len(left))]
    assert (report.unreadable_logs, report.may_miss_entries) == ({}, False)
    assert await read_all_flags(new) == {7: (False, False), 30: (False, False)}


async def test_log_without_its_header_is_damage_if_there_is_no_old_index_or_it_refers_to_it() -> None:
    world = await world_after_a_crash(7)
    await cut_log(world, 0)
    for old in (None, world.image):
        new, report, _ = await rebuilt(world, old=old)
        assert list(report.unreadable_logs) == [0]
        assert report.torn_ends == []
        assert all(flags == (True, True) for flags in (await read_all_flags(new)).values())


async def test_log_of_a_newer_version_is_never_taken_for_torn() -> None:
    world = await world_after_a_crash(7)
    head = encode_header(1000)[:8] + (99).to_bytes(4, "little") + encode_header(1000)[12:16]
    await make_log(world, 1000, head + crc32c(head).to_bytes(4, "little"))
    _, report, _ = await rebuilt(world, old=world.image)
    assert "format version 99" in report.unreadable_logs[1000]


async def test_newest_log_that_a_crash_tore_within_a_flush_puts_nothing_in_limbo() -> None:
    world = World(config=small_config(log_bytes_max=1 << 20))
    storage = await world.open()
    await change_flags(storage, 7, master_key=KEY)
    add(storage, [entry_bytes(7, entry, 200) for entry in range(20)])
    await storage.flush()
    flushed = len(world.devices[0].cached(OLD_LOG))
    world.image.fail_next_write = DiskFullError("the power goes before the index is written")
    add(storage, [entry_bytes(7, entry, 200) for entry in range(20, 40)])  # The journal has them: no mark is past them.
    with pytest.raises(DiskFullError):
        await storage.flush()
    written = len(world.devices[0].cached(OLD_LOG))
    world.crash()
    world.machine.release_dead()
    await cut_log(world, (flushed + written) // 2 + 7)
    new, report, _ = await rebuilt(world, old=world.image)
    assert [damage.log_id for damage in report.torn_ends] == [0]
    assert not report.may_miss_entries
    assert await read_all_flags(new) == {7: (False, False)}
    assert await new.find(7, 19) is not None
