"""The second half of a seed: everything is healed, or a sufficient core of it, and must end well.

Order:     faults off, links healed, processes resumed and started → writers end → every ledger is recovered and read by
           a client that had no part in it (L3, V1) → clients end → bookies start once more (B2) and end (V5).
"""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.sim.device import Crash
from magnetar.sim.ledgers.cluster import Cluster
from magnetar.sim.ledgers.history import LedgerHistory
from magnetar.sim.ledgers.nemesis import Nemesis
from magnetar.sim.ledgers.watch import Watch
from magnetar.sim.ledgers.workload import Workload

AUDITOR: Final = "auditor"
SETTLE_LIMIT_S: Final = 60.0
_TRIES_MAX: Final = 20
_PAUSE_S: Final = 0.25


async def settle(cluster: Cluster, workload: Workload, nemesis: Nemesis, watch: Watch) -> None:
    watch.note("everything heals")
    nemesis.stop()
    workload.is_over = True
    await _wait_for(cluster, lambda: bookies_up(cluster), watch, "V1", "bookies that were healed do not come back")
    await _end_clients(cluster, watch)
    node = cluster.add_client(AUDITOR, config=cluster.options.auditor_config())
    await _wait_for(cluster, lambda: node.client is not None, watch, "V2", "a client does not start in a healed world")
    if node.client is not None:
        audit = cluster.spawn(node, _audit(node.client, cluster, workload, watch), "audit")
        await asyncio.wait([audit])
    node.stopping.set()
    await wait_exit(cluster, AUDITOR, watch)
    await _start_once_more(cluster, watch)
    await end_bookies(cluster, watch)


def bookies_up(cluster: Cluster) -> bool:
    return all(node.bookie is not None for node in cluster.bookies.values() if node.name not in cluster.down)


async def _wait_for(cluster: Cluster, condition: object, watch: Watch, invariant: str, what: str) -> None:
    assert callable(condition)
    end = cluster.world.loop.now + SETTLE_LIMIT_S
    while not condition():
        if cluster.world.loop.now >= end:
            watch.violated(invariant, f"{what} within {SETTLE_LIMIT_S:g} s")
            return
        await asyncio.sleep(0.01)


async def _end_clients(cluster: Cluster, watch: Watch) -> None:
    """Their writers end by themselves, since the workload is over; then the clients do."""
    for node in list(cluster.clients.values()):
        work = [task for task in node.work if not task.done()]
        if work and cluster.world.process(node.name) is not None:
            _, left = await asyncio.wait(work, timeout=SETTLE_LIMIT_S)
            for task in left:
                watch.violated("V2", f"{task.get_name()} does not end in a healed world")
        node.stopping.set()
        await wait_exit(cluster, node.name, watch)


async def wait_exit(cluster: Cluster, name: str, watch: Watch) -> None:
    try:
        async with asyncio.timeout(SETTLE_LIMIT_S):
            await cluster.world.wait_exit(name)
    except TimeoutError:
        watch.violated("V2", f"{name} does not end within {SETTLE_LIMIT_S:g} s")


async def _start_once_more(cluster: Cluster, watch: Watch) -> None:
    """Every bookie that is there loses power and starts: replay has to bring back the same again (B2)."""
    for node in cluster.bookies.values():
        if node.bookie is not None:
            cluster.crash(node.name, Crash.POWER_LOSS, restart_s=0.001)
    await _wait_for(cluster, lambda: bookies_up(cluster), watch, "B2", "bookies do not start once more")


async def end_bookies(cluster: Cluster, watch: Watch) -> None:
    """No client is left, so there is nothing that a bookie could still be busy with."""
    for node in cluster.bookies.values():
        bookie = node.bookie
        if bookie is None:
            continue
        if bookie._requests.connections or bookie.adds.in_progress or bookie.reads.in_progress:
            watch.violated("V5", f"{node.name} has connections or requests, and there is no client")
        cluster.stop_bookie(node.name)
        await wait_exit(cluster, node.name, watch)


async def _audit(client: LedgerClient, cluster: Cluster, workload: Workload, watch: Watch) -> None:
    """Every ledger that nobody deleted is closed, and read from its first entry to its last."""
    up = sum(node.bookie is not None for node in cluster.bookies.values())
    can_close = up >= cluster.options.ensemble
    for ledger in list(watch.history.ledgers.values()):
        if ledger.deleting:
            continue
        for tries_left in reversed(range(_TRIES_MAX if can_close else 1)):
            try:
                await _audit_one(client, ledger, workload, watch)
                break
            except MagnetarError as error:
                watch.note(f"the audit of ledger {ledger.ledger_id} failed: {error}")
                if not tries_left:
                    _complain(ledger, watch, error, can_close=can_close)
                else:
                    await asyncio.sleep(_PAUSE_S)


def _complain(ledger: LedgerHistory, watch: Watch, error: MagnetarError, *, can_close: bool) -> None:
    """A ledger can be closed as long as E bookies are left, and a closed one can be read."""
    if watch.ledgers[ledger.ledger_id].value.is_closed:
        watch.violated("L3", f"ledger {ledger.ledger_id} in a healed world: {error}")
    elif can_close:
        watch.violated("V1", f"ledger {ledger.ledger_id} in a healed world: {error}")
    else:
        watch.counters["ledgers left open for lack of bookies"] += 1


async def _audit_one(client: LedgerClient, ledger: LedgerHistory, workload: Workload, watch: Watch) -> None:
    name = f"ledger {ledger.ledger_id}"
    reader = await workload.bounded(client.open(ledger.ledger_id, password=ledger.password), f"the audit of {name}")
    last = int(reader.last_confirmed)
    if last < ledger.acked:
        watch.violated("L3", f"{name} ends with {last}, but {ledger.acked} was acknowledged")
    if last >= 0:
        entries = await workload.bounded(reader.read(0, last), f"the audit of {name}")
        for entry in entries:
            watch.counters["entries audited"] += 1
            payload = bytes(entry.payload)
            watch.tell("on_read", ledger, AUDITOR, entry.entry_id, payload, last, sure=True)
