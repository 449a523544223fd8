"""Compaction: room comes back, and every entry that is alive is readable before, meanwhile and after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from crc32c import crc32c

from magnetar.config.storage import StorageConfig
from magnetar.errors import (
    DiskError,
    DiskFullError,
    EntryMissingError,
    LedgerMissingError,
    LogDamagedError,
    SyncFailedError,
)
from magnetar.sim.device import Crash, Fault
from magnetar.sim.disk import SimDisk
from magnetar.storage.entry_log.compaction import Compactor, LogUsage, Survey, Throttle
from magnetar.storage.entry_log.format import encode_header, log_path
from magnetar.storage.index.extents import Extent
from magnetar.storage.index.ordered_store import MemoryImage
from magnetar.storage.index.rebuild import rebuild_index
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.testing.waiting import until
from tests.unit.storage.samples import Counter, World, add, check, entry_bytes, listed, real_storage, small_config

Entries = dict[tuple[int, int], bytes]
FAST = {"minor_compaction_interval_ms": 1, "major_compaction_interval_ms": 1, "compaction_bytes_per_s": 2**40}


def config(**changes: int) -> StorageConfig:
    return small_config(**(FAST | {"read_cache_bytes_max": 0} | changes))


async def write(storage: LedgerStorage, ledgers: Iterable[int], entries: Iterable[int] = range(80)) -> Entries:
    """One flush; all its ledgers share the logs."""
    added = {(ledger, entry): entry_bytes(ledger, entry) for entry in entries for ledger in ledgers}
    add(storage, added.values())
    storage._submitted.value += 1  # type: ignore[attr-defined]
    await storage.flush()
    return added


async def interleaved(storage: LedgerStorage, ledgers: Iterable[int], rounds: int = 6) -> Entries:
    """Many small flushes, so that every log has entries of every ledger."""
    written: Entries = {}
    for number in range(rounds):
        written |= await write(storage, ledgers, range(number * 3, number * 3 + 3))
    return written


async def delete(storage: LedgerStorage, expected: Entries, *ledgers: int) -> None:
    for ledger_id in ledgers:
        await storage.delete_ledger(ledger_id)
        for key in [key for key in expected if key[0] == ledger_id]:
            del expected[key]


async def compact_all(compactor: Compactor) -> None:
    """Every settled log with anything dead in it."""
    usages = await Survey(compactor._storage).look(compactor._note_damage)
    await compactor.compact([usage for usage in usages if usage.is_below(100)])


def compactor_of(storage: LedgerStorage, may_write: Callable[[], bool] = lambda: True) -> Compactor:
    return Compactor(storage, storage._config, may_write)


async def referenced_logs(storage: LedgerStorage) -> list[int]:
    found: list[Extent] = []
    for ledger_id in await storage.index.ledgers():
        found += await storage.index.extents(ledger_id)
    return sorted({extent.place.log_id for extent in found})


# --- what is removed, what is rewritten -------------------------------------------------------------------------------


async def test_a_log_without_a_living_ledger_is_removed_and_its_name_does_not_come_back() -> None:
    world = World(config=config(minor_compaction_interval_ms=10**6, major_compaction_interval_ms=10**6))
    storage = await world.open()
    expected = await write(storage, [1])
    expected |= await write(storage, [2])
    await delete(storage, expected, 1)
    compactor = compactor_of(storage)
    await compactor.run()
    assert compactor.statistics.logs_removed >= 1
    assert compactor.statistics.logs_rewritten == 0
    assert compactor.statistics.bytes_freed > 0
    left = storage.dirs.log_ids()
    assert 0 not in left
    await check(storage, expected)
    world.crash(Crash.DROP_UNSYNCED)
    storage = await world.open(world.submitted.value)
    assert storage.dirs.log_ids() == left
    await check(storage, expected)
    await storage.aclose()
    world.machine.release_dead()


@pytest.mark.parametrize("is_dead", [True, False])
async def test_a_log_that_could_not_be_removed_is_removed_by_the_next_round(
    is_dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await write(storage, [1] if is_dead else [1, 2])
    expected |= await write(storage, [2])
    await delete(storage, expected, 1)
    compactor = compactor_of(storage)
    remove = SimDisk.remove

    async def refuse(disk: SimDisk, path: str) -> None:
        raise DiskError(f"cannot remove {path}: Input/output error (EIO)")

    monkeypatch.setattr(SimDisk, "remove", refuse)
    await until(lambda: asyncio.get_running_loop().time() > compactor._major_at, "the end of the interval")
    await compactor.run()
    assert 0 in storage.dirs.log_ids(), "it takes room still"
    assert 0 in compactor.damaged
    monkeypatch.setattr(SimDisk, "remove", remove)
    await compactor.run()
    assert 0 not in storage.dirs.log_ids()
    assert world.devices[0].tree.find(log_path(0)) is None
    assert compactor.damaged == {}
    await check(storage, expected)
    await storage.aclose()


@pytest.mark.parametrize("dirs", [1, 3])
async def test_what_is_alive_moves_and_the_old_logs_go(dirs: int) -> None:
    world = World(config=config(), dirs=dirs)
    storage = await world.open()
    expected = await interleaved(storage, range(8))
    await delete(storage, expected, *range(1, 8))
    before = storage.dirs.log_ids()
    compactor = compactor_of(storage)
    await compact_all(compactor)
    assert set(storage.dirs.log_ids()) & set(before) == {before[-1]}, "the newest may still be written to"
    assert set(await referenced_logs(storage)) <= set(storage.dirs.log_ids())
    await check(storage, expected)
    assert await listed(storage, 0) == list(range(18))
    assert 0 < compactor.statistics.bytes_moved < compactor.statistics.bytes_freed / 4
    await storage.aclose()
    storage = await world.open(world.submitted.value)
    await check(storage, expected)
    await storage.aclose()


async def test_entries_with_gaps_and_far_apart_move_as_they_are() -> None:
    world = World(config=config(block_bytes=4096, log_bytes_max=6000))
    storage = await world.open()
    expected = await write(storage, [1, 2], [0, 1, 5, 7, 1023, 1024, 1025, 5000, 2**40])
    expected |= await write(storage, [3], range(60))
    await delete(storage, expected, 2)
    compactor = compactor_of(storage)
    await compact_all(compactor)
    assert compactor.statistics.logs_rewritten
    await check(storage, expected)
    with pytest.raises(EntryMissingError):
        await storage.get_entry(1, 6)
    assert await storage.last_entry(1) == 2**40
    await storage.aclose()


async def test_works_on_rocksdb_and_real_files(tmp_path: Path) -> None:
    submitted = Counter()
    storage = await real_storage(tmp_path, config(), submitted=submitted)
    expected = await interleaved(storage, range(6))
    await delete(storage, expected, 1, 2, 3, 4)
    await compact_all(compactor_of(storage))
    await check(storage, expected)
    await storage.aclose()
    storage = await real_storage(tmp_path, config(), submitted=submitted, mark=submitted.value)
    await check(storage, expected)
    files = sorted(path.name for path in (tmp_path / "ledgers-0" / "logs").iterdir())
    assert files == [log_path(log_id).removeprefix("logs/") for log_id in storage.dirs.log_ids()]
    await storage.aclose()


async def test_an_index_rebuilt_after_a_compaction_has_everything() -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await interleaved(storage, range(6))
    await delete(storage, expected, 1, 2, 3, 4)
    await compact_all(compactor_of(storage))
    rebuilt = MemoryImage()
    new = world.index(rebuilt)
    report = await rebuild_index(storage.dirs, storage.logs, new, old=storage.index, mark=world.submitted.value)
    assert not report.may_miss_entries
    await new.aclose()
    await storage.aclose()
    world.image = rebuilt
    storage = await world.open(world.submitted.value)
    await check(storage, expected)
    await storage.aclose()


@pytest.mark.parametrize(
    ("minor_ms", "major_ms", "rewritten"),
    [(1, 10**6, [10]), (10**6, 1, [10, 50]), (1, 1, [10, 50]), (10**6, 10**6, [])],
)
async def test_minor_and_major_have_thresholds_and_intervals_of_their_own(
    minor_ms: int, major_ms: int, rewritten: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(config=config(minor_compaction_interval_ms=minor_ms, major_compaction_interval_ms=major_ms))
    storage = await world.open()
    compactor = compactor_of(storage)
    usages = [LogUsage(log_id, 100, log_id, True) for log_id in (10, 50, 80, 100)]
    seen: list[int] = []

    async def look(_: object) -> list[LogUsage]:
        return usages

    async def compact(chosen: list[LogUsage]) -> None:
        seen.extend(usage.log_id for usage in chosen)

    monkeypatch.setattr(compactor._survey, "look", look)
    monkeypatch.setattr(compactor, "compact", compact)
    start = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: start + 60)
    await compactor.run()
    assert seen == rewritten
    await compactor.run()
    assert seen == rewritten, "the interval begins anew"
    monkeypatch.undo()
    await storage.aclose()


async def test_a_log_that_is_mostly_alive_stays() -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await interleaved(storage, range(10))
    await delete(storage, expected, 0)
    usages = await Survey(storage).look(lambda *_: None)
    assert usages
    for usage in usages:
        assert 80 <= usage.live_bytes * 100 / usage.total_bytes <= 97, usage
        assert not usage.is_below(80)
    await storage.aclose()


async def test_a_survey_reads_no_log_again_until_a_ledger_has_gone() -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await interleaved(storage, range(4))
    survey = Survey(storage)
    first = await survey.look(lambda *_: None)
    reads = storage.logs.reads
    assert await survey.look(lambda *_: None) == first
    assert storage.logs.reads == reads
    await delete(storage, expected, 1)
    assert sum(usage.live_bytes for usage in await survey.look(lambda *_: None)) < sum(u.live_bytes for u in first)
    await storage.aclose()


async def test_the_newest_log_stays_so_that_its_id_is_not_used_again() -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await write(storage, [1])
    await storage.aclose()
    storage = await world.open(world.submitted.value)
    newest = storage.dirs.log_ids()[-1]
    await delete(storage, expected, 1)
    await compactor_of(storage).run()
    assert storage.dirs.log_ids() == [newest]
    await storage.aclose()
    storage = await world.open(world.submitted.value)
    assert storage.dirs.new_log()[0] == newest + 1
    storage.dirs.forget(newest + 1)
    await storage.aclose()


async def test_a_log_that_a_crash_left_unfinished_is_compacted_too() -> None:
    world = World(config=config(log_bytes_max=1 << 20))
    storage = await world.open()
    expected = await write(storage, [1, 2, 3])
    add(storage, [entry_bytes(4, entry) for entry in range(5)])
    world.crash()
    storage = await world.open(world.submitted.value)
    expected |= await write(storage, [5])
    await delete(storage, expected, 2, 3)
    usages = await Survey(storage).look(lambda *_: None)
    assert [(usage.log_id, usage.is_finished) for usage in usages] == [(0, False)]
    assert usages[0].is_below(80)
    await compact_all(compactor_of(storage))
    assert 0 not in storage.dirs.log_ids()
    await check(storage, expected)
    await storage.aclose()
    world.machine.release_dead()


# --- while others are busy --------------------------------------------------------------------------------------------


async def test_a_ledger_deleted_while_it_is_copied_does_not_come_back() -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await interleaved(storage, range(6))
    await delete(storage, expected, 2, 3, 4, 5)
    move = storage.move
    deleted = False

    async def delete_first(moves: list[tuple[Extent, Extent]]) -> None:
        nonlocal deleted
        if not deleted:
            deleted = True
            await delete(storage, expected, 1)
        await move(moves)

    storage.move = delete_first  # type: ignore[assignment,method-assign]
    await compact_all(compactor_of(storage))
    assert deleted
    assert await storage.list_ledgers() == [0]
    with pytest.raises(LedgerMissingError):
        await storage.get_entry(1, 0)
    await check(storage, expected)
    await storage.aclose()


async def test_a_read_that_was_on_its_way_to_a_removed_log_finds_the_entry() -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await interleaved(storage, range(4))
    await delete(storage, expected, 1, 2, 3)
    old = storage.dirs.log_ids()
    find = storage.index.find
    found_in: list[int] = []

    async def find_then_compact(ledger_id: int, entry_id: int) -> Extent | None:
        extent = await find(ledger_id, entry_id)
        storage.index.find = find  # type: ignore[method-assign]
        assert extent is not None
        found_in.append(extent.place.log_id)
        await compact_all(compactor_of(storage))
        return extent

    storage.index.find = find_then_compact  # type: ignore[method-assign]
    assert bytes(await storage.get_entry(0, 0)) == expected[0, 0]
    assert found_in[0] in old
    assert found_in[0] not in storage.dirs.log_ids()
    await storage.aclose()


async def test_a_read_whose_ledger_is_deleted_and_log_removed_is_told_that_it_is_not_here() -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await write(storage, [1])
    expected |= await write(storage, [2])
    find = storage.index.find

    async def find_then_delete(ledger_id: int, entry_id: int) -> Extent | None:
        extent = await find(ledger_id, entry_id)
        storage.index.find = find  # type: ignore[method-assign]
        await delete(storage, expected, 1)
        await compactor_of(storage).run()
        return extent

    storage.index.find = find_then_delete  # type: ignore[method-assign]
    with pytest.raises(LedgerMissingError):
        await storage.get_entry(1, 0)
    await storage.aclose()


async def test_readers_and_writers_never_see_a_compaction() -> None:
    world = World(config=config(read_ahead_bytes=400))
    storage = await world.open()
    expected = await interleaved(storage, range(8), rounds=10)
    await delete(storage, expected, *range(2, 8))
    done = False

    async def read_for_ever(ledger_id: int) -> int:
        reads = 0
        while not done:
            for entry_id in range(30):
                assert bytes(await storage.get_entry(ledger_id, entry_id)) == entry_bytes(ledger_id, entry_id)
                reads += 1
        return reads

    async def write_for_ever() -> None:
        number = 0
        while not done:
            expected.update(await write(storage, [50 + number % 5], range(number, number + 4)))
            number += 4

    readers = [asyncio.create_task(read_for_ever(ledger_id)) for ledger_id in (0, 1)]
    writer = asyncio.create_task(write_for_ever())
    compactor = compactor_of(storage)
    for _ in range(3):
        await compact_all(compactor)
    done = True
    await writer
    assert all([await reader > 30 for reader in readers])
    assert compactor.statistics.logs_rewritten > 3
    await check(storage, expected)
    await storage.aclose()


async def test_logs_of_a_flush_that_the_index_does_not_know_yet_are_left_alone() -> None:
    """The disk of the index was full: the logs are written, and only the stuck flush refers to them."""
    world = World(config=config())
    storage = await world.open()
    entries = {(ledger, entry): entry_bytes(ledger, entry) for ledger in (1, 2) for entry in range(80)}
    add(storage, entries.values())
    world.submitted.value += 1
    world.image.fail_next_write = DiskFullError("full")
    with pytest.raises(DiskFullError):
        await storage.flush()
    assert len(storage.dirs.log_ids()) > 2
    await delete(storage, entries, 2)  # So there is something to compact.
    await compact_all(compactor_of(storage))
    await storage.flush()
    await check(storage, entries)
    await storage.aclose()


# --- faults -----------------------------------------------------------------------------------------------------------


async def test_a_damaged_log_is_kept_and_reported_and_stops_nothing_else() -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await interleaved(storage, range(8), rounds=8)
    await delete(storage, expected, *range(1, 8))
    bad = await storage.index.find(0, 4)
    assert bad is not None
    log_id = bad.place.log_id
    world.devices[0].flip_bit(log_path(log_id), bad.place.offset + 40)
    before = storage.dirs.log_ids()
    compactor = compactor_of(storage)
    await compact_all(compactor)
    assert list(compactor.damaged) == [log_id]
    assert set(storage.dirs.log_ids()) & set(before) == {log_id, before[-1]}
    lost = {entry for entry in range(24) if bad.holds(entry)}
    for (ledger_id, entry_id), entry in expected.items():
        if entry_id in lost:
            with pytest.raises(LogDamagedError):
                await storage.get_entry(ledger_id, entry_id)
        else:
            assert bytes(await storage.get_entry(ledger_id, entry_id)) == entry
    moved = compactor.statistics.bytes_moved
    await compact_all(compactor)
    assert log_id in compactor.damaged
    assert compactor.statistics.bytes_moved == moved, "it is not tried again and again"
    await delete(storage, expected, 0)
    await compactor.run()
    assert log_id not in storage.dirs.log_ids(), "nothing of it is alive, so the damage does not matter"
    assert not compactor.damaged
    await storage.aclose()


async def test_an_unfinished_log_whose_last_living_ledger_is_in_a_damaged_block_is_kept() -> None:
    """A scan does not see that ledger, so the log looks dead; the index knows better."""
    world = World(config=config(log_bytes_max=1 << 20))
    storage = await world.open()
    expected = await write(storage, [1, 2], range(10))
    world.crash()
    storage = await world.open(world.submitted.value)
    expected |= await write(storage, [3])
    for extent in await storage.index.extents(2):
        world.devices[0].flip_bit(log_path(0), extent.place.offset + 40)
    await delete(storage, expected, 1)
    compactor = compactor_of(storage)
    usages = await Survey(storage).look(lambda *_: None)
    assert usages == [LogUsage(0, usages[0].total_bytes, 0, False)]
    await compactor.run()
    await compact_all(compactor)
    assert list(compactor.damaged) == [0]
    with pytest.raises(LogDamagedError, match="wrong checksum"):
        await storage.get_entry(2, 0)
    await storage.aclose()
    world.machine.release_dead()


async def test_damage_in_what_is_dead_does_not_matter() -> None:
    world = World(config=config(block_bytes=64))
    storage = await world.open()
    expected = await write(storage, [1, 2])
    expected |= await write(storage, [3])
    dead = await storage.index.find(2, 0)
    assert dead is not None
    await delete(storage, expected, 2)
    world.devices[0].flip_bit(log_path(dead.place.log_id), dead.place.offset + 40)
    compactor = compactor_of(storage)
    await compact_all(compactor)
    assert not compactor.damaged
    assert dead.place.log_id not in storage.dirs.log_ids()
    await check(storage, expected)
    await storage.aclose()


async def test_a_log_that_cannot_be_read_stops_nothing_else() -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await interleaved(storage, range(8))
    await delete(storage, expected, *range(1, 8))
    world.devices[0].break_sector(log_path(0), 100)
    compactor = compactor_of(storage)
    await compact_all(compactor)
    assert list(compactor.damaged) == [0]
    assert compactor.statistics.logs_rewritten
    await storage.aclose()


async def put_log(world: World, log_id: int, content: bytes) -> None:
    disk = world.runtime.disk(world.roots[0], name="crash")
    file = await disk.open(log_path(log_id), create=True)
    await file.truncate(0)
    await file.append_and_sync([content])
    await disk.sync_dir("logs")
    await file.aclose()
    await disk.aclose()


@pytest.mark.parametrize("left", [b"", bytes(64), b"mgntrlog\x01"], ids=repr)
async def test_a_log_that_a_crash_left_without_header_or_blocks_is_removed(left: bytes) -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await write(storage, [1])
    torn = storage.dirs.log_ids()[-1] + 1
    await storage.aclose()
    await put_log(world, torn, left)
    storage = await world.open()
    compactor = compactor_of(storage)
    await compactor.run()
    assert torn in storage.dirs.log_ids(), "the newest stays, so that its id is not used again"
    expected |= await write(storage, [2])
    await compactor.run()
    assert torn not in storage.dirs.log_ids()
    assert not compactor.damaged
    await check(storage, expected)
    await storage.aclose()


async def test_a_log_without_its_header_stays_while_the_index_refers_to_it() -> None:
    world = World(config=config(log_bytes_max=1 << 20))
    storage = await world.open()
    expected = await write(storage, [1])
    world.crash()
    storage = await world.open(1)
    expected |= await write(storage, [2])
    await write(storage, [3])
    world.devices[0].flip_bit(log_path(0), 3)
    compactor = compactor_of(storage)
    await compactor.run()
    assert list(compactor.damaged) == [0]
    assert 0 in storage.dirs.log_ids()
    await check(storage, expected)
    await delete(storage, expected, 1)
    compactor = compactor_of(storage)  # As after a restart: the whole index is read once for such a log.
    await compactor.run()
    assert not compactor.damaged
    assert 0 not in storage.dirs.log_ids()
    await check(storage, expected)
    await storage.aclose()
    world.machine.release_dead()


async def test_a_log_of_a_newer_version_stays_whatever_the_index_says() -> None:
    world = World(config=config())
    storage = await world.open()
    await write(storage, [1])
    newer = storage.dirs.log_ids()[-1] + 1
    await storage.aclose()
    head = encode_header(newer)[:8] + (99).to_bytes(4, "little") + encode_header(newer)[12:16]
    await put_log(world, newer, head + crc32c(head).to_bytes(4, "little"))
    storage = await world.open()
    await write(storage, [2])
    compactor = compactor_of(storage)
    await compactor.run()
    assert "format version 99" in compactor.damaged[newer]
    assert newer in storage.dirs.log_ids()
    await storage.aclose()


async def test_a_full_disk_ends_the_compaction_and_loses_nothing() -> None:
    for room in (0, 300, 900, 2000):
        world = World(config=config())
        storage = await world.open()
        expected = await interleaved(storage, range(5), rounds=10)
        await delete(storage, expected, 1, 2)
        world.devices[0].leave_room(room)
        compactor = compactor_of(storage)
        before = storage.dirs.log_ids()
        with pytest.raises(DiskFullError):
            await compact_all(compactor)
        await check(storage, expected)
        if room < 900:
            assert storage.dirs.log_ids() == before, "what was begun gives its room back"
        world.devices[0].capacity_bytes = None
        await compact_all(compactor)
        assert compactor.statistics.logs_rewritten
        await check(storage, expected)
        await storage.aclose()


async def test_without_the_room_that_the_index_needs_nothing_is_copied() -> None:
    world = World(config=config(index_reserve_bytes=10_000))
    storage = await world.open()
    expected = await interleaved(storage, range(5))
    await delete(storage, expected, 1, 2, 3)
    before = storage.dirs.log_ids()
    world.devices[0].leave_room(9_000)
    compactor = compactor_of(storage)
    with pytest.raises(DiskFullError, match="index_reserve_bytes"):
        await compact_all(compactor)
    assert storage.dirs.log_ids() == before
    assert compactor.statistics.bytes_moved == 0
    await storage.aclose()


async def test_a_full_index_keeps_the_old_log() -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await interleaved(storage, range(5))
    await delete(storage, expected, 1, 2, 3)
    before = storage.dirs.log_ids()
    world.image.fail_next_write = DiskFullError("full")
    with pytest.raises(DiskFullError):
        await compact_all(compactor_of(storage))
    assert set(before) <= set(storage.dirs.log_ids())
    await check(storage, expected)
    await storage.aclose()


async def test_a_failed_sync_of_the_copy_keeps_the_old_log_and_is_not_hidden() -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await interleaved(storage, range(5))
    await delete(storage, expected, 1, 2, 3)
    before = storage.dirs.log_ids()
    world.devices[0].faults.strike_next(Fault.SYNC_ERROR, log_path(before[-1] + 1))
    with pytest.raises(SyncFailedError):
        await compact_all(compactor_of(storage))
    assert set(before) <= set(storage.dirs.log_ids())
    await check(storage, expected)
    await storage.aclose()


async def test_a_failed_write_of_the_index_ends_every_further_flush() -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await interleaved(storage, range(5))
    await delete(storage, expected, 1, 2, 3)
    world.image.fail_next_write = SyncFailedError("the device said no")
    with pytest.raises(SyncFailedError):
        await compact_all(compactor_of(storage))
    with pytest.raises(SyncFailedError):
        await storage.flush()
    await storage.aclose()


async def test_a_disk_that_fills_up_meanwhile_puts_the_rest_off() -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await interleaved(storage, range(5), rounds=10)
    await delete(storage, expected, 1, 2, 3)
    answers = [True, False]
    compactor = compactor_of(storage, lambda: answers.pop(0) if answers else False)
    await compact_all(compactor)
    assert compactor.statistics.logs_rewritten == 1
    assert compactor.statistics.put_off == 1
    await check(storage, expected)
    await storage.aclose()


async def test_a_cancelled_compaction_leaves_everything_readable() -> None:
    for turns in range(0, 160, 7):
        world = World(config=config())
        storage = await world.open()
        expected = await interleaved(storage, range(5))
        await delete(storage, expected, 1, 2, 3)
        running = asyncio.create_task(compact_all(compactor_of(storage)))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        await check(storage, expected)
        await storage.aclose()
        storage = await world.open(world.submitted.value)
        await check(storage, expected)
        await storage.aclose()


async def test_the_throttle_spreads_bytes_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("magnetar.storage.entry_log.compaction.asyncio.sleep", sleep)
    throttle = Throttle(1000)
    for _ in range(4):
        await throttle.wait(500)
    assert slept == [pytest.approx(due, abs=0.1) for due in (0, 0.5, 1.0, 1.5)]


async def test_compaction_asks_the_throttle_for_all_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(config=config())
    storage = await world.open()
    expected = await interleaved(storage, range(5))
    await delete(storage, expected, 1, 2, 3)
    compactor = compactor_of(storage)
    asked: list[int] = []

    async def wait(size: int) -> None:
        asked.append(size)

    monkeypatch.setattr(compactor._throttle, "wait", wait)
    await compact_all(compactor)
    assert sum(asked) > compactor.statistics.bytes_freed * 0.9
    await storage.aclose()
