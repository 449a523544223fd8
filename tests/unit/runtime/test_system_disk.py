"""The real disk against the contract, and what only a real disk can get wrong."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.errors import DiskError, DiskFullError, FileLockedError, FileMissingError
from magnetar.runtime.disk import Disk
from magnetar.runtime.system import SystemOffload, SystemRuntime
from magnetar.runtime.system_disk import SystemDisk
from magnetar.runtime.system_file import SystemCalls, translate
from tests.contracts.disk import DiskContract, DiskHarness
from tests.contracts.disk_harness import contents, write
from tests.unit.runtime.breakable_calls import BreakableCalls


class NotedCalls(SystemCalls):
    """Says which files were synced."""

    def __init__(self) -> None:
        self.synced: list[Path] = []

    def sync_all(self, fd: int) -> None:
        self.synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        super().sync_all(fd)


class SystemDiskHarness(DiskHarness):
    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls = BreakableCalls()
        self._disks: list[Disk] = []
        self.disk = self.another_disk()

    def another_disk(self) -> Disk:
        disk = SystemDisk(str(self.root), SystemOffload("test-disk"), self.calls)
        self._disks.append(disk)
        return disk

    def fail_next_sync(self, path: str) -> None:
        self.calls.fail_sync(self.root / path)

    def leave_room_for(self, size: int) -> None:
        self.calls.room = size

    def make_room(self) -> None:
        self.calls.room = None

    def fail_next_cut(self, path: str) -> None:
        self.calls.fail_cut(self.root / path)

    async def aclose(self) -> None:
        for disk in self._disks:
            await disk.aclose()


class TestSystemDisk(DiskContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[SystemDiskHarness]:
        (tmp_path / "root").mkdir()
        harness = SystemDiskHarness(tmp_path / "root")
        yield harness
        await harness.aclose()

    async def test_short_writes_go_on_from_the_middle_of_a_chunk(self, harness: SystemDiskHarness) -> None:
        harness.calls.write_bytes_max = 7
        chunks = [b"one", b"", bytearray(b"twelve bytes"), memoryview(b"xxthe rest")[2:]]
        file = await harness.disk.open("a", create=True)
        assert await file.append(chunks) == 0
        assert await file.append([b"more"]) == 23
        assert (harness.root / "a").read_bytes() == b"onetwelve bytesthe restmore"
        await file.aclose()

    async def test_group_is_one_write_per_1024_chunks(self, harness: SystemDiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.append([b"x"] * 1024)
        assert harness.calls.writes == 1
        await file.append([b"x"] * 1025)
        assert harness.calls.writes == 3
        await file.aclose()

    async def test_group_commit_syncs_data_only_but_a_cut_is_synced_in_full(self, harness: SystemDiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.append_and_sync([b"12345"])
        await file.truncate(2)
        await file.sync()
        await file.append_and_sync([b"6"])
        assert harness.calls.syncs == ["data", "all", "data"]
        await file.aclose()

    async def test_preallocated_room_is_really_taken(self, harness: SystemDiskHarness) -> None:
        file = await harness.disk.open("a", create=True)
        await file.preallocate(1 << 20)
        found = (harness.root / "a").stat()
        assert found.st_size == 1 << 20
        assert found.st_blocks * 512 >= 1 << 20
        assert harness.calls.syncs == ["data"]
        await file.append_and_sync([b"x" * 1000])
        assert (harness.root / "a").stat().st_size == 1 << 20
        await file.aclose()

    async def test_file_that_something_else_cut_is_an_error_not_a_short_read(self, harness: SystemDiskHarness) -> None:
        await write(harness.disk, "a", b"12345")
        file = await harness.disk.open("a")
        os.truncate(harness.root / "a", 2)
        with pytest.raises(DiskError, match="shorter"):
            await file.read(0, 5)
        await file.aclose()

    async def test_root_is_made_with_everything_above_it(self, tmp_path: Path) -> None:
        root = tmp_path / "not" / "there" / "yet"
        disk = SystemRuntime().disk(str(root), name="test-disk")
        with pytest.raises(FileMissingError):
            await disk.list()
        await disk.make_dir("")
        assert await disk.list() == []
        assert root.is_dir()
        await disk.aclose()

    async def test_names_of_an_empty_root_and_of_all_above_it_are_synced(self, tmp_path: Path) -> None:
        """As a process leaves them that is killed between making and syncing them."""
        root = tmp_path / "made" / "not" / "synced"
        root.mkdir(parents=True)
        calls = NotedCalls()
        disk = SystemDisk(str(root), SystemOffload("test-disk"), calls)
        await disk.make_dir("")
        assert calls.synced[:3] == [root.parent, root.parent.parent, tmp_path]
        await disk.lock("LOCK")
        synced = len(calls.synced)
        await disk.make_dir("below")
        assert len(calls.synced) == synced, "what has something in it is durable"
        await disk.aclose()

    async def test_lock_names_the_process_that_holds_it(self, harness: SystemDiskHarness) -> None:
        with lock_holder(harness.root / "LOCK") as process:
            with pytest.raises(FileLockedError, match=f"process {process.pid}: stop it"):
                await harness.disk.lock("LOCK")
            process.kill()
        await harness.disk.lock("LOCK")
        assert (harness.root / "LOCK").read_text() == f"{os.getpid()}\n"

    async def test_file_whose_opener_was_cancelled_is_closed_with_the_disk(self, harness: SystemDiskHarness) -> None:
        before = open_files()
        opening = asyncio.ensure_future(harness.disk.open("a", create=True))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await harness.disk.aclose()
        assert (harness.root / "a").exists()
        assert open_files() <= before

    async def test_closing_the_disk_gives_back_every_descriptor(self, tmp_path: Path) -> None:
        before = open_files()
        disk = SystemRuntime().disk(str(tmp_path), name="test-disk")
        await disk.lock("LOCK")
        await write(disk, "a", b"x")
        assert await contents(disk, "a") == b"x"
        await disk.sync_dir()
        with pytest.raises(FileMissingError):
            await disk.open("b")
        with pytest.raises(FileLockedError):
            await disk.lock("LOCK")
        await disk.aclose()
        assert open_files() <= before


LOCK_HOLDER = """
import asyncio, sys
from magnetar.runtime.system import SystemRuntime
from magnetar.runtime.system_file import SystemCalls

async def main():
    await SystemRuntime().disk(sys.argv[1], name="holder").lock(sys.argv[2])
    print("held", flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


def lock_holder(path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", LOCK_HOLDER, str(path.parent), path.name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def open_files() -> list[str]:
    return sorted(
        target for target in (_target(link) for link in Path("/proc/self/fd").iterdir()) if target.startswith("/")
    )


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # The descriptor of the listing itself.
        return ""


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, DiskFullError),
        (errno.EDQUOT, DiskFullError),
        (errno.ENOENT, FileMissingError),
        (errno.EIO, DiskError),
        (errno.EACCES, DiskError),
    ],
)
def test_operating_system_error_becomes_ours_with_file_and_reason(code: int, kind: type[DiskError]) -> None:
    error = translate("write to", "/data/journal/1.log", OSError(code, os.strerror(code)))
    assert type(error) is kind
    assert "/data/journal/1.log" in str(error)
    assert os.strerror(code) in str(error)
