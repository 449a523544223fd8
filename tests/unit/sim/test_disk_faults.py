"""Every fault of a running device shows, is counted, and can be ordered or left to chance."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import DiskError, DiskFullError, SyncFailedError
from magnetar.runtime.disk import Disk, File
from magnetar.sim.device import Crash, Fault, SimDevice
from magnetar.sim.disk import SimDisk
from tests.unit.sim.worlds import new_file, read_all

SECTOR = 512


async def world(durable: bytes = b"", seed: str = "0") -> tuple[SimDevice, Disk, File]:
    device = SimDevice(seed=seed)
    disk = SimDisk(device)
    return device, disk, await new_file(disk, "a", durable)


async def test_stall_delays_one_operation() -> None:
    device, disk, file = await world(b"x")
    device.faults.stall_s = 0.02
    loop = asyncio.get_running_loop()
    device.faults.strike_next(Fault.STALL)
    begin = loop.time()
    await file.read(0, 1)
    assert loop.time() - begin >= 0.019
    await file.read(0, 1)
    assert device.faults.counts[Fault.STALL] == 1
    await disk.aclose()


async def test_read_error_is_met_once() -> None:
    device, disk, file = await world(b"12345")
    device.faults.strike_next(Fault.READ_ERROR, "a")
    with pytest.raises(DiskError, match="EIO"):
        await file.read(0, 5)
    assert await file.read(0, 5) == b"12345"
    assert device.faults.counts[Fault.READ_ERROR] == 1
    await disk.aclose()


@pytest.mark.parametrize(("fault", "kind"), [(Fault.WRITE_ERROR, DiskError), (Fault.FULL, DiskFullError)])
async def test_failed_write_leaves_nothing_and_the_next_one_goes_through(fault: Fault, kind: type[DiskError]) -> None:
    device, disk, file = await world(b"12345")
    device.faults.strike_next(fault, "a")
    with pytest.raises(DiskError, match="cannot write to /a") as raised:
        await file.append([b"678"])
    assert type(raised.value) is kind
    assert file.size == 5
    assert await file.append_and_sync([b"6"]) == 5
    assert device.cached("a") == b"123456"
    assert device.faults.counts[fault] == 1
    await disk.aclose()


async def test_failed_write_that_cannot_be_cut_off_leaves_its_prefix_to_the_next_process() -> None:
    found = set()
    for seed in range(40):
        device, _, file = await world(b"", str(seed))
        device.faults.strike_next(Fault.WRITE_ERROR, "a")
        device.faults.strike_next(Fault.CUT_ERROR, "a")
        with pytest.raises(DiskError):
            await file.append([b"123"])
        device.crash(Crash.KILL)
        found.add(device.cached("a"))
    assert found == {b"", b"1", b"12"}


async def test_truncate_can_fail_and_changes_nothing_then() -> None:
    device, disk, file = await world(b"12345")
    device.faults.strike_next(Fault.CUT_ERROR, "a")
    with pytest.raises(DiskError, match="truncate"):
        await file.truncate(2)
    assert await file.read(0, 5) == b"12345"
    await disk.aclose()


async def test_full_device_takes_what_fits_and_reserved_room_is_taken_already() -> None:
    device, disk, file = await world(b"12345")
    await file.preallocate(8)
    device.leave_room(0)
    assert (await disk.usage()).free_bytes == 0
    assert await file.append([b"678"]) == 5
    with pytest.raises(DiskFullError):
        await file.append([b"9"])
    with pytest.raises(DiskFullError):
        await file.preallocate(9)
    assert device.faults.counts[Fault.FULL] == 2
    await disk.remove("a")
    assert (await disk.usage()).free_bytes == 8
    await disk.aclose()


# --- failed syncs ---


async def test_bytes_of_a_failed_sync_are_never_durable_not_even_after_a_later_sync() -> None:
    for seed in range(10):
        device, _, file = await world(b"kept ", str(seed))
        await file.append([b"lost "])
        device.faults.strike_next(Fault.SYNC_ERROR, "a")
        with pytest.raises(SyncFailedError):
            await file.sync()
        device.crash(Crash.KILL)
        file = await SimDisk(device).open("a")
        assert file.size == 10
        await file.append_and_sync([b"more"])
        device.crash(Crash.POWER_LOSS)
        assert await read_all(device) == {"a": b"kept \0\0\0\0\0more"}
        assert device.faults.counts[Fault.SYNC_ERROR] == 1


async def test_reads_after_a_restart_may_or_may_not_show_the_bytes_of_a_failed_sync() -> None:
    found = set()
    for seed in range(20):
        device, _, file = await world(b"kept ", str(seed))
        device.faults.strike_next(Fault.SYNC_ERROR, "a")
        with pytest.raises(SyncFailedError):
            await file.append_and_sync([b"lost"])
        device.crash(Crash.KILL)
        found.add((await read_all(device))["a"])
    assert found == {b"kept lost", b"kept \0\0\0\0"}


async def test_names_of_a_failed_directory_sync_are_never_durable() -> None:
    for seed in range(10):
        device, disk, _ = await world(b"x", str(seed))
        await disk.rename("a", "b")
        device.faults.strike_next(Fault.SYNC_ERROR, "")
        with pytest.raises(SyncFailedError):
            await disk.sync_dir()
        device.crash(Crash.KILL)
        again = SimDisk(device)
        assert await again.list() == ["b"]
        await again.sync_dir()
        device.crash(Crash.POWER_LOSS)
        assert await read_all(device) == {"a": b"x"}


async def test_file_moved_by_a_failed_directory_sync_keeps_its_old_name() -> None:
    for seed in range(10):
        device, disk, _ = await world(b"x", str(seed))
        await disk.make_dir("d")
        await disk.sync_dir()
        await disk.rename("a", "d/a")
        device.faults.strike_next(Fault.SYNC_ERROR, "d")
        with pytest.raises(SyncFailedError):
            await disk.sync_dir("d")
        await disk.sync_dir()
        device.crash(Crash.POWER_LOSS)
        assert await read_all(device) == {"a": b"x"}


# --- silent harm ---


async def test_latent_sector_fails_reads_of_its_range_until_it_is_cut_off() -> None:
    device, disk, file = await world(b"x" * 3 * SECTOR)
    device.break_sector("a", SECTOR + 7)
    assert await file.read(0, SECTOR) == b"x" * SECTOR
    assert await file.read(2 * SECTOR, SECTOR) == b"x" * SECTOR
    for offset, length in ((SECTOR, 1), (0, 3 * SECTOR), (2 * SECTOR - 1, 2)):
        with pytest.raises(DiskError, match="EIO"):
            await file.read(offset, length)
    device.crash(Crash.POWER_LOSS)
    disk = SimDisk(device)
    file = await disk.open("a")
    with pytest.raises(DiskError, match="EIO"):
        await file.read(0, 3 * SECTOR)
    await file.truncate(SECTOR + 1)
    await file.append([b"y"])
    with pytest.raises(DiskError, match="EIO"):
        await file.read(SECTOR + 1, 1)
    await file.truncate(SECTOR)
    await file.append([b"y" * SECTOR])
    assert await file.read(SECTOR, SECTOR) == b"y" * SECTOR
    assert device.faults.counts[Fault.LATENT_SECTOR] == 1
    await disk.aclose()


async def test_latent_sector_can_come_by_chance() -> None:
    device, disk, file = await world(b"x" * SECTOR)
    device.faults.rates[Fault.LATENT_SECTOR] = 1.0
    with pytest.raises(DiskError, match="EIO"):
        await file.read(0, SECTOR)
    device.faults.rates.clear()
    with pytest.raises(DiskError, match="EIO"):
        await file.read(0, SECTOR)
    await disk.aclose()


async def test_flipped_bit_is_read_and_stays_on_the_medium() -> None:
    device, _, file = await world(b"abc")
    device.flip_bit("a", 1, bit=5)
    assert await file.read(0, 3) == b"aBc"
    device.crash(Crash.POWER_LOSS)
    assert await read_all(device) == {"a": b"aBc"}
    assert device.faults.counts[Fault.BIT_FLIP] == 1


async def test_read_can_meet_a_bit_that_flipped_by_chance() -> None:
    device, disk, file = await world(b"abcdef")
    device.faults.strike_next(Fault.BIT_FLIP, "a")
    found = await file.read(1, 3)
    assert sum((old ^ new).bit_count() for old, new in zip(b"bcd", found, strict=True)) == 1
    assert await file.read(1, 3) == found
    assert device.durable("a") == b"a" + found + b"ef"
    await disk.aclose()


async def test_misdirected_write_leaves_the_old_data_and_overwrites_another_place() -> None:
    found = set()
    for seed in range(20):
        device, disk, file = await world(b"", str(seed))
        await new_file(disk, "victim", b"......")
        device.faults.strike_next(Fault.MISDIRECTED_WRITE, "a")
        await file.append_and_sync([b"12"])
        device.crash(Crash.POWER_LOSS)
        files = await read_all(device)
        assert files["a"] == b"\0\0"
        found.add(files["victim"])
        assert device.faults.counts[Fault.MISDIRECTED_WRITE] == 1
    assert {content.replace(b".", b"") for content in found} == {b"12", b"1"}
    assert {len(content) for content in found} == {6}


async def test_misdirected_write_is_seen_without_a_restart() -> None:
    device, disk, file = await world(b"abc")
    device.faults.strike_next(Fault.MISDIRECTED_WRITE, "a")
    await file.append_and_sync([b"XYZ"])
    content = await file.read(0, 6)
    assert content[3:] == b"\0\0\0"
    assert content[:3] in (b"XYZ", b"aXY", b"abX")
    assert device.durable("a") == content
    await disk.aclose()


async def test_emptied_disk_has_nothing_left_and_works() -> None:
    device, _, _ = await world(b"x")
    device.crash(Crash.KILL)
    device.empty()
    disk = SimDisk(device)
    assert await disk.list() == []
    await new_file(disk, "a", b"new")
    device.crash(Crash.POWER_LOSS)
    assert await read_all(device) == {"a": b"new"}
    assert device.faults.counts[Fault.EMPTIED] == 1


async def test_one_directory_can_be_emptied_alone() -> None:
    device = SimDevice()
    disk = SimDisk(device)
    for directory in ("journal", "ledgers"):
        await disk.make_dir(directory)
        await new_file(disk, f"{directory}/1", b"x")
    device.crash(Crash.KILL)
    device.empty("journal")
    disk = SimDisk(device)
    assert (await disk.list("journal"), await disk.list("ledgers")) == ([], ["1"])
    await disk.aclose()


# --- chance ---


async def test_faults_by_chance_repeat_with_the_seed_and_do_not_move_each_other() -> None:
    first, again = [await _struck_reads("7", {Fault.READ_ERROR: 0.3}) for _ in range(2)]
    with_others = await _struck_reads("7", {Fault.READ_ERROR: 0.3, Fault.BIT_FLIP: 0.5, Fault.WRITE_ERROR: 0.5})
    assert first == again == with_others
    assert first != await _struck_reads("8", {Fault.READ_ERROR: 0.3})
    assert 10 < sum(first) < 50


async def _struck_reads(seed: str, rates: dict[Fault, float]) -> list[bool]:
    device, disk, file = await world(b"12345", seed)
    device.faults.rates.update(rates)
    outcomes = await asyncio.gather(*(file.read(0, 5) for _ in range(100)), return_exceptions=True)
    await disk.aclose()
    return [isinstance(outcome, DiskError) for outcome in outcomes]
