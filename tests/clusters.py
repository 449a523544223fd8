"""Bookies in the test's process, real or simulated, as the test's loop is.

On virtual time, the bookies are the production class on one simulated machine, on the loop's simulated network.
Otherwise they have real sockets, and real files in a temporary directory.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from magnetar.config.root import Config
from magnetar.sim.device import DiskTiming
from magnetar.sim.loop import SimLoop
from magnetar.sim.machine import SimMachine, WallClock
from magnetar.sim.seeds import Delay
from magnetar.testing.cluster import BookieCluster

TIMING: Final = DiskTiming(operation=Delay(0.000_01, 0.000_1), sync=Delay(0.000_1, 0.002))
OFFLOAD: Final = Delay(0.0, 0.000_1)


def new_cluster(bookies: int, *, config: Config | None = None) -> BookieCluster:
    """Not started yet."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimLoop):
        return BookieCluster(bookies, config=config)
    clock = WallClock(time=loop.time)
    machine = SimMachine("tests/machine", clock=clock, disk_timing=TIMING, offload_delay=OFFLOAD)
    return BookieCluster(bookies, config=config, runtime=machine.start(), directory=Path("/bookies"))
