"""The mark is durable in every directory before it counts; the lowest is in force; a damaged one is named."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import DiskError, MagnetarError, MarkDamagedError
from magnetar.runtime.disk import Disk
from magnetar.sim.device import Crash, SimDevice
from magnetar.sim.disk import SimDisk
from magnetar.sim.disk_faults import Fault
from magnetar.storage.journal_mark import JournalMark, decode_mark, encode_mark

ROOTS = ("ledgers-1", "ledgers-2", "ledgers-3")


async def directories(device: SimDevice) -> dict[str, Disk]:
    disks: dict[str, Disk] = {f"/data/{root}": SimDisk(device, root) for root in ROOTS}
    for disk in disks.values():
        await disk.make_dir("")
    return disks


async def opened(device: SimDevice) -> JournalMark:
    return await JournalMark.open(await directories(device))


async def mark_after(device: SimDevice, kind: Crash) -> int:
    device.crash(kind)
    return (await opened(device)).sequence


@given(st.integers(0, 2**64 - 1))
def test_mark_comes_back_and_no_part_of_it_does(sequence: int) -> None:
    data = encode_mark(sequence)
    assert decode_mark(data) == sequence
    assert decode_mark(data + b"\0") is None
    assert all(decode_mark(data[:length]) is None for length in range(len(data)))


def test_no_flipped_bit_leaves_a_mark_intact() -> None:
    data = encode_mark(17)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_mark(bytes(damaged)) is None


async def test_absent_mark_is_zero_and_a_moved_one_survives() -> None:
    device = SimDevice()
    mark = await opened(device)
    assert mark.sequence == 0
    for sequence in (5, 5, 70_000):
        await mark.move(sequence)
        assert mark.sequence == sequence
    assert await mark_after(device, Crash.DROP_UNSYNCED) == 70_000


async def test_directory_without_a_mark_counts_as_zero() -> None:
    device = SimDevice()
    disks = await directories(device)
    first = dict(list(disks.items())[:2])
    await (await JournalMark.open(first)).move(9)
    assert (await JournalMark.open(first)).sequence == 9
    assert (await JournalMark.open(disks)).sequence == 0


async def test_crash_at_any_moment_leaves_the_old_mark_or_the_new_one() -> None:
    found = set()
    for seed in range(60):
        device = SimDevice(seed=str(seed))
        mark = await opened(device)
        await mark.move(5)
        moving = asyncio.create_task(mark.move(8))
        for _ in range(seed):
            await asyncio.sleep(0)
        was_moved = mark.sequence == 8
        after = await mark_after(device, Crash.POWER_LOSS)
        assert after == 8 if was_moved else after in (5, 8)
        found.add(after)
        device.release_dead()
        await asyncio.gather(moving, return_exceptions=True)
    assert found == {5, 8}


async def test_mark_of_the_slowest_directory_is_in_force() -> None:
    device = SimDevice()
    mark = await opened(device)
    await mark.move(5)
    device.faults.strike_next(Fault.WRITE_ERROR, "ledgers-2/lastmark.tmp")
    with pytest.raises(DiskError):
        await mark.move(8)
    assert mark.sequence == 5
    assert await mark_after(device, Crash.KILL) == 5
    again = await opened(device)
    await again.move(8)
    assert await mark_after(device, Crash.DROP_UNSYNCED) == 8


async def test_mark_never_goes_back() -> None:
    mark = await opened(SimDevice())
    await mark.move(5)
    with pytest.raises(AssertionError, match="cannot go back"):
        await mark.move(4)


async def test_damaged_mark_is_named_with_what_to_do() -> None:
    device = SimDevice()
    await (await opened(device)).move(5)
    device.flip_bit("ledgers-2/lastmark", 10)
    with pytest.raises(MarkDamagedError, match=r"/data/ledgers-2/lastmark is damaged.*copy lastmark from another"):
        await opened(device)


async def test_several_journals_keep_a_mark_each() -> None:
    device = SimDevice()
    disks = await directories(device)
    await (await JournalMark.open(disks, "lastmark.0")).move(3)
    assert (await JournalMark.open(disks, "lastmark.1")).sequence == 0
    assert (await JournalMark.open(disks, "lastmark.0")).sequence == 3


async def test_each_sync_is_needed() -> None:
    device = SimDevice()
    await (await opened(device)).move(5)
    sites = list(device.sites.counts)
    assert len(sites) == 2
    for site in sites:
        device = SimDevice()
        device.sites.ignored.add(site)
        await (await opened(device)).move(5)
        try:
            assert await mark_after(device, Crash.DROP_UNSYNCED) == 5
        except (AssertionError, MagnetarError):
            continue
        raise AssertionError(f"{site} is not needed")
