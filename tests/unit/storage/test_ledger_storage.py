"""The whole of it, on RocksDB and real files and on the simulated machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from magnetar.errors import (
    ConfigError,
    DiskFullError,
    EntryMissingError,
    FileLockedError,
    IndexDamagedError,
    LedgerMissingError,
    LogDamagedError,
    SyncFailedError,
    TombstonesFullError,
)
from magnetar.sim.device import DiskTiming, Fault
from magnetar.sim.seeds import Delay
from magnetar.storage.entry_log.format import Block
from magnetar.storage.entry_log.writer import NewBlock
from magnetar.storage.index.extents import BlockPlace, Extent
from magnetar.storage.ledger_flags import LedgerFlags
from magnetar.storage.ledger_storage import LedgerStorage
from tests.unit.storage.samples import (
    KEY,
    Counter,
    World,
    add,
    change_flags,
    check,
    entry_bytes,
    listed,
    real_storage,
    small_config,
)

DAY_MS = 86_400_000
Open: TypeAlias = Callable[..., Awaitable[LedgerStorage]]


@pytest.fixture(autouse=True)
def _many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a flush of a few entries is many writes."""
    monkeypatch.setattr("magnetar.storage.write_cache.SLICE_BYTES", 600)


@pytest.fixture(params=["real", "simulated"])
async def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the same storage again each time it is called; the one before is closed."""
    submitted = Counter()
    world = World(dirs=2)
    opened: list[LedgerStorage] = []

    async def open_again(**changes: int) -> LedgerStorage:
        if opened:
            await opened.pop().aclose()
        config = small_config(**changes)
        if request.param == "real":
            storage = await real_storage(tmp_path, config, dirs=2, submitted=submitted)
        else:
            world.config = config
            storage = await world.open()
        opened.append(storage)
        return storage

    yield open_again
    await opened.pop().aclose()


def some_entries(ledgers: int = 3, count: int = 40) -> dict[tuple[int, int], bytes]:
    return {
        (ledger, entry): entry_bytes(ledger, entry, 10 + entry) for entry in range(count) for ledger in range(ledgers)
    }


async def test_entries_are_read_from_memory_then_from_logs_and_after_a_restart(reopen: Open) -> None:
    storage = await reopen()
    expected = some_entries()
    add(storage, expected.values())
    assert all(storage.get_entry_nowait(*place) == entry for place, entry in expected.items())
    await storage.flush()
    await check(storage, expected)
    await check(await reopen(), expected)


async def test_entries_of_many_flushes_and_shuffled_order_are_all_there(reopen: Open) -> None:
    storage = await reopen()
    expected = some_entries(ledgers=5, count=60)
    places = sorted(expected, key=lambda place: (place[1] * 7919 + place[0]) % 61)
    for first in range(0, len(places), 37):
        add(storage, [expected[place] for place in places[first : first + 37]])
        await storage.flush()
    await check(storage, expected)
    assert await listed(storage, 3) == list(range(60))
    assert await storage.list_ledgers() == [0, 1, 2, 3, 4]
    await check(await reopen(), expected)


async def test_entry_written_again_is_one_entry(reopen: Open) -> None:
    """Recovery adds what is here already; the bytes are the same."""
    storage = await reopen()
    for _ in range(3):
        add(storage, [entry_bytes(7, entry) for entry in (1, 2, 2, 3)])
        await storage.flush()
    assert await listed(storage, 7) == [1, 2, 3]
    await check(storage, {(7, entry): entry_bytes(7, entry) for entry in (1, 2, 3)})


async def test_gaps_are_missing_entries(reopen: Open) -> None:
    storage = await reopen()
    add(storage, [entry_bytes(7, entry) for entry in (0, 1, 3, 4, 6, 5000, (1 << 63) - 1)])
    for _ in range(2):
        for entry in (2, 5, 7, 4999, 5001, -1, 1 << 63, 1 << 80):
            with pytest.raises(EntryMissingError):
                await storage.get_entry(7, entry)
        with pytest.raises(LedgerMissingError):
            await storage.get_entry(8, 0)
        with pytest.raises(LedgerMissingError):
            await storage.get_entry(-8, 0)
        assert await storage.last_entry(7) == (1 << 63) - 1
        await storage.flush()


async def test_large_and_tiny_entries_live_side_by_side(reopen: Open) -> None:
    storage = await reopen(write_cache_bytes_max=64 << 20, read_cache_bytes_max=8 << 20)
    sizes = [0, 5 * 2**20, 1, 3 * 2**20, 0, 5 * 2**20]
    expected = {(7, entry): entry_bytes(7, entry, size) for entry, size in enumerate(sizes)}
    for entry in expected.values():
        add(storage, [entry])
    await storage.flush()
    await check(storage, expected)


async def test_range_is_read_up_to_its_limits_or_the_first_gap(reopen: Open) -> None:
    storage = await reopen()
    add(storage, [entry_bytes(7, entry) for entry in range(10)])
    await storage.flush()
    add(storage, [entry_bytes(7, entry) for entry in (10, 11, 13)])
    size = len(entry_bytes(7, 0))

    async def ids(first: int, count: int, limit: int = 1 << 20) -> list[int]:
        found = await storage.read_range(7, first, count, limit)
        return [int.from_bytes(entry[8:16], "big") for entry in found]

    assert await ids(0, 5) == [0, 1, 2, 3, 4]
    assert await ids(8, 100) == [8, 9, 10, 11]
    assert await ids(0, 100, size * 3) == [0, 1, 2]
    assert await ids(0, 100, 1) == [0]
    with pytest.raises(EntryMissingError):
        await ids(12, 5)


async def test_range_counts_what_stands_before_each_entry_where_it_will_be_sent(reopen: Open) -> None:
    storage = await reopen()
    add(storage, [entry_bytes(7, entry) for entry in range(10)])
    each = len(entry_bytes(7, 0)) + 4

    async def count(limit: int) -> int:
        return len(await storage.read_range(7, 0, 100, limit, head_bytes=4))

    assert [await count(3 * each), await count(3 * each - 1), await count(0), await count(-36)] == [3, 2, 1, 1]


async def test_sequential_reader_costs_one_log_read_per_read_ahead(tmp_path: Path) -> None:
    config = small_config(block_bytes=4096, read_ahead_bytes=65536, read_cache_bytes_max=1 << 20, log_bytes_max=1 << 30)
    storage = await real_storage(tmp_path, config)
    add(storage, [entry_bytes(7, entry, 1000) for entry in range(1000)])
    await storage.flush()
    for entry in range(1000):
        await storage.get_entry(7, entry)
    assert storage.logs.reads <= 1_100_000 // 60_000 + 2
    await storage.aclose()


async def test_reads_in_flight_together_share_a_log_read(tmp_path: Path) -> None:
    config = small_config(block_bytes=4096, read_ahead_bytes=65536, read_cache_bytes_max=1 << 20, log_bytes_max=1 << 30)
    storage = await real_storage(tmp_path, config)
    add(storage, [entry_bytes(7, entry, 100) for entry in range(200)])
    await storage.flush()
    found = await asyncio.gather(*(storage.get_entry(7, entry) for entry in range(200)))
    assert [bytes(entry) for entry in found] == [entry_bytes(7, entry, 100) for entry in range(200)]
    assert storage.logs.reads <= 2
    await storage.aclose()


async def test_reads_find_everything_at_every_moment_of_a_flush() -> None:
    world = World(timing=DiskTiming(operation=Delay(0, 0.001), sync=Delay(0.0005, 0.002)))
    storage = await world.open()
    expected = some_entries(2, 30)
    add(storage, expected.values())
    flushing = asyncio.ensure_future(storage.flush())
    while not flushing.done():
        await check(storage, expected)
        assert await storage.last_entry(1) == 29
        assert await listed(storage, 0) == list(range(30))
        await asyncio.sleep(0)
    await check(storage, expected)
    await storage.aclose()


async def test_adds_go_on_during_a_flush() -> None:
    world = World(timing=DiskTiming(operation=Delay(0, 0.001), sync=Delay(0.0005, 0.002)))
    storage = await world.open()
    expected = some_entries(2, 30)
    add(storage, expected.values())
    world.submitted.value = 5
    flushing = asyncio.ensure_future(storage.flush())
    await asyncio.sleep(0)
    late = {(9, entry): entry_bytes(9, entry) for entry in range(20)}
    add(storage, late.values())
    world.submitted.value = 6
    assert await flushing == 5
    await check(storage, expected | late)
    assert await storage.flush() == 6
    await check(storage, expected | late)
    await storage.aclose()


@pytest.mark.parametrize("is_flushed_meanwhile", [False, True])
async def test_entry_added_while_the_index_was_asked_is_not_denied(is_flushed_meanwhile: bool) -> None:
    world = World()
    storage = await world.open()
    add(storage, [entry_bytes(7, 0)])
    real_find = storage.index.find
    asked = 0

    async def overtaken_find(ledger_id: int, entry_id: int) -> Extent | None:
        nonlocal asked
        found = await real_find(ledger_id, entry_id)
        asked += 1
        if asked == 1:
            add(storage, [entry_bytes(7, 1)])
            if is_flushed_meanwhile:
                await storage.flush()
        return found

    storage.index.find = overtaken_find  # type: ignore[method-assign]
    assert bytes(await storage.get_entry(7, 1)) == entry_bytes(7, 1)
    await storage.aclose()


async def test_read_that_a_deletion_overtook_does_not_bring_the_ledger_back() -> None:
    world = World()
    storage = await world.open()
    add(storage, [entry_bytes(7, entry) for entry in range(3)])
    await storage.flush()
    real_read = storage.logs.read_blocks

    async def overtaken_read(place: BlockPlace, read_ahead_bytes: int = 0) -> tuple[bytes, list[Block]]:
        found = await real_read(place, read_ahead_bytes)
        await storage.delete_ledger(7)
        return found

    storage.logs.read_blocks = overtaken_read  # type: ignore[method-assign]
    await storage.get_entry(7, 1)
    for entry in range(3):
        with pytest.raises(LedgerMissingError):
            await storage.get_entry(7, entry)
    await storage.aclose()


async def test_mark_is_what_was_submitted_at_the_swap_and_survives(reopen: Open) -> None:
    storage = await reopen()
    assert await storage.flush() == 0
    submitted = storage._submitted
    assert isinstance(submitted, Counter)
    submitted.value = 41
    add(storage, [entry_bytes(7, 0)])
    assert await storage.flush() == 41
    storage = await reopen()
    assert await storage.index.mark() == 41
    submitted.value = 42
    assert await storage.flush() == 42


async def test_no_mark_is_given_out_that_the_journal_has_not_reached() -> None:
    """The flush was durable, the journal's last records were not: their numbers are given out again."""
    world = World()
    storage = await world.open()
    add(storage, [entry_bytes(7, 0)])
    world.submitted.value = 60
    assert await storage.flush() == 60
    world.crash()
    world.submitted.value = 55
    storage = await world.open(40)
    add(storage, [entry_bytes(7, 1)])
    assert await storage.flush() == 55
    await storage.aclose()
    world.machine.release_dead()


