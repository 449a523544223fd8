"""The scenario of ledgers: what a world of bookies and ledger clients is made of, and how it settles.

- settled: writers end → every ledger is recovered and read by a client that had no part in it (L3, V1) → clients end →
  bookies start once more (B2) and end (V5).

Read next: ../run.py, watch.py, cluster.py, workload.py, nemesis.py
"""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.sim.device import Crash
from magnetar.sim.ledgers.cluster import SETTLE_LIMIT_S, Cluster, Node
from magnetar.sim.ledgers.healing import HEALING, add_healers, wait_replicated
from magnetar.sim.ledgers.invariants import ALL
from magnetar.sim.ledgers.nemesis import Nemesis
from magnetar.sim.ledgers.options import FAULTS, draw, is_healer
from magnetar.sim.ledgers.watch import LedgerHistory, Watch
from magnetar.sim.ledgers.workload import Workload
from magnetar.sim.run import Scenario

AUDITOR: Final = "auditor"
_TRIES_MAX: Final = 20
_PAUSE_S: Final = 0.25


async def settle(cluster: Cluster, workload: Workload, watch: Watch) -> None:
    healers = [node for node in cluster.clients.values() if is_healer(node.name)]
    for client in list(cluster.clients.values()):
        if client not in healers:
            await _end_client(client, cluster, watch)
    node = cluster.add_client(AUDITOR, config=cluster.options.auditor_config())
    await cluster.wait_healed(lambda: node.client is not None, "V2", "a client does not start in a healed world")
    if node.client is not None:
        audit = cluster.spawn(node, _audit(node.client, cluster, workload, watch), "audit")
        await asyncio.wait([audit])
    if node.client is not None and healers and _can_be_replicated(cluster, watch):
        healing = cluster.spawn(node, _wait_replicated(node.client, cluster, watch), "replication")
        await asyncio.wait([healing])
    for healer in healers:
        await _end_client(healer, cluster, watch)
    node.stopping.set()
    await cluster.wait_exit(AUDITOR)


def _can_be_replicated(cluster: Cluster, watch: Watch) -> bool:
    """Damage beyond what is promised does not heal, nor do too few bookies hold every copy."""
    return "ruin" not in watch.options.faults and len(cluster.running_bookies()) >= cluster.options.ensemble


async def _wait_replicated(client: LedgerClient, cluster: Cluster, watch: Watch) -> None:
    store = cluster.metadata.connect()
    try:
        await wait_replicated(client, cluster, watch, store)
    finally:
        await store.aclose()


async def _end_client(node: Node, cluster: Cluster, watch: Watch) -> None:
    """Its writers end by themselves, since the workload is over; then the client does."""
    work = [task for task in node.work if not task.done()]
    if work and cluster.world.process(node.name) is not None:
        _, left = await asyncio.wait(work, timeout=SETTLE_LIMIT_S)
        for task in left:
            watch.violated("V2", f"{task.get_name()} does not end in a healed world")
    node.stopping.set()
    await cluster.wait_exit(node.name)


async def start_once_more(cluster: Cluster) -> None:
    """Every bookie that runs loses power and starts: replay has to bring back the same again (B2)."""
    for node in cluster.bookies.values():
        if node.bookie is not None:
            cluster.crash(node.name, Crash.POWER_LOSS, restart_s=0.001)
    await cluster.wait_healed(cluster.bookies_up, "B2", "bookies do not start once more")


async def _audit(client: LedgerClient, cluster: Cluster, workload: Workload, watch: Watch) -> None:
    """Every ledger that was not deleted is closed, and read from its first entry to its last."""
    can_close = len(cluster.running_bookies()) >= cluster.options.ensemble
    tries = _TRIES_MAX if can_close and "ruin" not in watch.options.faults else 1  # Damage does not heal.
    for ledger in list(watch.history.ledgers.values()):
        if ledger.deleting:
            continue
        for tries_left in reversed(range(tries)):
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
    if "ruin" in watch.options.faults:
        watch.counters["ledgers refused for damage"] += 1
    elif watch.ledgers[ledger.ledger_id].value.is_closed:
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
            watch.tell("on_read", ledger, AUDITOR, entry.entry_id, payload, last)


class HealedCluster(Cluster):
    """With nodes that run auto-recovery, in seeds that have them."""

    def add_nodes(self) -> None:
        super().add_nodes()
        add_healers(self)


LEDGERS: Final = Scenario(
    name="ledgers",
    world_seed="{}",
    faults=FAULTS,
    must_happen=(
        "acks",
        "fenced writers",
        "ensemble changes",
        "recoveries that wrote back",
        "torn tails cut",
        "sessions expired",
        "fragments repaired",
        "marks cleared",
    ),
    invariants=(*ALL, *HEALING),
    events_max=1_500_000,
    draw=draw,
    watch=Watch,
    cluster=HealedCluster,
    workload=Workload,
    nemesis=Nemesis,
    settle=settle,
    end=start_once_more,
)
