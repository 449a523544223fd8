"""The mark is durable in every directory before it counts; the lowest is in force; a damaged one is named."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import DiskError, MagnetarError, MarkDamagedError
from magnetar.runtime.disk import Disk
from magnetar.sim.device import Crash, Fault, SimDevice
from magnetar.sim.disk import SimDisk
from magnetar.storage.journal.mark import ONLY, JournalMark, Marks, decode_marks, encode_marks

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
    for marks in (Marks({"": sequence}), Marks({"/b": sequence, "/a": 7}), Marks({"/a": 1}, {"/ü": sequence})):
        data = encode_marks(marks)
        assert decode_marks(data) == marks
        assert decode_marks(data + b"\0") is None
        assert all(decode_marks(data[:length]) is None for length in range(len(data)))


def test_one_journals_file_is_as_it_always_was() -> None:
    data = bytes.fromhex("4d4e4c4d 00000001 0000000000000011 8f972f7f".replace(" ", ""))
    assert encode_marks(Marks({"/only": 17})) == data


def test_no_flipped_bit_leaves_a_mark_intact() -> None:
    for data in (encode_marks(Marks({ONLY: 17})), encode_marks(Marks({"/a": 17, "/b": 3}, {"/c": 4}))):
        for bit in range(8 * len(data)):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            assert decode_marks(bytes(damaged)) is None


async def test_absent_mark_is_zero_and_a_moved_one_survives() -> None:
    device = SimDevice()
    mark = await opened(device)
    assert mark.sequence == 0
    for sequence in (5, 5, 70_000):
        await mark.move_all({ONLY: sequence})
        assert mark.sequence == sequence
    assert await mark_after(device, Crash.DROP_UNSYNCED) == 70_000


async def test_directory_without_a_mark_counts_as_zero() -> None:
    device = SimDevice()
    disks = await directories(device)
    first = dict(list(disks.items())[:2])
    await (await JournalMark.open(first)).move_all({ONLY: 9})
    assert (await JournalMark.open(first)).sequence == 9
    assert (await JournalMark.open(disks)).sequence == 0


async def test_crash_at_any_moment_leaves_the_old_mark_or_the_new_one() -> None:
    found = set()
    for seed in range(60):
        device = SimDevice(seed=str(seed))
        mark = await opened(device)
        await mark.move_all({ONLY: 5})
        moving = asyncio.create_task(mark.move_all({ONLY: 8}))
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
    await mark.move_all({ONLY: 5})
    device.faults.strike_next(Fault.WRITE_ERROR, "ledgers-2/lastmark.tmp")
    with pytest.raises(DiskError):
        await mark.move_all({ONLY: 8})
    assert mark.sequence == 5
    assert await mark_after(device, Crash.KILL) == 5
    again = await opened(device)
    await again.move_all({ONLY: 8})
    assert await mark_after(device, Crash.DROP_UNSYNCED) == 8


async def test_mark_whose_directory_could_not_be_synced_is_written_again_before_it_counts() -> None:
    """The next process finds it, and a power loss removes it: files that are needed after that may have been reused."""
    device = SimDevice()
    mark = await opened(device)
    await mark.move_all({ONLY: 5})
    device.faults.strike_next(Fault.SYNC_ERROR, "ledgers-1")
    with pytest.raises(DiskError):
        await mark.move_all({ONLY: 8})
    device.crash(Crash.KILL)
    await (await opened(device)).move_all({ONLY: 8})
    assert await mark_after(device, Crash.DROP_UNSYNCED) == 8


async def test_mark_never_goes_back() -> None:
    mark = await opened(SimDevice())
    await mark.move_all({ONLY: 5})
    with pytest.raises(AssertionError, match="cannot go back"):
        await mark.move_all({ONLY: 4})


async def test_damaged_mark_is_named_with_what_to_do() -> None:
    device = SimDevice()
    await (await opened(device)).move_all({ONLY: 5})
    device.flip_bit("ledgers-2/lastmark", 10)
    with pytest.raises(
        MarkDamagedError, match=r"/data/ledgers-2/lastmark is damaged.*copy lastmark from another.*bookie limbo"
    ):
        await opened(device)


async def test_several_journals_keep_a_mark_each() -> None:
    device = SimDevice()
    disks = await directories(device)
    marks = await JournalMark.open(disks, ("/a", "/b"))
    await marks.move_all({"/a": 3, "/b": 5})
    device.crash(Crash.DROP_UNSYNCED)
    marks = await JournalMark.open(await directories(device), ("/a", "/b"))
    assert (marks.positions, marks.sequence, marks.has_same_journals) == ({"/a": 3, "/b": 5}, 8, True)


async def test_the_mark_of_the_only_journal_becomes_that_of_the_first_of_several() -> None:
    disks = await directories(SimDevice())
    await (await JournalMark.open(disks)).move_all({ONLY: 9})
    marks = await JournalMark.open(disks, ("/a", "/b"))
    assert (marks.positions, marks.has_same_journals) == ({"/a": 9, "/b": 0}, False)
    await marks.move_all({"/a": 9, "/b": 0})
    assert (await JournalMark.open(disks, ("/a", "/b"))).has_same_journals


async def test_journals_are_begun_from_their_first_mark_on_until_they_are_retired() -> None:
    disks = await directories(SimDevice())
    marks = await JournalMark.open(disks, ("/a",))
    assert (marks.begun, marks.has_same_journals) == (set(), False)
    first = dict(list(disks.items())[:1])
    await (await JournalMark.open(first, ("/a",))).move_all({"/a": 0})  # A crash before it was in all directories.
    assert (await JournalMark.open(disks, ("/a", "/b"))).begun == {"/a"}
    await (await JournalMark.open(disks, ("/a", "/b"))).move_all({"/a": 0, "/b": 0})
    await (await JournalMark.open(disks, ("/b",))).move_all({"/b": 0})
    assert (await JournalMark.open(disks, ("/a", "/b"))).begun == {"/b"}


async def test_marks_belong_to_directories_whatever_their_order() -> None:
    disks = await directories(SimDevice())
    await (await JournalMark.open(disks, ("/a", "/b"))).move_all({"/a": 3, "/b": 5})
    marks = await JournalMark.open(disks, ("/b", "/a"))
    assert (marks.positions, marks.has_same_journals) == ({"/b": 5, "/a": 3}, False)


async def test_a_journal_that_is_gone_is_left_behind_until_it_is_retired_and_stays_in_the_total() -> None:
    disks = await directories(SimDevice())
    await (await JournalMark.open(disks, ("/a", "/b"))).move_all({"/a": 3, "/b": 5})
    marks = await JournalMark.open(disks, ("/b",))
    assert (marks.left_behind, marks.sequence, marks.has_same_journals) == ({"/a": 3}, 8, False)
    await marks.move_all({"/b": 6})
    marks = await JournalMark.open(disks, ("/b",))
    assert (marks.left_behind, marks.sequence, marks.has_same_journals) == ({}, 9, True)
    back = await JournalMark.open(disks, ("/b", "/a"))
    assert (back.positions, back.sequence) == ({"/b": 6, "/a": 3}, 9)


async def test_a_crash_while_several_marks_move_leaves_each_old_or_new() -> None:
    for seed in range(40):
        device = SimDevice(seed=str(seed))
        marks = await JournalMark.open(await directories(device), ("/a", "/b"))
        await marks.move_all({"/a": 3, "/b": 5})
        moving = asyncio.create_task(marks.move_all({"/a": 4, "/b": 9}))
        for _ in range(seed):
            await asyncio.sleep(0)
        device.crash(Crash.POWER_LOSS)
        after = await JournalMark.open(await directories(device), ("/a", "/b"))
        assert after.positions in ({"/a": 3, "/b": 5}, {"/a": 4, "/b": 9})
        device.release_dead()
        await asyncio.gather(moving, return_exceptions=True)


async def test_each_sync_is_needed() -> None:
    device = SimDevice()
    await (await opened(device)).move_all({ONLY: 5})
    sites = list(device.sites.counts)
    assert len(sites) == 2
    for site in sites:
        device = SimDevice()
        device.sites.ignored.add(site)
        await (await opened(device)).move_all({ONLY: 5})
        try:
            assert await mark_after(device, Crash.DROP_UNSYNCED) == 5
        except (AssertionError, MagnetarError):
            continue
        raise AssertionError(f"{site} is not needed")
