"""Scenes about fences: what a bookie has answered holds through power loss, eviction and deletion (16, 18, 19, 20)."""

from __future__ import annotations

import asyncio

from magnetar.sim.disk_faults import Fault
from magnetar.sim.mutants.directed.stage import Stage
from magnetar.wire.bookkeeper.codes import Code

OTHER_LEDGERS = 8  # More than the table in memory may hold in the scene of the eviction.
_STALL_S = 20.0


async def power_loss_behind_a_fence(stage: Stage) -> None:
    """16: the fence is answered, the power goes, the old writer comes back."""
    ledger_id = await stage.new_ledger()
    await stage.fence(0, ledger_id)
    await stage.restart(0)
    await _old_writer_is_refused(stage, ledger_id, "after a power loss")


async def second_fence_while_the_first_is_written(stage: Stage) -> None:
    """18: two clients fence at the same time, and the power goes when the second has its answer."""
    ledger_id = await stage.new_ledger()
    device = stage.seen(0).image.journals[0]
    device.faults.stall_s = _STALL_S
    device.faults.strike_next(Fault.STALL)
    first = asyncio.ensure_future(stage.fence(0, ledger_id, client=0))
    await stage.until(lambda: stage.bookie(0).fencing.fenced == 1, "the first fence does not arrive")
    second = asyncio.ensure_future(stage.fence(0, ledger_id, client=1))
    answered, _ = await asyncio.wait([first, second], timeout=_STALL_S / 4, return_when=asyncio.FIRST_COMPLETED)
    await stage.restart(0)
    for fence in (first, second):
        fence.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    if answered:
        await _old_writer_is_refused(stage, ledger_id, "after a power loss while its fence was written")


async def eviction_of_a_fenced_ledger(stage: Stage) -> None:
    """19: the ledger leaves the table in memory, and is loaded again for its old writer."""
    ledger_id = await stage.new_ledger()
    await stage.fence(0, ledger_id)
    for _ in range(OTHER_LEDGERS):
        await stage.add(0, await stage.new_ledger())
    table = stage.bookie(0).table
    assert table.find(ledger_id) is None, "the fenced ledger is to be evicted"
    await _old_writer_is_refused(stage, ledger_id, "after it left the table in memory")


async def deletion_of_a_fenced_ledger(stage: Stage) -> None:
    """20: the ledger is deleted and collected; its old writer was away and knows nothing of it."""
    ledger_id = await stage.new_ledger()
    await stage.add(0, ledger_id)
    await stage.fence(0, ledger_id)
    await stage.do(0, stage.ledger_client(0).delete(ledger_id))
    garbage = stage.bookie(0).collector.garbage
    await stage.until(lambda: garbage.statistics.deleted > 0, "the deleted ledger is not collected")
    await _old_writer_is_refused(stage, ledger_id, "after its deletion", entry_id=1)


async def _old_writer_is_refused(stage: Stage, ledger_id: int, when: str, *, entry_id: int = 0) -> None:
    code = await stage.add(0, ledger_id, entry_id)
    stage.expect(
        code is Code.EFENCED, "L8", f"bookie-0 answers a plain add with {code.name} {when}, though it had fenced"
    )
