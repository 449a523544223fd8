"""Places that ask for durability are listed, and can be disobeyed one at a time."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.runtime.disk import Disk, File
from magnetar.sim.device import Crash, SimDevice
from magnetar.sim.disk import SimDisk
from tests.unit.sim.worlds import read_all


class Store:
    """Something that syncs in three ways."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def commit(self) -> None:
        file = await self._disk.open("group", create=True)
        await file.append_and_sync([b"group"])

    async def flush(self) -> None:
        file = await self._disk.open("flushed", create=True)
        await file.append([b"flushed"])
        await asyncio.gather(self._sync_later(file))

    async def _sync_later(self, file: File) -> None:
        asked = file.sync()
        await asyncio.sleep(0)
        await asked

    async def publish(self) -> None:
        await self._disk.sync_dir()


SITES = ["Store.commit", "Store._sync_later", "Store.publish"]
LOST = {
    "Store.commit": {"group": b"", "flushed": b"flushed"},
    "Store._sync_later": {"group": b"group", "flushed": b""},
    "Store.publish": {},
}


async def run(ignored: list[str]) -> SimDevice:
    device = SimDevice()
    device.sites.ignored.update(ignored)
    store = Store(SimDisk(device))
    await store.commit()
    await store.flush()
    await store.publish()
    return device


async def test_every_place_that_syncs_is_listed_with_file_line_and_function() -> None:
    sites = (await run([])).sites.counts
    assert [site.rpartition(":")[2] for site in sites] == SITES
    assert list(sites.values()) == [1, 1, 1]
    files = [site.partition(":")[0].rpartition("/")[2] for site in sites]
    assert files == ["test_sync_sites.py"] * 3
    assert [int(site.split(":")[1]) for site in sites] == sorted({int(site.split(":")[1]) for site in sites})
    assert list((await run([])).sites.counts) == list(sites)


@pytest.mark.parametrize("left_out", SITES)
async def test_ignored_sync_answers_ok_and_makes_nothing_durable(left_out: str) -> None:
    sites = (await run([])).sites.counts
    (ignored,) = [site for site in sites if site.endswith(left_out)]
    device = await run([ignored])
    assert device.sites.counts == sites
    device.crash(Crash.DROP_UNSYNCED)
    assert await read_all(device) == LOST[left_out]


async def test_nothing_is_lost_when_every_sync_is_obeyed() -> None:
    device = await run([])
    device.crash(Crash.DROP_UNSYNCED)
    assert await read_all(device) == {"group": b"group", "flushed": b"flushed"}


async def test_calls_from_one_place_are_counted() -> None:
    device = SimDevice()
    disk = SimDisk(device)
    for _ in range(3):
        await disk.sync_dir()
    assert list(device.sites.counts.values()) == [3]
    await disk.aclose()