async def test_index_behind_the_journals_mark_is_refused(tmp_path: Path) -> None:
    submitted = Counter()
    submitted.value = 10
    storage = await real_storage(tmp_path, submitted=submitted)
    add(storage, [entry_bytes(7, 0)])
    await storage.flush()
    await storage.aclose()
    await (await real_storage(tmp_path, submitted=submitted, mark=10)).aclose()
    with pytest.raises(IndexDamagedError, match=r"up to journal record 10, but the journal.s mark is 11"):
        await real_storage(tmp_path, submitted=submitted, mark=11)


async def test_second_process_is_refused_and_leaves_the_first_alone(tmp_path: Path) -> None:
    storage = await real_storage(tmp_path)
    add(storage, [entry_bytes(7, 0)])
    with pytest.raises(FileLockedError, match="another process has it open"):
        await real_storage(tmp_path)
    await storage.flush()
    await check(storage, {(7, 0): entry_bytes(7, 0)})
    await storage.aclose()


def test_block_larger_than_a_cache_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"storage\.block_bytes exceeds storage\.write_cache_bytes_max"):
        small_config(write_cache_bytes_max=4096, block_bytes=8192)


# --- room -------------------------------------------------------------------------------------------------------------


async def test_full_cache_asks_for_a_flush_and_has_room_again_at_the_swap() -> None:
    world = World(config=small_config(write_cache_bytes_max=8192))
    storage = await world.open()
    waiting = asyncio.ensure_future(storage.wait_flush_due())
    while storage.has_room:
        add(storage, [entry_bytes(7, entry, 100) for entry in range(10)])
    await waiting
    room = asyncio.ensure_future(storage.wait_for_room())
    await asyncio.sleep(0)
    assert not room.done()
    flushing = asyncio.ensure_future(storage.flush())
    assert await room is True
    await flushing
    await storage.aclose()


