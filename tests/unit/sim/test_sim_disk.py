"""The simulated disk against the contract of the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from magnetar.errors import FileMissingError
from magnetar.runtime.disk import Disk
from magnetar.sim.device import DiskTiming, Fault, SimDevice
from magnetar.sim.disk import SimDisk
from magnetar.sim.seeds import Delay
from tests.contracts.disk import DiskContract, DiskHarness


class SimDiskHarness(DiskHarness):
    root = "node/disk"

    def __init__(self, timing: DiskTiming) -> None:
        self.device = SimDevice("device", seed="contract", timing=timing)
        self._disks: list[Disk] = []
        self.disk = self.another_disk()

    def another_disk(self) -> Disk:
        disk = SimDisk(self.device, self.root)
        self._disks.append(disk)
        return disk

    def fail_next_sync(self, path: str) -> None:
        self.device.faults.strike_next(Fault.SYNC_ERROR, f"{self.root}/{path}".rstrip("/"))

    def leave_room_for(self, size: int) -> None:
        self.device.leave_room(size)

    def make_room(self) -> None:
        self.device.capacity_bytes = None

    def fail_next_cut(self, path: str) -> None:
        self.device.faults.strike_next(Fault.CUT_ERROR, f"{self.root}/{path}")

    async def aclose(self) -> None:
        for disk in self._disks:
            await disk.aclose()


TIMINGS = {
    "at-once": DiskTiming(),
    "slow": DiskTiming(operation=Delay(0, 0.0001), sync=Delay(0.0001, 0.0002)),
}


class TestSimDisk(DiskContract):
    @pytest.fixture(params=TIMINGS)
    async def harness(self, request: pytest.FixtureRequest) -> AsyncIterator[SimDiskHarness]:
        harness = SimDiskHarness(TIMINGS[request.param])
        await harness.disk.make_dir("")
        yield harness
        await harness.aclose()

    async def test_root_is_there_when_it_was_made(self) -> None:
        disk = SimDisk(SimDevice(), "not/there/yet")
        for use in (disk.list, disk.usage, disk.sync_dir):
            with pytest.raises(FileMissingError, match="not/there/yet"):
                await use()
        await disk.make_dir("")
        assert await disk.list() == []
        await disk.aclose()

    async def test_writing_bytes_again_needs_no_room(self) -> None:
        device = SimDevice()
        disk = SimDisk(device)
        file = await disk.open("a", create=True)
        await file.append_and_sync([b"12345"])
        device.leave_room(0)
        await file.write_again(0, b"12345")
        await file.aclose()
        await disk.aclose()
