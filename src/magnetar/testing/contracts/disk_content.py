"""Disk contract: reading and appending."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import ClosedError, DiskError, FileMissingError
from magnetar.testing.contracts.disk_harness import DiskHarness, contents, write


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
