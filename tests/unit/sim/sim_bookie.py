"""A whole bookie in a simulated world: the production class, a simulated machine, network and metadata store."""

from __future__ import annotations

import asyncio

from magnetar.bookie.bookie import Bookie
from magnetar.config.bookie import BookieConfig
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.config.storage import StorageConfig
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.runtime.metrics import Metrics
from magnetar.sim.device import Crash, DiskTiming
from magnetar.sim.machine import SimRuntime
from magnetar.sim.metadata import SimMetadata
from magnetar.sim.seeds import Delay
from magnetar.sim.world import World
from workloads.bookie_load import BookieLoad

NODE = "bookie-1"
PORT = 3181
LEDGER = 7
TIMING = DiskTiming(operation=Delay(0.000_01, 0.000_1), sync=Delay(0.000_1, 0.002))
CONFIG = Config(
    metadata=MetadataConfig(url="memory:", session_timeout_ms=2_000),
    storage=StorageConfig(write_cache_bytes_max=1 << 20, index_reserve_bytes=0),
    bookie=BookieConfig(dir="/data", advertised_host=NODE, port=PORT),
)


class SimBookie:
    def __init__(self, world: World) -> None:
        self.world = world
        self.machine = world.add_node(NODE, disk_timing=TIMING, offload_delay=Delay(0.0, 0.001))
        self.closed = 0
        self._ready = asyncio.Event()

    async def prepare(self) -> None:
        self.metadata = SimMetadata(self.world.entropy, CONFIG.metadata)
        self.world.on_crash.append(self.metadata.on_crash)
        store = self.metadata.connect()
        await init_cluster(store, BookKeeperPaths(CONFIG.metadata.ledgers_root), self.world.entropy)

    async def start(self) -> None:
        """Returns when clients can find it."""
        self._ready.clear()
        self.world.start(NODE, self._main)
        async with asyncio.timeout(60):
            await self._ready.wait()

    async def _main(self, runtime: SimRuntime) -> None:
        bookie = await Bookie.open(CONFIG, runtime, self.metadata.connect(), Metrics(), base="/")
        self._ready.set()
        try:
            raise await bookie.wait_failed()
        finally:
            self.closed += 1
            await bookie.aclose()

    async def connect(self) -> BookieLoad:
        return await BookieLoad.connect(NODE, PORT, LEDGER)


async def write_crash_read(world: World, kind: Crash, count: int = 300) -> list[int]:
    """Entries are added, the bookie crashes in the middle, comes back, and every acknowledged one is read."""
    node = SimBookie(world)
    await node.prepare()
    await node.start()
    load = await node.connect()
    load.begin(20)
    await load.wait_for(lambda load: len(load.acknowledged) >= count)
    world.crash(NODE, kind)
    assert load.in_flight, "adds were on their way"
    acknowledged = list(load.acknowledged)
    await node.start()
    again = await node.connect()
    assert await again.wrong_entries(acknowledged) == []
    again.begin(20, first_entry=load.sent)
    await again.wait_for(lambda load: len(load.acknowledged) >= count)
    assert not again.is_lost
    assert node.closed == 0, "a crash closes nothing"
    return acknowledged
