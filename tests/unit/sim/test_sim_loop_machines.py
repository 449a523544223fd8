"""Machines in the simulated world: their lanes, disks, indexes and clocks belong to a process, and crash with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from magnetar.runtime.runtime import Offload
from magnetar.sim.device import Crash
from magnetar.sim.machine import WORLD_BEGINS_MS, SimRuntime
from magnetar.sim.offload import SimOffload
from magnetar.sim.seeds import Delay
from magnetar.sim.world import World
from magnetar.storage.index.location_index import IndexBatch
from magnetar.storage.ledger_storage import open_rocksdb_index


@pytest.fixture
def world() -> Iterator[World]:
    with World("1") as made:
        yield made


class _Worker:
    """Hands over many calls at once, and counts those that ran."""

    def __init__(self) -> None:
        self.ran = 0
        self.lane: Offload | None = None

    async def main(self, runtime: SimRuntime) -> None:
        self.lane = runtime.offload(name="lane")
        await asyncio.gather(*(self.lane(self._run) for _ in range(1_000)))

    def _run(self) -> None:
        self.ran += 1


def test_lane_stands_still_with_its_paused_process_even_when_others_resumed_it(world: World) -> None:
    async def main() -> None:
        worker = _Worker()
        world.start("a", worker.main)
        await asyncio.sleep(1)
        assert isinstance(worker.lane, SimOffload)
        worker.lane.pause()
        await asyncio.sleep(1)
        worker.lane.resume()  # Here, in the world's own process.
        await asyncio.sleep(1)
        world.pause("a")
        ran = worker.ran
        await asyncio.sleep(10)
        assert worker.ran == ran > 50
        world.resume("a")
        await asyncio.sleep(1)
        assert worker.ran > ran
        world.crash("a", Crash.KILL)
        ran = worker.ran
        await asyncio.sleep(10)
        assert worker.ran == ran < 1_000

    world.add_node("a", offload_delay=Delay(0.01, 0.02))
    world.run(main())


def test_index_outlives_crashes_and_goes_with_the_disk_it_is_on(world: World) -> None:
    marks: list[int | None] = []

    async def node(runtime: SimRuntime) -> None:
        index = await open_rocksdb_index(runtime, "/data/index")
        marks.append(await index.mark())
        await index.apply(IndexBatch(mark=len(marks)))
        await asyncio.Event().wait()

    async def main() -> None:
        for kind in (Crash.KILL, Crash.POWER_LOSS, Crash.DROP_UNSYNCED):
            world.start("a", node)
            await asyncio.sleep(1)
            world.crash("a", kind)
        machine.empty("/other")
        world.start("a", node)
        await asyncio.sleep(1)
        world.crash("a")
        machine.empty("/data")
        world.start("a", node)
        await asyncio.sleep(1)

    machine = world.add_node("a")
    machine.mount("/data")
    machine.mount("/other")
    world.run(main())
    assert marks == [None, 1, 2, 3, None]


def test_power_loss_hits_the_disks_of_a_machine_without_a_process(world: World) -> None:
    async def node(runtime: SimRuntime) -> None:
        disk = runtime.disk("/", name="disk")
        file = await disk.open("file", create=True)
        await file.append_and_sync([b"synced"])
        await disk.sync_dir()
        await file.append([b" and not"])
        await disk.aclose()

    async def main() -> None:
        world.start("a", node)
        async with asyncio.timeout(10):
            await world.wait_exit("a")
        assert machine.device().cached("file") == b"synced and not"
        world.crash("a", Crash.DROP_UNSYNCED)
        assert machine.device().cached("file") == b"synced"

    machine = world.add_node("a")
    world.run(main())


def test_wall_clock_is_wrong_as_asked_and_does_not_depend_on_who_reads_it(world: World) -> None:
    shown: list[int] = []

    async def node(runtime: SimRuntime) -> None:
        while True:
            await asyncio.sleep(99)  # By a clock that gains a hundredth less.
            shown.append(runtime.entropy.wall_ms())

    async def main() -> None:
        world.start("a", node)
        await asyncio.sleep(101)
        machine.clock.jump(-5_000)
        machine.clock.set_drift(0.0)
        await asyncio.sleep(100)

    machine = world.add_node("a", clock_offset_ms=1_000, clock_drift=0.01, rate=0.99)
    world.run(main())
    assert shown[0] == pytest.approx(WORLD_BEGINS_MS + 1_000 + 101_000, abs=2)
    assert shown[1] == pytest.approx(WORLD_BEGINS_MS + 1_000 + 101_000 * 1.01 + 99_000 - 5_000, abs=1_100)