async def test_without_room_the_wait_ends_in_a_refusal() -> None:
    world = World(config=small_config(write_cache_bytes_max=4096, max_throttle_ms=5))
    storage = await world.open()
    add(storage, [entry_bytes(7, 0, 10_000)])
    assert await storage.wait_for_room() is False
    await storage.flush()
    assert await storage.wait_for_room() is True
    await storage.aclose()


async def test_flush_is_due_after_its_interval() -> None:
    world = World(config=small_config(flush_interval_ms=1))
    storage = await world.open()
    await asyncio.wait_for(storage.wait_flush_due(), 10)
    await storage.aclose()


# --- trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 10, 100, 500, 1500, 3000])
async def test_full_disk_loses_nothing_and_the_flush_succeeds_when_there_is_room(room: int) -> None:
    world = World(dirs=1)
    storage = await world.open()
    before = {(6, entry): entry_bytes(6, entry) for entry in range(5)}
    add(storage, before.values())
    await storage.flush()
    used = world.devices[0].usage()
    expected = some_entries()
    add(storage, expected.values())
    await change_flags(storage, 9, fenced=True)
    world.submitted.value = 5
    world.devices[0].leave_room(room)
    for _ in range(2):
        with pytest.raises(DiskFullError):
            await storage.flush()
        await check(storage, expected | before)
        assert storage.mark == 0
    world.devices[0].capacity_bytes = None
    assert world.devices[0].usage().free_bytes == used.free_bytes  # What failed was taken back.
    late = {(8, entry): entry_bytes(8, entry) for entry in range(3)}
    add(storage, late.values())
    assert await storage.flush() == 5
    world.crash()
    storage = await world.open(5)
    await check(storage, expected | before | late)
    assert await storage.get_flags(9) == LedgerFlags(fenced=True)
    await storage.aclose()
    world.machine.release_dead()


