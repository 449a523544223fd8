"""Small scenarios on a simulated device, repeated over seeds, and what was found after each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from magnetar.runtime.disk import Disk, File
from magnetar.sim.device import Crash, SimDevice, Tree
from magnetar.sim.disk import SimDisk

SEEDS = 60

Scenario = Callable[[Disk], Awaitable[None]]


async def files_after(scenario: Scenario, kind: Crash = Crash.POWER_LOSS, seed: str = "0") -> dict[str, bytes]:
    """Runs the scenario on a fresh device, crashes, and reads every file back through a new Disk."""
    device = SimDevice(seed=seed)
    await scenario(SimDisk(device))
    device.crash(kind)
    return await read_all(device)


async def outcomes(scenario: Scenario, kind: Crash = Crash.POWER_LOSS) -> list[dict[str, bytes]]:
    """Returns each different state that is left by some seed."""
    found: list[dict[str, bytes]] = []
    for seed in range(SEEDS):
        files = await files_after(scenario, kind, str(seed))
        if files not in found:
            found.append(files)
    return found


async def read_all(device: SimDevice) -> dict[str, bytes]:
    disk = SimDisk(device)
    found = {}
    for path in paths(device.tree):
        file = await disk.open(path)
        found[path] = await file.read(0, file.size)
        await file.aclose()
    await disk.aclose()
    return found


def paths(tree: Tree) -> list[str]:
    return [image.path for image in tree.files()]


async def new_file(disk: Disk, path: str, durable: bytes = b"") -> File:
    """An open file whose name and these bytes are durable."""
    file = await disk.open(path, create=True)
    await file.append_and_sync([durable])
    await disk.sync_dir(path.rpartition("/")[0])
    return file


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
