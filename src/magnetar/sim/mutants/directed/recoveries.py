"""A scene about recovery reads: whoever says "no" to one must be fenced by it (17)."""

from __future__ import annotations

import asyncio

from magnetar.ledger.recovery import RecoveryProgress
from magnetar.ledger.writer import LedgerWriter
from magnetar.sim.ledgers.workload import Acks
from magnetar.sim.mutants.directed.stage import WAIT_S, Stage

_A, _B, _C = 0, 1, 2  # Bookies of the ledger's ensemble; which of them sits where does not matter with E = Qw.
_WRITER, _SUCCESSOR = 0, 1


async def bookie_that_was_not_fenced_says_no(stage: Stage) -> None:
    """17: entry 1 is on A alone; B and C are out of the writer's reach. The successor's fence reaches A and B, and its
    reads reach B and C. Both say no, and the ledger is closed before the entry; then the writer's add reaches C."""
    network = stage.world.network
    writer, acks = await _written_by_all(stage)
    ledger_id = acks.ledger.ledger_id
    for number in (_B, _C):
        network.block(f"client-{_WRITER}", f"bookie-{number}")
    await stage.do(_WRITER, _add(stage, writer, acks))
    await stage.until(lambda: 1 in stage.seen(_A).promised[ledger_id], "entry 1 does not reach A")

    network.block(f"client-{_SUCCESSOR}", f"bookie-{_C}")
    is_fenced = asyncio.Event()
    recovery = stage.begin(_SUCCESSOR, _recover(stage, acks, is_fenced))
    await stage.until(lambda: stage.bookie(_A).fencing.fenced > 0, "no fence reaches A", step_s=0.000_02)
    network.block(f"client-{_SUCCESSOR}", f"bookie-{_A}")
    async with asyncio.timeout(WAIT_S):
        await is_fenced.wait()
        network.reset(f"client-{_SUCCESSOR}", f"bookie-{_C}")
        network.heal(f"bookie-{_C}")
        network.block(f"client-{_WRITER}", f"bookie-{_C}")
        await recovery

    network.heal(f"bookie-{_C}")
    await stage.until(lambda: bool(acks.pending == 0 or acks.failure), "the writer hears nothing from C")
    stored = stage.seen(_C).promised.get(ledger_id, {})
    stage.expect(1 not in stored, "L9", "bookie-2 denied entry 1 to a recovery, and stored it for the writer")


async def _written_by_all(stage: Stage) -> tuple[LedgerWriter, Acks]:
    """A ledger whose entry 0 all bookies have."""
    created = await stage.do(_WRITER, stage.workload.create(stage.client(_WRITER)))
    assert created is not None
    writer, acks = created
    ledger_id = writer.ledger_id
    await stage.do(_WRITER, _add(stage, writer, acks))
    holders = [stage.seen(number).promised for number in (_A, _B, _C)]
    await stage.until(lambda: all(0 in promised.get(ledger_id, ()) for promised in holders), "entry 0 is not stored")
    await stage.until(lambda: not acks.pending, "entry 0 is not acknowledged")
    return writer, acks


async def _add(stage: Stage, writer: LedgerWriter, acks: Acks) -> None:
    assert stage.workload.add(writer, acks)


async def _recover(stage: Stage, acks: Acks, is_fenced: asyncio.Event) -> None:
    def on_progress(_: RecoveryProgress) -> None:
        is_fenced.set()

    ledger = acks.ledger
    client = stage.ledger_client(_SUCCESSOR)
    await client.recover(ledger.ledger_id, password=ledger.password, on_progress=on_progress)
