"""A scene about a bookie's disks: one that lost them must not answer for what it had (21)."""

from __future__ import annotations

from magnetar.sim.device import Crash
from magnetar.sim.mutants.directed.stage import Stage

_STARTS = 3  # So often it is tried: a bookie that refuses once and serves then is no better.


async def empty_disks(stage: Stage) -> None:
    """21: everything is emptied while the machine is off, and the bookie comes back under its name."""
    ledger_id = await stage.new_ledger()
    await stage.add(0, ledger_id)
    node, seen = stage.node(0), stage.seen(0)
    starts = node.starts
    stage.cluster.crash(node.name, Crash.POWER_LOSS, restart_s=0.01)
    config = node.config.bookie
    for path in (*config.journal_dirs.split(","), *config.ledger_dirs.split(",")):
        seen.machine.empty(path)
    seen.emptied = True
    seen.image.forget()
    await stage.until(lambda: node.bookie is not None or node.starts > starts + _STARTS, "it is not started again")
    if node.bookie is None:
        return
    code = await stage.read(0, ledger_id, 0)
    stage.expect(False, "B7", f"bookie-0 lost its disks, and answers {code.name} for an entry that it had stored")