async def test_flush_that_finds_the_disk_full_leaves_readers_of_its_log_what_was_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader that came while the log was longer must not miss the end that was cut off again."""
    world = World(config=small_config(log_bytes_max=1 << 20, read_cache_bytes_max=0))
    storage = await world.open()
    synced = {(6, entry): entry_bytes(6, entry) for entry in range(8)}
    add(storage, synced.values())
    await storage.flush()
    add(storage, [entry_bytes(7, entry) for entry in range(40)])
    append, slices = storage._writer.append, 0

    async def append_between_reads(blocks: list[NewBlock]) -> list[BlockPlace]:
        nonlocal slices
        slices += 1
        if slices == 4:
            await check(storage, synced)
            world.devices[0].leave_room(0)
        return await append(blocks)

    monkeypatch.setattr(storage._writer, "append", append_between_reads)
    with pytest.raises(DiskFullError):
        await storage.flush()
    await check(storage, synced)
    world.devices[0].capacity_bytes = None
    await storage.flush()
    await check(storage, synced)
    await storage.aclose()


async def test_full_index_loses_nothing_and_only_the_batch_is_tried_again() -> None:
    world = World()
    storage = await world.open()
    expected = some_entries()
    add(storage, expected.values())
    world.image.fail_next_write = DiskFullError("no room")
    with pytest.raises(DiskFullError):
        await storage.flush()
    logs = storage.dirs.log_ids()
    await check(storage, expected)
    await storage.flush()
    assert storage.dirs.log_ids() == logs
    await check(storage, expected)
    await storage.aclose()


async def test_nothing_is_written_below_the_reserve_of_the_index() -> None:
    world = World(config=small_config(index_reserve_bytes=1000))
    storage = await world.open()
    add(storage, [entry_bytes(7, 0)])
    world.devices[0].leave_room(999)
    with pytest.raises(DiskFullError, match="index_reserve_bytes"):
        await storage.flush()
    world.devices[0].capacity_bytes = None
    await storage.flush()
    await check(storage, {(7, 0): entry_bytes(7, 0)})
    await storage.aclose()


async def test_deletions_go_on_below_the_reserve_of_flushes_but_not_to_the_last_byte() -> None:
    """They write little, and nothing else makes room. Reads continue whatever happens."""
    world = World(config=small_config(index_reserve_bytes=1000))
    storage = await world.open()
    add(storage, [entry_bytes(ledger_id, 0) for ledger_id in (6, 7, 8)])
    await storage.flush()
    world.devices[0].leave_room(250)
    await storage.delete_ledger(6)
    world.devices[0].leave_room(249)
    writes = world.image.writes
    with pytest.raises(DiskFullError, match=r"a 4th of storage\.index_reserve_bytes"):
        await storage.delete_ledger(7)
    assert world.image.writes == writes
    await check(storage, {(7, 0): entry_bytes(7, 0), (8, 0): entry_bytes(8, 0)})
    world.devices[0].capacity_bytes = None
    await storage.delete_ledger(7)
    assert await storage.list_ledgers() == [8]
    await storage.aclose()


async def test_tombstones_expire_only_where_the_index_has_room() -> None:
    world = World(config=small_config(index_reserve_bytes=1000))
    storage = await world.open()
    await change_flags(storage, 7, fenced=True)
    await storage.delete_ledger(7)
    world.devices[0].leave_room(249)
    assert await storage.expire_tombstones() == 0, "nothing to write, nothing to refuse"
    world.devices[0].capacity_bytes = None
    storage = await a_while_later(world, storage, 8 * DAY_MS)
    world.devices[0].leave_room(249)
    with pytest.raises(DiskFullError, match="index_reserve_bytes"):
        await storage.expire_tombstones()
    assert storage.tombstones.count == 1
    world.devices[0].capacity_bytes = None
    assert await storage.expire_tombstones() == 1
    assert storage.tombstones.count == 0
    await storage.aclose()


async def test_failed_sync_of_a_log_ends_all_flushing() -> None:
    world = World()
    storage = await world.open()
    add(storage, [entry_bytes(7, 0)])
    world.devices[0].faults.strike_next(Fault.SYNC_ERROR)
    for _ in range(2):
        with pytest.raises(SyncFailedError):
            await storage.flush()
    assert storage.mark == 0
    assert await world.index().mark() is None
    await storage.aclose()


async def test_failed_sync_of_the_last_bytes_of_all_leaves_everything_closed_and_readable() -> None:
    """Nothing is promised after it, and only a map of ledgers is in them, which a scan replaces."""
    world = World()
    storage = await world.open()
    expected = some_entries()
    add(storage, expected.values())
    await storage.flush()
    world.devices[0].faults.strike_next(Fault.SYNC_ERROR)
    await storage.aclose()
    assert world.devices[0].faults.counts[Fault.SYNC_ERROR] == 1
    world.crash()
    storage = await world.open()
    await check(storage, expected)
    await storage.aclose()
    world.machine.release_dead()


async def test_failed_sync_of_the_index_ends_all_flushing() -> None:
    world = World()
    storage = await world.open()
    add(storage, [entry_bytes(7, 0)])
    world.image.fail_next_write = SyncFailedError("device")
    for _ in range(2):
        with pytest.raises(SyncFailedError):
            await storage.flush()
    await storage.aclose()


async def test_cancelled_flush_is_finished_by_the_next() -> None:
    for turns in range(0, 60, 3):
        world = World(config=small_config(log_bytes_max=4096))
        storage = await world.open()
        expected = some_entries()
        add(storage, expected.values())
        world.submitted.value = 3
        flushing = asyncio.ensure_future(storage.flush())
        for _ in range(turns):
            await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)
        assert await storage.flush() == 3
        world.crash()
        storage = await world.open(3)
        await check(storage, expected)
        await storage.aclose()
        world.machine.release_dead()


async def test_bad_log_stops_nothing_else(tmp_path: Path) -> None:
    storage = await real_storage(tmp_path)
    expected = some_entries(ledgers=20, count=10)
    for ledger in range(20):
        add(storage, [entry for place, entry in expected.items() if place[0] == ledger])
        await storage.flush()
    path = tmp_path / "ledgers-0" / "logs" / "00000001.log"
    size = path.stat().st_size
    path.write_bytes(b"\xff" * size)
    bad = []
    for place, entry in expected.items():
        try:
            assert bytes(await storage.get_entry(*place)) == entry
        except LogDamagedError:
            bad.append(place)
    assert 0 < len(bad) < len(expected)
    path.unlink()
    await storage.aclose()
    storage = await real_storage(tmp_path)
    for place in bad:
        with pytest.raises(LogDamagedError, match="in none of the ledger directories"):
            await storage.get_entry(*place)
    await check(storage, {place: entry for place, entry in expected.items() if place not in bad})
    await storage.aclose()


async def test_damaged_copy_is_replaced_by_another_one() -> None:
    world = World(config=small_config(read_cache_bytes_max=0))
    storage = await world.open()
    for _ in range(2):
        add(storage, [entry_bytes(7, entry) for entry in range(4)])
        await storage.flush()
    found = await storage.index.find(7, 2)
    assert found is not None
    (other,) = [extent for extent in await storage.index.find_all(7, 2) if extent != found]
    world.devices[0].flip_bit("logs/00000000.log", found.place.offset + 40)
    assert bytes(await storage.get_entry(7, 2)) == entry_bytes(7, 2)
    world.devices[0].flip_bit("logs/00000000.log", other.place.offset + 40)
    with pytest.raises(LogDamagedError):
        await storage.get_entry(7, 2)
    await storage.aclose()


async def test_index_that_points_to_the_wrong_block_is_an_error() -> None:
    world = World()
    storage = await world.open()
    add(storage, [entry_bytes(ledger, entry) for ledger in (1, 2) for entry in range(10)])
    await storage.flush()
    from magnetar.storage.index.location_index import IndexBatch

    (right,) = await storage.index.find_all(2, 9)
    wrong = right._replace(ledger_id=3)
    await storage.index.apply(IndexBatch(extents=[wrong]))
    with pytest.raises(LogDamagedError, match="lacks entry 9 of ledger 3"):
        await storage.get_entry(3, 9)
    await storage.aclose()


async def test_read_error_is_not_a_no() -> None:
    from magnetar.errors import DiskError

    world = World(config=small_config(read_cache_bytes_max=0))
    storage = await world.open()
    add(storage, [entry_bytes(7, 0)])
    await storage.flush()
    await storage.get_entry(7, 0)
    world.devices[0].faults.strike_next(Fault.READ_ERROR)
    with pytest.raises(DiskError):
        await storage.get_entry(7, 0)
    await check(storage, {(7, 0): entry_bytes(7, 0)})
    await storage.aclose()


# --- flags and deletion -----------------------------------------------------------------------------------------------


async def test_flags_are_seen_at_once_and_survive_with_the_next_flush(reopen: Open) -> None:
    storage = await reopen()
    assert await storage.get_flags(7) is None
    await change_flags(storage, 7, master_key=KEY)
    await change_flags(storage, 7, fenced=True)
    await change_flags(storage, 7, explicit_lac=b"lac")
    await change_flags(storage, 7, limbo=True)
    flags = LedgerFlags(master_key=KEY, fenced=True, limbo=True, explicit_lac=b"lac")
    assert await storage.get_flags(7) == flags
    await storage.flush()
    storage = await reopen()
    assert await storage.get_flags(7) == flags
    await change_flags(storage, 7, limbo=False)
    assert (await storage.get_flags(7) or flags).fenced
    with pytest.raises(EntryMissingError):
        await storage.get_entry(7, 0)


async def test_concurrent_changes_of_flags_lose_none() -> None:
    """Also while a flush moves them from memory to the index."""
    world = World(timing=DiskTiming(operation=Delay(0, 0.001), sync=Delay(0, 0.001)))
    for round_number in range(30):
        storage = await world.open()
        await change_flags(storage, round_number, master_key=KEY)
        await asyncio.gather(
            change_flags(storage, round_number, explicit_lac=b"a"),
            storage.flush(),
            change_flags(storage, round_number, fenced=True),
            storage.flush(),
            change_flags(storage, round_number, limbo=True),
            storage.flush(),
        )
        await storage.flush()
        await storage.aclose()
        storage = await world.open()
        expected = LedgerFlags(master_key=KEY, fenced=True, limbo=True, explicit_lac=b"a")
        assert await storage.get_flags(round_number) == expected
        await storage.aclose()


async def test_stale_look_into_the_index_does_not_undo_a_flush() -> None:
    world = World()
    storage = await world.open()
    await change_flags(storage, 7, master_key=KEY)
    await storage.flush()
    before = await storage.index.flags(7)
    real_flags = storage.index.flags
    overtaken = False

    async def slow_flags(ledger_id: int) -> LedgerFlags | None:
        nonlocal overtaken
        if overtaken:
            return await real_flags(ledger_id)
        overtaken = True
        storage.set_flags(7, LedgerFlags(master_key=KEY, fenced=True))
        await storage.flush()
        return before

    storage.index.flags = slow_flags  # type: ignore[method-assign]
    await change_flags(storage, 7, explicit_lac=b"lac")
    assert (await storage.get_flags(7) or LedgerFlags()).fenced
    await storage.aclose()


async def test_deleted_ledger_is_gone_everywhere_and_others_stay(reopen: Open) -> None:
    storage = await reopen()
    expected = some_entries()
    add(storage, expected.values())
    await storage.flush()
    await check(storage, expected)
    add(storage, [entry_bytes(1, 100)])
    await change_flags(storage, 1, master_key=KEY)
    await storage.delete_ledger(1)
    with pytest.raises(LedgerMissingError):
        await storage.get_entry(1, 3)
    assert await listed(storage, 1) == []
    await storage.flush()
    storage = await reopen()
    assert await storage.list_ledgers() == [0, 2]
    assert await storage.get_flags(1) is None
    await check(storage, {place: entry for place, entry in expected.items() if place[0] != 1})


async def test_ledger_deleted_between_two_tries_of_a_flush_does_not_come_back() -> None:
    for error_in_index in (False, True):
        world = World()
        storage = await world.open()
        add(storage, some_entries().values())
        await change_flags(storage, 1, master_key=KEY)
        if error_in_index:
            world.image.fail_next_write = DiskFullError("no room")
        else:
            world.devices[0].leave_room(0)
        with pytest.raises(DiskFullError):
            await storage.flush()
        world.devices[0].capacity_bytes = None
        await storage.delete_ledger(1)
        await storage.flush()
        assert await storage.list_ledgers() == [0, 2]
        assert await storage.get_flags(1) is None
        await storage.aclose()


async def test_fence_outlives_the_deletion_of_its_ledger(reopen: Open) -> None:
    storage = await reopen()
    add(storage, [entry_bytes(7, 0)])
    await change_flags(storage, 7, master_key=KEY)
    await change_flags(storage, 7, fenced=True)
    await storage.delete_ledger(7)
    storage = await reopen()
    flags = await storage.get_flags(7)
    assert flags is not None
    assert flags.fenced
    assert flags.deleted_at_ms is not None
    assert storage.tombstones.count == 1
    with pytest.raises(LedgerMissingError):
        await storage.get_entry(7, 0)
    await storage.delete_ledger(7)
    assert storage.tombstones.count == 1


async def test_tombstones_expire_after_a_week_and_not_before() -> None:
    world = World()
    storage = await world.open()
    await change_flags(storage, 7, fenced=True)
    await storage.delete_ledger(7)
    storage = await a_while_later(world, storage, 7 * DAY_MS - 60_000)
    assert await storage.expire_tombstones() == 0
    assert (await storage.get_flags(7) or LedgerFlags()).fenced
    storage = await a_while_later(world, storage, 120_000)
    assert await storage.expire_tombstones() == 1
    assert await storage.get_flags(7) is None
    assert storage.tombstones.count == 0
    await storage.aclose()


async def a_while_later(world: World, storage: LedgerStorage, pause_ms: int) -> LedgerStorage:
    """The process ends, and another one begins after this time."""
    await storage.flush()
    await storage.aclose()
    world.machine.clock.jump(pause_ms)
    return await world.open()


async def test_a_clock_that_jumps_ahead_lets_no_fence_go() -> None:
    world = World()
    storage = await world.open()
    await change_flags(storage, 7, fenced=True)
    await storage.delete_ledger(7)
    world.machine.clock.jump(30 * DAY_MS)
    assert await storage.expire_tombstones() == 0
    assert (await storage.get_flags(7) or LedgerFlags()).fenced
    await change_flags(storage, 8, fenced=True)
    await storage.delete_ledger(8)
    world.machine.clock.jump(-30 * DAY_MS)
    storage = await a_while_later(world, storage, 8 * DAY_MS)
    assert await storage.expire_tombstones() == 2
    await storage.aclose()


async def test_a_tombstone_from_the_future_expires_like_one_that_is_made_now() -> None:
    world = World()
    world.machine.clock.jump(3_650 * DAY_MS)
    storage = await world.open()
    await change_flags(storage, 7, fenced=True)
    await storage.delete_ledger(7)
    storage = await a_while_later(world, storage, -3_650 * DAY_MS)
    assert await storage.expire_tombstones() == 0
    storage = await a_while_later(world, storage, 6 * DAY_MS)
    assert await storage.expire_tombstones() == 0
    storage = await a_while_later(world, storage, 2 * DAY_MS)
    assert await storage.expire_tombstones() == 1
    await storage.aclose()


async def test_too_many_tombstones_keep_a_fence_and_let_the_entries_go() -> None:
    world = World(config=small_config(tombstones_max=2))
    storage = await world.open()
    for ledger in range(3):
        await change_flags(storage, ledger, fenced=True)
        add(storage, [entry_bytes(ledger, 0)])
    await storage.delete_ledger(0)
    await storage.delete_ledger(1)
    await storage.delete_ledger(2)
    assert await storage.list_ledgers() == []
    assert await storage.get_flags(2) == LedgerFlags(fenced=True)
    with pytest.raises(TombstonesFullError, match="tombstones_max"):
        await storage.delete_ledger(2)
    assert storage.tombstones.count == 2
    add(storage, [entry_bytes(3, 0)])
    await storage.delete_ledger(3)
    storage = await a_while_later(world, storage, 8 * DAY_MS)
    assert await storage.expire_tombstones() == 2
    await storage.delete_ledger(2)
    assert storage.tombstones.count == 1
    await storage.aclose()


async def test_ledger_used_again_after_its_deletion_is_still_fenced_and_does_not_expire() -> None:
    world = World()
    storage = await world.open()
    await change_flags(storage, 7, fenced=True)
    await storage.delete_ledger(7)
    add(storage, [entry_bytes(7, 0)])
    await change_flags(storage, 7, master_key=KEY)
    assert storage.tombstones.count == 0
    await storage.flush()
    world.machine.clock.jump(30 * DAY_MS)
    assert await storage.expire_tombstones() == 0
    assert await storage.get_flags(7) == LedgerFlags(master_key=KEY, fenced=True)
    await storage.aclose()
