"""What a crash leaves: everything synced, and of the rest what the kernel happened to have written."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest

from magnetar.errors import ClosedError, FileMissingError
from magnetar.runtime.disk import Disk
from magnetar.sim.device import Crash, DiskTiming, SimDevice
from magnetar.sim.disk import SimDisk
from magnetar.sim.seeds import Delay
from tests.unit.sim.worlds import files_after, new_file, outcomes, read_all, turns

PAGE = 4_096

# --- bytes ---


async def append_twice_unsynced(disk: Disk) -> None:
    file = await new_file(disk, "a", b"synced ")
    await file.append([b"first "])
    await file.append([b"second"])


async def test_unsynced_appends_vanish_are_torn_or_stay_and_synced_ones_always_stay() -> None:
    found = [files["a"] for files in await outcomes(append_twice_unsynced)]
    assert all(content.startswith(b"synced ") for content in found)
    assert b"synced " in found
    assert b"synced first " in found
    assert b"synced first second" in found
    assert any(content.startswith(b"synced first s") and not content.endswith(b"second") for content in found)
    assert any(b"\0" in content for content in found)  # The size was written back, the page was not.


async def test_pages_are_written_back_in_any_order() -> None:
    async def three_pages(disk: Disk) -> None:
        file = await new_file(disk, "a")
        for letter in (b"x", b"y", b"z"):
            await file.append([letter * PAGE])

    found = [files["a"] for files in await outcomes(three_pages)]
    assert any(content[:PAGE] == bytes(PAGE) and content[PAGE : PAGE + 1] == b"y" for content in found)
    assert any(content[PAGE : 2 * PAGE] == bytes(PAGE) and content[-1:] == b"z" for content in found)


async def test_unsynced_truncate_may_be_undone() -> None:
    async def cut(disk: Disk) -> None:
        await (await new_file(disk, "a", b"head and tail")).truncate(4)

    found = [files["a"] for files in await outcomes(cut)]
    assert b"head" in found
    assert b"head and tail" in found
    assert {content.rstrip(b"\0") for content in found} == {b"head", b"head and tail"}


async def test_synced_truncate_and_what_follows_it_stay() -> None:
    async def cut(disk: Disk) -> None:
        file = await new_file(disk, "a", b"head and tail")
        await file.truncate(4)
        await file.append_and_sync([b"line"])

    assert await outcomes(cut) == [{"a": b"headline"}]


async def test_append_under_way_at_the_crash_leaves_any_prefix_even_of_a_kill() -> None:
    found = {await _kill_during_append(str(seed)) for seed in range(40)}
    assert found == {b"", b"1", b"12", b"123"}


async def _kill_during_append(seed: str) -> bytes:
    device = SimDevice(seed=seed)
    file = await new_file(SimDisk(device), "a")
    appending = asyncio.ensure_future(file.append([b"1", b"23"]))
    await asyncio.sleep(0)
    device.crash(Crash.KILL)
    content = device.cached("a")
    device.release_dead()
    await asyncio.gather(appending, return_exceptions=True)
    return content


async def test_group_commit_can_be_found_written_and_not_durable() -> None:
    device = SimDevice(timing=DiskTiming(sync=Delay(60, 60)))
    device.tree.create("a")
    device.tree.root.commit()
    file = await SimDisk(device).open("a")
    committing = asyncio.ensure_future(file.append_and_sync([b"group"]))
    await turns()
    assert device.cached("a") == b"group"
    device.crash(Crash.DROP_UNSYNCED)
    assert device.cached("a") == b""
    device.release_dead()
    await asyncio.gather(committing, return_exceptions=True)


async def test_preallocated_room_is_durable_zeros() -> None:
    async def preallocate(disk: Disk) -> None:
        file = await new_file(disk, "a", b"synced")
        await file.preallocate(8)

    assert await outcomes(preallocate) == [{"a": b"synced\0\0"}]


async def test_unsynced_append_over_zeros_may_be_torn_and_leaves_what_was_before_it() -> None:
    async def overwrite(disk: Disk) -> None:
        file = await new_file(disk, "a", b"synced")
        await file.preallocate(8)
        await file.append([b"12"])

    found = [files["a"] for files in await outcomes(overwrite)]
    assert sorted(found) == [b"synced\0\0", b"synced1\0", b"synced12"]


async def test_zeros_that_are_being_overwritten_are_not_sure() -> None:
    device = SimDevice()
    file = await new_file(SimDisk(device), "a", b"synced")
    await file.preallocate(8)
    assert device.durable("a") == b"synced\0\0"
    await file.append([b"1"])
    assert device.durable("a") == b"synced"
    await file.sync()
    assert device.durable("a") == b"synced1\0"


# --- names ---


async def test_new_file_without_sync_dir_may_vanish_with_its_synced_bytes() -> None:
    async def create(disk: Disk) -> None:
        await (await disk.open("a", create=True)).append_and_sync([b"synced"])

    found = await outcomes(create)
    assert len(found) == 2
    assert {} in found
    assert {"a": b"synced"} in found


async def test_new_file_with_sync_dir_stays() -> None:
    async def create(disk: Disk) -> None:
        await new_file(disk, "a", b"synced")

    assert await outcomes(create) == [{"a": b"synced"}]


async def test_rename_without_sync_dir_is_old_or_new_and_never_neither() -> None:
    async def replace(disk: Disk) -> None:
        await new_file(disk, "a", b"old")
        await new_file(disk, "tmp", b"new")
        await disk.rename("tmp", "a")

    found = await outcomes(replace)
    assert len(found) == 2
    assert {"a": b"old", "tmp": b"new"} in found
    assert {"a": b"new"} in found


async def test_renamed_file_that_was_not_synced_may_be_empty_under_its_new_name() -> None:
    async def replace(disk: Disk) -> None:
        await new_file(disk, "a", b"old")
        await (await disk.open("tmp", create=True)).append([b"new"])
        await disk.rename("tmp", "a")
        await disk.sync_dir()

    assert {"a": b""} in await outcomes(replace)


@pytest.mark.parametrize("synced", [[], ["from"], ["to"], ["from", "to"]])
async def test_rename_between_directories_is_old_both_or_new_and_never_neither(synced: list[str]) -> None:
    async def move(disk: Disk) -> None:
        await disk.make_dir("from")
        await disk.make_dir("to")
        await disk.sync_dir()
        await new_file(disk, "from/a", b"x")
        await disk.rename("from/a", "to/b")
        for directory in synced:
            await disk.sync_dir(directory)

    found = [sorted(files) for files in await outcomes(move)]
    allowed = {
        (): [["from/a"], ["from/a", "to/b"], ["to/b"]],
        ("from",): [["to/b"]],
        ("to",): [["from/a", "to/b"], ["to/b"]],
        ("from", "to"): [["to/b"]],
    }
    assert sorted(found) == allowed[tuple(synced)]


async def test_removed_file_may_come_back_until_sync_dir() -> None:
    async def remove(disk: Disk) -> None:
        await new_file(disk, "a", b"x")
        await disk.remove("a")

    async def remove_durably(disk: Disk) -> None:
        await remove(disk)
        await disk.sync_dir()

    found = await outcomes(remove)
    assert len(found) == 2
    assert {} in found
    assert {"a": b"x"} in found
    assert await outcomes(remove_durably) == [{}]


async def test_names_of_one_directory_become_durable_in_order() -> None:
    async def create_three(disk: Disk) -> None:
        for name in ("c", "a", "b"):
            await (await disk.open(name, create=True)).aclose()

    found = sorted(sorted(files) for files in await outcomes(create_three))
    assert found == [[], ["a", "b", "c"], ["a", "c"], ["c"]]


async def test_file_in_a_directory_whose_own_name_is_not_durable_may_vanish() -> None:
    async def create(disk: Disk) -> None:
        await disk.make_dir("d")
        await new_file(disk, "d/a", b"x")

    found = await outcomes(create)
    assert {} in found
    assert {"d/a": b"x"} in found


async def test_root_of_a_disk_is_durable_when_it_was_made() -> None:
    device = SimDevice()
    await SimDisk(device, "node/disk").make_dir("")
    device.crash(Crash.DROP_UNSYNCED)
    assert await SimDisk(device, "node/disk").list() == []


# --- kinds of crash ---


async def write_without_any_sync(disk: Disk) -> None:
    await new_file(disk, "old", b"12345")
    await disk.rename("old", "new")
    file = await disk.open("a", create=True)
    await file.append([b"unsynced"])
    await (await disk.open("new")).truncate(2)


async def test_kill_keeps_everything_in_the_page_cache() -> None:
    assert await outcomes(write_without_any_sync, Crash.KILL) == [{"a": b"unsynced", "new": b"12"}]


async def test_what_a_kill_left_unsynced_can_still_be_lost() -> None:
    device = SimDevice()
    await write_without_any_sync(SimDisk(device))
    device.crash(Crash.KILL)
    device.crash(Crash.DROP_UNSYNCED)
    assert await read_all(device) == {"old": b"12345"}


async def test_worst_power_loss_leaves_nothing_unsynced() -> None:
    assert await outcomes(write_without_any_sync, Crash.DROP_UNSYNCED) == [{"old": b"12345"}]
    assert await outcomes(append_twice_unsynced, Crash.DROP_UNSYNCED) == [{"a": b"synced "}]


async def test_what_survived_is_durable_from_then_on() -> None:
    for seed in range(20):
        device = SimDevice(seed=str(seed))
        await write_without_any_sync(SimDisk(device))
        device.crash(Crash.POWER_LOSS)
        survived = await read_all(device)
        assert {path: device.durable(path) for path in survived} == survived
        device.crash(Crash.DROP_UNSYNCED)
        assert await read_all(device) == survived


async def test_same_seed_leaves_the_same_and_another_seed_something_else() -> None:
    first, again = [await outcomes(append_twice_unsynced) for _ in range(2)]
    assert first == again
    one, same = [await files_after(write_without_any_sync, seed="7") for _ in range(2)]
    assert one == same
    assert len(await outcomes(write_without_any_sync)) > 3


# --- the dead ---


async def test_crashed_process_stands_still_and_its_finally_blocks_do_not_run() -> None:
    device = SimDevice()
    disk = SimDisk(device)
    file = await new_file(disk, "a", b"x")
    events: list[str] = []

    async def work() -> None:
        try:
            await file.append_and_sync([b"y"])
        finally:
            events.append("finally")
            await disk.remove("a")

    async def late() -> None:
        await disk.remove("a")

    tasks = [asyncio.ensure_future(work())]
    await asyncio.sleep(0)
    device.crash(Crash.DROP_UNSYNCED)
    tasks += [asyncio.ensure_future(late()), asyncio.ensure_future(disk.aclose()), asyncio.ensure_future(file.aclose())]
    await turns()
    gc.collect()
    assert events == []
    assert not any(task.done() for task in tasks)
    device.release_dead()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in ended] == [ClosedError] + [asyncio.CancelledError] * 3
    assert await read_all(device) == {"a": b"x"}


async def test_crash_ends_locks() -> None:
    device = SimDevice()
    await SimDisk(device, name="first").lock("LOCK")
    device.crash(Crash.KILL)
    await SimDisk(device, name="second").lock("LOCK")


async def test_closed_disk_is_not_touched_by_a_crash() -> None:
    device = SimDevice()
    disk = SimDisk(device)
    await disk.aclose()
    device.crash(Crash.KILL)
    await disk.aclose()
    with pytest.raises(ClosedError):
        await disk.list()


# --- what is sure ---


async def test_durable_is_what_no_power_loss_takes_away() -> None:
    device = SimDevice()
    disk = SimDisk(device)
    file = await disk.open("a", create=True)
    await file.append_and_sync([b"12345"])
    assert device.durable("a") is None  # Its name may vanish.
    await disk.sync_dir()
    await file.append([b"6"])
    assert device.durable("a") == b"12345"
    await file.truncate(2)
    assert device.durable("a") == b"12"
    await file.append([b"3"])
    assert device.durable("a") == b"12"
    await file.sync()
    assert device.durable("a") == b"123"
    await disk.rename("a", "b")
    assert (device.durable("a"), device.durable("b")) == (None, None)
    await disk.sync_dir()
    assert (device.durable("a"), device.durable("b")) == (None, b"123")
    with pytest.raises(FileMissingError):
        await disk.open("a")
    await disk.aclose()


# --- the root of a disk ---


async def test_a_root_that_was_made_and_not_synced_may_be_gone() -> None:
    left = set()
    for seed in range(60):
        device = SimDevice(seed=str(seed), timing=DiskTiming(operation=Delay(0.001, 0.001), sync=Delay(0.001, 0.001)))
        disk = SimDisk(device, "node/disk")
        making = asyncio.ensure_future(disk.make_dir(""))
        await turns_until(lambda device=device: device.tree.find("node/disk") is not None)
        device.crash(Crash.POWER_LOSS)
        left.add(device.tree.find("node/disk") is not None)
        device.release_dead()
        await asyncio.gather(making, return_exceptions=True)
    assert left == {True, False}


async def test_a_root_that_a_killed_process_made_is_durable_when_the_next_one_has_made_it_again() -> None:
    device = SimDevice(seed="root", timing=DiskTiming(operation=Delay(0.001, 0.001), sync=Delay(0.001, 0.001)))
    making = asyncio.ensure_future(SimDisk(device, "node/disk").make_dir(""))
    await turns_until(lambda: device.tree.find("node/disk") is not None)
    device.crash(Crash.KILL)
    device.release_dead()
    await asyncio.gather(making, return_exceptions=True)
    disk = SimDisk(device, "node/disk")
    await disk.make_dir("")
    await new_file(disk, "a", b"synced")
    await disk.sync_dir()
    device.crash(Crash.DROP_UNSYNCED)
    assert device.cached("node/disk/a") == b"synced"
    device.release_dead()


async def turns_until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.000_1)
    raise AssertionError("it did not happen")
