"""A flush that finds the disk full is tried again every second, whether or not another one is due."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import JournalFailedError
from magnetar.sim.device import Crash
from magnetar.testing.waiting import until
from tests.unit.bookie.one_node import on_a_node, writer, written
from tests.unit.bookie.sim_node import SimNode

STORAGE = {"write_cache_bytes_max": 4_096, "flush_interval_ms": 60_000}
ROOM_AFTER_S, FLUSHED_AFTER_S = 2.0, 4.0  # Virtual.


async def fill_the_cache(node: SimNode) -> None:
    """A little more than one: the other has room, and makes no flush due."""
    load = await writer(node, 1)
    load.begin(1)
    await load.wait_for(lambda load: node.bookie._storage.flushing is not None)
    load.finish()
    await load.wait_for(lambda load: not load.in_flight)
    assert load.refused == []
    await load.aclose()


async def flushed_soon_after_there_is_room(node: SimNode) -> None:
    begin = asyncio.get_running_loop().time()
    storage = node.bookie._storage
    await asyncio.sleep(ROOM_AFTER_S)
    assert storage.flushing is not None
    for device in node.ledgers:
        device.capacity_bytes = None
    await until(lambda: storage.flushing is None, "it is flushed")
    assert asyncio.get_running_loop().time() - begin < FLUSHED_AFTER_S


def leave_no_room(node: SimNode) -> None:
    for device in node.ledgers:
        device.leave_room(0)


def test_a_flush_that_found_the_disk_full_is_tried_again_every_second() -> None:
    async def test(node: SimNode) -> None:
        leave_no_room(node)
        await fill_the_cache(node)
        await flushed_soon_after_there_is_room(node)

    on_a_node(test, storage=STORAGE)


def test_what_was_replayed_and_found_the_disk_full_is_tried_again_every_second() -> None:
    async def test(node: SimNode) -> None:
        leave_no_room(node)
        await fill_the_cache(node)
        node.crash(Crash.KILL)
        await node.start()
        await flushed_soon_after_there_is_room(node)

    on_a_node(test, storage=STORAGE)


def test_a_bookie_that_waits_for_room_can_be_stopped() -> None:
    async def test(node: SimNode) -> None:
        leave_no_room(node)
        await fill_the_cache(node)
        begin = asyncio.get_running_loop().time()
        for device in node.ledgers:
            device.capacity_bytes = None
        await node.stop()  # Which flushes.
        assert asyncio.get_running_loop().time() - begin < 1.0

    on_a_node(test, storage=STORAGE)


@pytest.mark.parametrize("all_devices", [False, True])
def test_a_bookie_that_filled_its_journal_device_starts_again_and_serves_what_it_has(all_devices: bool) -> None:
    async def test(node: SimNode) -> None:
        await written(node, 1, 100)
        devices = [node.journal, *node.ledgers] if all_devices else [node.journal]
        for device in devices:
            device.tree.create("ballast").write(0, bytes(4 * 2**20))  # So that the reserve is a small part of it.
            device.leave_room(0)
        load = await writer(node, 2)
        load.begin(1)
        assert isinstance(await node.bookie.wait_failed(), JournalFailedError)
        node.crash(Crash.KILL)
        for device in devices:
            device.leave_room(0)
        await node.start()
        assert node.bookie.switch.is_read_only
        reader = await writer(node, 1)
        assert await reader.wrong_entries(list(range(100))) == []
        for device in devices:
            device.capacity_bytes = None
        await until(lambda: not node.bookie.switch.is_read_only, "it takes entries again")
        await written(node, 3, 100)
        await reader.aclose()

    on_a_node(test, storage={"flush_interval_ms": 60_000})
