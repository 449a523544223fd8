"""Disk contract: failed syncs, which are never retried, and full devices, which leave nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import DiskFullError, SyncFailedError
from magnetar.testing.contracts.disk_harness import DiskHarness, contents, expect_refusal, write


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
