"""A machine: devices by mount point, processes that come and go, seeds that repeat."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from magnetar.runtime.runtime import Runtime
from magnetar.sim.device import Crash
from magnetar.sim.machine import SimMachine
from tests.unit.sim.worlds import new_file, turns


async def test_root_belongs_to_the_deepest_mount_above_it() -> None:
    machine = SimMachine("1/b")
    journal = machine.mount("/data/journal")
    runtime = machine.start()
    for root in ("/data", "data/journal/0", "/data/ledgers"):
        disk = runtime.disk(root, name=root)
        await disk.make_dir("")
        await new_file(disk, "file", root.encode())
        await disk.aclose()
    assert [image.path for image in journal.tree.files()] == ["0/file"]
    assert [image.path for image in machine.device().tree.files()] == ["data/file", "data/ledgers/file"]
    assert machine.device("/data/journal/0") is journal


async def test_disks_with_one_root_inside_the_other_see_the_same_files() -> None:
    runtime = SimMachine("1/b").start()
    outer, inner = runtime.disk("/data", name="outer"), runtime.disk("/data/inner", name="inner")
    await inner.make_dir("")
    await (await inner.open("a", create=True)).aclose()
    assert await outer.list("inner") == ["a"]
    await outer.aclose()
    await inner.aclose()


async def test_crash_stops_every_disk_and_lane_and_power_loss_hits_every_device() -> None:
    machine = SimMachine("1/b")
    machine.mount("/journal")
    runtime = machine.start()
    disks = [runtime.disk(root, name=root) for root in ("/journal", "/ledgers")]
    for disk in disks:
        await disk.make_dir("")
        await (await new_file(disk, "a", b"kept")).append([b" lost"])
    lane = runtime.offload(name="lane")
    machine.crash(Crash.DROP_UNSYNCED)
    dead = [asyncio.ensure_future(one) for one in (*(disk.list() for disk in disks), lane(list), lane.aclose())]
    await turns()
    assert not any(task.done() for task in dead)

    restarted = machine.start()
    for root in ("/journal", "/ledgers"):
        disk = restarted.disk(root, name=root)
        file = await disk.open("a")
        assert await file.read(0, 100) == b"kept"
        await disk.aclose()
    machine.release_dead()
    ended = await asyncio.gather(*dead, return_exceptions=True)
    assert [type(outcome) for outcome in ended] == [asyncio.CancelledError] * 4


async def test_process_that_ends_by_itself_makes_room_for_the_next() -> None:
    machine = SimMachine("1/b")
    for number in (b"1", b"2"):
        disk = machine.start().disk("/data", name="data")
        await disk.make_dir("")
        await disk.lock("LOCK")
        await (await disk.open("a", create=True)).append_and_sync([number])
        await disk.aclose()
    assert machine.device().cached("data/a") == b"12"


def test_restarted_process_draws_other_identifiers_and_the_same_run_the_same() -> None:
    machine, same, other = SimMachine("1/b"), SimMachine("1/b"), SimMachine("2/b")
    first, second = machine.start().entropy.uuid(), machine.start().entropy.uuid()
    assert first != second
    assert [same.start().entropy.uuid(), same.start().entropy.uuid()] == [first, second]
    assert other.start().entropy.uuid() != first


async def test_wall_clock_belongs_to_the_machine() -> None:
    machine = SimMachine("1/b")
    before = machine.start().entropy.wall_ms()
    machine.clock.jump(3_600_000)
    machine.crash(Crash.KILL)
    assert machine.start().entropy.wall_ms() >= before + 3_600_000


async def test_places_that_sync_are_collected_over_all_devices_and_processes() -> None:
    machine = SimMachine("1/b")
    machine.mount("/journal")
    for _ in range(2):
        runtime = machine.start()
        await _sync_root(runtime, "/journal")
        await _sync_root(runtime, "/ledgers")
    assert list(machine.sites.counts.values()) == [4]


async def _sync_root(runtime: Runtime, root: str) -> None:
    disk = runtime.disk(root, name=root)
    await disk.make_dir("")
    await disk.sync_dir()
    await disk.aclose()


DIGEST = """
import asyncio, zlib
from magnetar.sim.device import Crash
from magnetar.sim.device import Fault
from magnetar.sim.machine import SimMachine

async def main():
    digest = 0
    for seed in range(30):
        machine = SimMachine(str(seed))
        machine.device().faults.rates = {Fault.BIT_FLIP: 0.1, Fault.MISDIRECTED_WRITE: 0.1, Fault.WRITE_ERROR: 0.1}
        for _ in range(3):
            runtime = machine.start()
            disk = runtime.disk("/d", name="d")
            await disk.make_dir("")
            for name in ("c", "a", "b"):
                file = await disk.open(name, create=True)
                try:
                    await file.append([str(runtime.entropy.uuid()).encode()])
                    await file.append_and_sync([b"x" * 5000])
                    await file.append([b"unsynced"])
                    await file.read(0, file.size)
                except Exception as error:
                    digest = zlib.crc32(str(error).encode(), digest)
            machine.crash(Crash.POWER_LOSS)
            for image in machine.device().tree.files():
                digest = zlib.crc32(image.path.encode() + bytes(image.cache), digest)
        counts = [(fault.value, count) for fault, count in machine.device().faults.counts.items()]
        digest = zlib.crc32(str(counts).encode(), digest)
    print(digest)

asyncio.run(main())
"""


def test_outcome_does_not_depend_on_the_hash_seed() -> None:
    assert _digest("1") == _digest("2")


def _digest(hash_seed: str) -> int:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ran = subprocess.run([sys.executable, "-c", DIGEST], env=environment, capture_output=True, timeout=60, check=True)
    return int(ran.stdout)
