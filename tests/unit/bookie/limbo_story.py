"""The result of a finished repair survives any crash: for the test that takes out every sync in turn."""

from __future__ import annotations

from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.memory import MemoryServer
from magnetar.sim.device import Crash, SyncSites
from magnetar.sim.machine import SimEntropy
from tests.unit.bookie.conftest import METADATA, PATHS
from tests.unit.bookie.journal_nodes import World
from tests.unit.bookie.test_limbo import (
    check_flags,
    create_ledgers,
    damage,
    remove_files,
    run_repair,
    start,
    write_and_crash,
)


async def repairs(seed: int, sites: SyncSites) -> None:
    entropy = SimEntropy(f"{seed}/metadata")
    server = MemoryServer(entropy, METADATA)
    world = World(f"{seed}", journals=1, sites=sites)
    try:
        async with server.connect() as store:
            await init_cluster(store, PATHS, entropy)
            await create_ledgers(store)
            await write_and_crash(world, store)
            await (damage(world) if seed % 2 else remove_files(world))
            await run_repair(world, store)
            world.crash(Crash.DROP_UNSYNCED)
            node = await start(world, store)
            await check_flags(node)
            await node.aclose()
    finally:
        world.crash()
        world.machine.release_dead()
        await server.aclose()
