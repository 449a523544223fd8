"""The contract of `Disk` and `File`, for the real machine and for the simulator alike.

It has reading and appending; failed syncs, which are never retried, and full devices; cutting a file, room prepared for
it, and using its room again; names and directories, locks, and closing. The effects of a crash are not here, as a test
cannot make a real machine lose power: the simulator's own tests have them.

Read next: disk_harness.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from magnetar.errors import (
    ClosedError,
    DiskError,
    DiskFullError,
    FileCutError,
    FileLockedError,
    FileMissingError,
    SyncFailedError,
)
from tests.contracts.disk_harness import DiskHarness, contents, expect_refusal, write


class ContentContract:
    async def test_missing_file_is_named_unless_it_may_be_created(self, harness: DiskHarness) -> None:
        with pytest.raises(FileMissingError, match="journal"):
            await harness.disk.open("journal")
        file = await harness.disk.open("journal", create=True)
        assert (file.path, file.size) == ("journal", 0)
        await file.aclose()

    async def test_opening_with_create_keeps_what_is_there(self, harness: DiskHarness) -> None:
        await write(harness.disk, "a", b"kept")
        assert await contents(harness.disk, "a") == b"kept"
        file = await harness.disk.open("a", create=True)
        assert file.size == 4
        await file.aclose()

    async def test_append_returns_the_offset_of_its_first_byte(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        assert await file.append([b"one", b"two"]) == 0
        assert await file.append_and_sync([b"three"]) == 6
        assert await file.append([]) == 11
        assert file.size == 11
        assert await file.read(0, 100) == b"onetwothree"
        await file.aclose()

    async def test_appended_bytes_are_read_before_any_sync(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.append([b"unsynced"])
        assert await file.read(2, 4) == b"sync"
        assert await contents(harness.disk, "a") == b"unsynced"
        await file.aclose()

    async def test_every_kind_of_buffer_is_written_as_it_is(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.append([b"", b"bytes ", bytearray(b"array "), b"", memoryview(b"a view")[2:], b""])
        assert await file.read(0, 100) == b"bytes array view"
        await file.aclose()

    async def test_group_of_many_chunks_arrives_whole_and_in_order(self, harness: DiskHarness) -> None:
        chunks = [b"%d," % number for number in range(5_000)]
        file = await harness.disk.open("a", create=True)
        await file.append_and_sync(chunks)
        assert await file.read(0, file.size) == b"".join(chunks)
        await file.aclose()

    async def test_appends_made_at_once_follow_one_another(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        offsets = await asyncio.gather(*(file.append([b"%03d" % number]) for number in range(100)))
        assert offsets == [3 * number for number in range(100)]
        assert await file.read(0, 300) == b"".join(b"%03d" % number for number in range(100))
        await file.aclose()

    async def test_append_of_a_cancelled_caller_is_whole(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        appending = asyncio.ensure_future(file.append([b"whole"]))
        await asyncio.sleep(0)
        appending.cancel()
        await asyncio.gather(appending, return_exceptions=True)
        assert await file.append([b"next"]) == 5
        assert await file.read(0, 100) == b"wholenext"
        await file.aclose()

    async def test_read_beyond_the_end_is_short(self, harness: DiskHarness) -> None:
        await write(harness.disk, "a", b"12345")
        file = await harness.disk.open("a")
        assert await file.read(3, 100) == b"45"
        assert await file.read(5, 1) == b""
        assert await file.read(1_000, 10) == b""
        assert await file.read(2, 0) == b""
        await file.aclose()

    async def test_read_of_a_negative_place_is_refused(self, harness: DiskHarness) -> None:
        await write(harness.disk, "a", b"12345")
        file = await harness.disk.open("a")
        for offset, length in ((-1, 1), (0, -1)):
            with pytest.raises(DiskError, match="negative"):
                await file.read(offset, length)
        await file.aclose()

    async def test_closed_file_refuses_and_closes_again(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.aclose()
        await file.aclose()
        with pytest.raises(ClosedError):
            await file.append([b"late"])
        with pytest.raises(ClosedError):
            await file.read(0, 1)


class FailuresContract:
    async def test_failed_sync_makes_the_file_refuse_everything(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.append([b"lost"])
        harness.fail_next_sync("a")
        with pytest.raises(SyncFailedError, match="a"):
            await file.sync()
        await expect_refusal(file)
        await file.aclose()

    async def test_failed_group_commit_makes_the_file_refuse_everything(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        harness.fail_next_sync("a")
        with pytest.raises(SyncFailedError):
            await file.append_and_sync([b"lost"])
        await expect_refusal(file)
        await file.aclose()

    async def test_failed_sync_of_bytes_written_again_makes_the_file_refuse_everything(
        self, harness: DiskHarness
    ) -> None:
        await write(harness.disk, "a", b"12345")
        file = await harness.disk.open("a")
        harness.fail_next_sync("a")
        with pytest.raises(SyncFailedError):
            await file.write_again(0, b"12345")
        await expect_refusal(file)
        await file.aclose()

    async def test_groups_behind_a_failed_one_fail_too(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        harness.fail_next_sync("a")
        outcomes = await asyncio.gather(*(file.append_and_sync([b"x"]) for _ in range(5)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [SyncFailedError] * 5
        await file.aclose()

    async def test_failed_sync_after_a_truncate_counts_too(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.append_and_sync([b"12345"])
        await file.truncate(2)
        harness.fail_next_sync("a")
        with pytest.raises(SyncFailedError):
            await file.sync()
        await expect_refusal(file)
        await file.aclose()

    async def test_opening_again_or_renaming_does_not_heal_a_failed_sync(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        harness.fail_next_sync("a")
        with pytest.raises(SyncFailedError):
            await file.append_and_sync([b"lost"])
        with pytest.raises(SyncFailedError):
            await harness.disk.open("a")
        await file.aclose()
        with pytest.raises(SyncFailedError):
            await harness.disk.open("a", create=True)
        await harness.disk.rename("a", "b")
        with pytest.raises(SyncFailedError):
            await harness.disk.open("b")
        assert await contents(harness.disk, await write(harness.disk, "a", b"a new file")) == b"a new file"

    async def test_new_file_in_place_of_a_removed_refused_one_is_fine(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        harness.fail_next_sync("a")
        with pytest.raises(SyncFailedError):
            await file.append_and_sync([b"lost"])
        await harness.disk.remove("a")
        assert await contents(harness.disk, await write(harness.disk, "a", b"new")) == b"new"
        await file.aclose()
        assert await contents(harness.disk, "a") == b"new"

    async def test_failed_sync_of_one_file_leaves_others_alone(self, harness: DiskHarness) -> None:
        bad = await harness.disk.open("bad", create=True)
        harness.fail_next_sync("bad")
        with pytest.raises(SyncFailedError):
            await bad.append_and_sync([b"lost"])
        assert await contents(harness.disk, await write(harness.disk, "good", b"kept")) == b"kept"
        await bad.aclose()

    async def test_failed_directory_sync_is_never_retried(self, harness: DiskHarness) -> None:
        await harness.disk.make_dir("d")
        harness.fail_next_sync("d")
        for _ in range(2):
            with pytest.raises(SyncFailedError, match="d"):
                await harness.disk.sync_dir("d")
        await harness.disk.sync_dir()

    async def test_append_to_a_full_device_leaves_nothing_behind(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.append_and_sync([b"before"])
        harness.leave_room_for(5)
        with pytest.raises(DiskFullError, match="a") as raised:
            await file.append([b"abc", b"defghi"])
        assert raised.value.retryable
        assert file.size == 6
        assert await file.read(0, 100) == b"before"
        harness.make_room()
        assert await file.append_and_sync([b" after"]) == 6
        await file.aclose()
        assert await contents(harness.disk, "a") == b"before after"

    async def test_group_commit_on_a_full_device_is_not_a_failed_sync(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        harness.leave_room_for(0)
        with pytest.raises(DiskFullError):
            await file.append_and_sync([b"abc"])
        harness.make_room()
        assert await file.append_and_sync([b"abc"]) == 0
        await file.aclose()

    async def test_torn_append_that_cannot_be_cut_off_makes_the_file_refuse(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        harness.leave_room_for(2)
        harness.fail_next_cut("a")
        with pytest.raises(SyncFailedError):
            await file.append([b"abcdef"])
        harness.make_room()
        assert file.size == 0
        await expect_refusal(file)
        await file.aclose()

    async def test_usage_has_room_within_its_total(self, harness: DiskHarness) -> None:
        usage = await harness.disk.usage()
        assert 0 < usage.free_bytes <= usage.total_bytes


class LengthContract:
    async def test_truncate_then_append_continues_at_the_cut(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.append_and_sync([b"head and torn tail"])
        await file.truncate(4)
        assert file.size == 4
        assert await file.append_and_sync([b"line"]) == 4
        assert await file.read(0, 100) == b"headline"
        await file.aclose()
        assert await contents(harness.disk, "a") == b"headline"

    async def test_reader_of_a_file_that_another_has_cut_is_told_so_and_no_less(self, harness: DiskHarness) -> None:
        await write(harness.disk, "a", b"head and torn tail")
        reader = await harness.another_disk().open("a")
        file = await harness.disk.open("a")
        await file.truncate(4)
        with pytest.raises(FileCutError, match="shorter than before"):
            await reader.read(2, 4)
        assert await reader.read(0, 4) == b"head"
        await reader.aclose()
        await file.aclose()

    @pytest.mark.parametrize("size", [6, 1_000_000, -1])
    async def test_growing_by_truncate_is_refused(self, harness: DiskHarness, size: int) -> None:
        await write(harness.disk, "a", b"12345")
        file = await harness.disk.open("a")
        with pytest.raises(DiskError, match="truncate"):
            await file.truncate(size)
        await file.truncate(5)
        assert await file.read(0, 100) == b"12345"
        await file.aclose()

    async def test_preallocating_keeps_the_size(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.append([b"12345"])
        await file.preallocate(1 << 20)
        await file.preallocate(3)  # Less than there is: nothing to do.
        assert file.size == 5
        assert await file.read(0, 100) == b"12345"
        assert await file.append_and_sync([b"6"]) == 5
        assert await file.read(0, 100) == b"123456"
        await file.aclose()

    async def test_preallocated_zeros_are_content_after_opening_again_until_they_are_cut(
        self, harness: DiskHarness
    ) -> None:
        file = await harness.disk.open("a", create=True)
        await file.preallocate(10)
        await file.append_and_sync([b"12345"])
        await file.aclose()
        file = await harness.disk.open("a")
        assert file.size == 10
        assert await file.read(0, 100) == b"12345" + bytes(5)
        await file.truncate(5)
        assert await file.append_and_sync([b"6"]) == 5
        await file.aclose()
        assert await contents(harness.disk, "a") == b"123456"

    async def test_append_may_go_beyond_the_preallocated_room_which_may_grow(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.preallocate(4)
        await file.append([b"12"])
        await file.preallocate(700_000)
        await file.append([b"3456"])
        await file.append_and_sync([b"x" * 800_000])
        assert file.size == 800_006
        await file.preallocate(900_000)
        await file.truncate(file.size)
        await file.aclose()
        assert await contents(harness.disk, "a") == b"123456" + b"x" * 800_000

    async def test_preallocating_on_a_full_device_leaves_nothing_behind(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.append_and_sync([b"before"])
        harness.leave_room_for(5)
        with pytest.raises(DiskFullError, match="a"):
            await file.preallocate(100)
        harness.make_room()
        assert file.size == 6
        assert await file.append_and_sync([b" after"]) == 6
        await file.aclose()
        assert await contents(harness.disk, "a") == b"before after"

    async def test_append_that_fails_in_preallocated_room_leaves_nothing_behind(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.preallocate(10)
        await file.append_and_sync([b"before"])
        harness.leave_room_for(2)
        with pytest.raises(DiskFullError, match="a"):
            await file.append([b"x" * 100])
        harness.make_room()
        assert file.size == 6
        await file.aclose()
        assert await contents(harness.disk, "a") == b"before"

    async def test_writing_bytes_again_changes_neither_content_nor_size(self, harness: DiskHarness) -> None:
        await write(harness.disk, "a", b"12345")
        file = await harness.disk.open("a")
        await file.write_again(2, b"345")
        await file.write_again(5, b"")
        assert file.size == 5
        assert await file.append_and_sync([b"6"]) == 5
        await file.aclose()
        assert await contents(harness.disk, "a") == b"123456"

    @pytest.mark.parametrize(("offset", "data"), [(-1, b"x"), (3, b"456"), (6, b"")])
    async def test_only_what_a_file_has_can_be_written_again(
        self, harness: DiskHarness, offset: int, data: bytes
    ) -> None:
        await write(harness.disk, "a", b"12345")
        file = await harness.disk.open("a")
        with pytest.raises(DiskError, match="again: it has 5 bytes"):
            await file.write_again(offset, data)
        await file.aclose()

    async def test_bytes_that_need_not_stay_in_memory_read_the_same(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.append_and_sync([b"x" * 10_000])
        await file.append([b"y" * 10_000])
        await file.forget_cached(15_000)
        await file.forget_cached(1_000_000)
        assert await file.read(0, 20_000) == b"x" * 10_000 + b"y" * 10_000
        await file.aclose()

    async def test_file_that_is_used_again_begins_empty_and_overwrites_what_it_held(self, harness: DiskHarness) -> None:
        await write(harness.disk, "a", b"old content")
        file = await harness.disk.open("a", reuse=True)
        assert file.size == 0
        assert await file.read(0, 100) == b""
        assert await file.append_and_sync([b"new"]) == 0
        assert await file.read(0, 100) == b"new"
        await file.aclose()
        assert await contents(harness.disk, "a") == b"new content"

    async def test_file_that_is_used_again_may_grow_beyond_what_it_held(self, harness: DiskHarness) -> None:
        await write(harness.disk, "a", b"old")
        file = await harness.disk.open("a", reuse=True)
        await file.append([b"12"])
        await file.append_and_sync([b"3456"])
        await file.aclose()
        assert await contents(harness.disk, "a") == b"123456"

    async def test_truncating_a_file_that_is_used_again_gives_its_room_back(self, harness: DiskHarness) -> None:
        await write(harness.disk, "a", b"old content")
        file = await harness.disk.open("a", reuse=True)
        await file.append([b"new"])
        await file.truncate(3)
        await file.aclose()
        assert await contents(harness.disk, "a") == b"new"

    async def test_failed_sync_while_preallocating_makes_the_file_refuse_everything(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        harness.fail_next_sync("a")
        with pytest.raises(SyncFailedError, match="a"):
            await file.preallocate(100)
        await expect_refusal(file)
        await file.aclose()


_ESCAPES = ["/etc/passwd", "..", "../a", "a/../../b", "a/..", "a\0b"]


class NamesContract:
    async def test_names_are_listed_in_order(self, harness: DiskHarness) -> None:
        for name in ("10", "b", "9", "a", "B"):
            await write(harness.disk, name, b"")
        await harness.disk.make_dir("dir/inner")
        assert await harness.disk.list() == ["10", "9", "B", "a", "b", "dir"]
        assert await harness.disk.list("dir") == ["inner"]
        assert await harness.disk.list("dir/inner") == []

    async def test_listing_or_syncing_a_missing_directory_names_it(self, harness: DiskHarness) -> None:
        with pytest.raises(FileMissingError, match="absent"):
            await harness.disk.list("absent")
        with pytest.raises(FileMissingError, match="absent"):
            await harness.disk.sync_dir("absent")

    async def test_making_a_directory_again_is_harmless(self, harness: DiskHarness) -> None:
        await harness.disk.make_dir("")
        await harness.disk.make_dir("d/e")
        await harness.disk.make_dir("d/e")
        await harness.disk.sync_dir("d")
        assert await contents(harness.disk, await write(harness.disk, "d/e/f", b"x")) == b"x"

    async def test_file_in_a_missing_directory_is_not_created(self, harness: DiskHarness) -> None:
        with pytest.raises(FileMissingError):
            await harness.disk.open("absent/a", create=True)

    async def test_directory_cannot_be_opened_removed_or_renamed_as_a_file(self, harness: DiskHarness) -> None:
        await harness.disk.make_dir("d")
        with pytest.raises(DiskError):
            await harness.disk.open("d")
        with pytest.raises(DiskError):
            await harness.disk.remove("d")
        with pytest.raises(DiskError):
            await harness.disk.rename("d", "e")
        assert await harness.disk.list() == ["d"]

    async def test_rename_replaces_what_was_there(self, harness: DiskHarness) -> None:
        await write(harness.disk, "new", b"old value")
        await write(harness.disk, "tmp", b"new value")
        await harness.disk.rename("tmp", "new")
        await harness.disk.sync_dir()
        assert await harness.disk.list() == ["new"]
        assert await contents(harness.disk, "new") == b"new value"

    async def test_open_file_stays_usable_when_it_is_renamed(self, harness: DiskHarness) -> None:
        file = await harness.disk.open("tmp", create=True)
        await file.append([b"before "])
        await harness.disk.rename("tmp", "final")
        await file.append_and_sync([b"after"])
        await file.aclose()
        assert await contents(harness.disk, "final") == b"before after"

    async def test_removed_file_is_gone(self, harness: DiskHarness) -> None:
        await write(harness.disk, "a", b"x")
        await harness.disk.remove("a")
        assert await harness.disk.list() == []
        with pytest.raises(FileMissingError):
            await harness.disk.open("a")

    async def test_removing_or_renaming_what_is_not_there_names_it(self, harness: DiskHarness) -> None:
        with pytest.raises(FileMissingError, match="absent"):
            await harness.disk.remove("absent")
        with pytest.raises(FileMissingError, match="absent"):
            await harness.disk.rename("absent", "b")

    @pytest.mark.parametrize("path", _ESCAPES)
    async def test_path_that_leaves_the_root_is_refused(self, harness: DiskHarness, path: str) -> None:
        await harness.disk.make_dir("a")
        attempts = [
            harness.disk.open(path, create=True),
            harness.disk.make_dir(path),
            harness.disk.rename("a", path),
            harness.disk.rename(path, "b"),
            harness.disk.remove(path),
            harness.disk.list(path),
            harness.disk.sync_dir(path),
            harness.disk.lock(path),
        ]
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [DiskError] * len(attempts)
        assert await harness.disk.list() == ["a"]

    async def test_root_is_not_a_file(self, harness: DiskHarness) -> None:
        for path in ("", ".", "./"):
            with pytest.raises(DiskError):
                await harness.disk.open(path, create=True)

    async def test_spellings_of_one_path_are_one_file(self, harness: DiskHarness) -> None:
        await harness.disk.make_dir("d")
        file = await harness.disk.open("./d//a", create=True)
        assert file.path == "d/a"
        await file.append([b"x"])
        await file.aclose()
        assert await contents(harness.disk, "d/./a") == b"x"

    async def test_lock_keeps_another_disk_out_until_it_is_closed(self, harness: DiskHarness) -> None:
        await harness.disk.lock("LOCK")
        other = harness.another_disk()
        with pytest.raises(FileLockedError, match="LOCK"):
            await other.lock("LOCK")
        await harness.disk.aclose()
        await other.lock("LOCK")

    async def test_lock_is_held_once_even_by_its_holder(self, harness: DiskHarness) -> None:
        await harness.disk.lock("LOCK")
        with pytest.raises(FileLockedError):
            await harness.disk.lock("LOCK")

    async def test_another_disk_sees_the_files(self, harness: DiskHarness) -> None:
        await write(harness.disk, "a", b"shared")
        assert await contents(harness.another_disk(), "a") == b"shared"

    async def test_closed_disk_refuses_and_closes_again(self, harness: DiskHarness) -> None:
        await write(harness.disk, "a", b"x")
        await harness.disk.aclose()
        await harness.disk.aclose()
        with pytest.raises(ClosedError):
            await harness.disk.open("a")
        with pytest.raises(ClosedError):
            await harness.disk.list()


__all__ = ["DiskContract", "DiskHarness"]


class DiskContract(ContentContract, LengthContract, FailuresContract, NamesContract):
    """All parts; what the test of a kind of disk subclasses."""

    @pytest.fixture
    def harness(self) -> Iterator[DiskHarness]:
        raise NotImplementedError("a subclass brings the implementation; it closes the disks afterwards")
