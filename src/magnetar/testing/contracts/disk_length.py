"""Disk contract: cutting a file, room prepared for it, and using its room again."""

from __future__ import annotations

import pytest

from magnetar.errors import DiskError, DiskFullError, FileCutError, SyncFailedError
from magnetar.testing.contracts.disk_harness import DiskHarness, contents, expect_refusal, write


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
        with pytest.raises(FileCutError, match="shorter than it was"):
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
