"""Disk contract: names and directories, locks, and closing."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import ClosedError, DiskError, FileLockedError, FileMissingError
from magnetar.testing.contracts.disk_harness import DiskHarness, contents, write

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
