"""One whole bookie on simulated disks, in virtual time, with the settings of a test, and clients that write to it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from magnetar.bookie.bookie import Bookie
from magnetar.config.root import Config
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.memory import MemoryServer
from magnetar.sim.device import Fault, SimDevice, SyncSites
from magnetar.sim.machine import SimEntropy
from tests.unit.bookie.node_story import METADATA, PATHS, story_config
from tests.unit.bookie.sim_node import SimNode, small_steps
from tests.virtual_time import run
from workloads.bookie_load import BookieLoad

Test = Callable[[SimNode], Awaitable[None]]


def on_a_node(test: Test, *, busy: bool = False, **limits: dict[str, int]) -> None:
    """Runs the test with these settings, by section."""
    config = story_config(busy=busy, preallocated_bytes=0)
    changed = {name: dataclasses.replace(getattr(config, name), **values) for name, values in limits.items()}

    async def world() -> None:
        async with started(dataclasses.replace(config, **changed)) as node:
            await test(node)
            if node._bookie is not None:  # Else the test has stopped it, in its own way.
                await node.stop()

    with small_steps():
        run(world(), is_tolerant=True)


@asynccontextmanager
async def started(config: Config) -> AsyncIterator[SimNode]:
    entropy = SimEntropy("limits")
    server = MemoryServer(entropy, METADATA)
    async with server.connect() as store:
        await init_cluster(store, PATHS, entropy)
        node = SimNode("limits", server, config, SyncSites())
        try:
            await node.start()
            yield node
        finally:
            node.bury()
    await server.aclose()


def slow(*devices: SimDevice, seconds: float) -> None:
    for device in devices:
        device.faults.stall_s = seconds
        device.faults.rates[Fault.STALL] = 1.0 if seconds else 0.0


def metric(bookie: Bookie, name: str) -> float:
    lines = bookie.metrics.render().decode().splitlines()
    (value,) = [line.rpartition(" ")[2] for line in lines if line.startswith(f"magnetar_bookie_{name} ")]
    return float(value)


async def writer(node: SimNode, ledger_id: int) -> BookieLoad:
    return await BookieLoad.connect("127.0.0.1", node.bookie.port, ledger_id)


async def written(node: SimNode, ledger_id: int, entries: int) -> None:
    load = await writer(node, ledger_id)
    load.begin(10)
    await load.wait_for(lambda load: len(load.acknowledged) >= entries)
    load.finish()
    await load.wait_for(lambda load: not load.in_flight)
    await load.aclose()
