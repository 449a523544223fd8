"""What storage has flushed survives any crash: for the test that takes out every sync in turn.

A bookie's first mark, in the same directories, makes the names of storage's own durable once more. Storage has promised
without it, and must not rely on it.
"""

from __future__ import annotations

from magnetar.sim.device import Crash, SyncSites
from magnetar.sim.machine import SimMachine
from magnetar.storage.ledger_storage import open_storage
from tests.unit.bookie.sim_node import LEDGERS
from tests.unit.storage.samples import Counter, add, check, entry_bytes, small_config

ENTRIES = 100  # More than one log has room for, so that both directories have one.


async def flushes(seed: int, sites: SyncSites) -> None:
    machine = SimMachine(f"{seed}")
    for path in LEDGERS:
        machine.mount(path).sites = sites
    expected = {(1, entry_id): entry_bytes(1, entry_id) for entry_id in range(ENTRIES)}
    try:
        storage = await open_storage(machine.start(), LEDGERS, small_config(), submitted=Counter())
        add(storage, expected.values())
        await storage.flush()
        machine.crash(Crash.DROP_UNSYNCED)
        storage = await open_storage(machine.start(), LEDGERS, small_config(), submitted=Counter())
        await check(storage, expected)
        await storage.aclose()
    finally:
        machine.crash(Crash.KILL)
        machine.release_dead()
