"""Ledgers left open by a writer's process that was killed in full flight, recovered by the other side.

What the dead writer printed as acknowledged must all be there, byte for byte; whoever recovered and whoever reads later
agree on where the ledger ends.
"""

from __future__ import annotations

from interop.bookie.client import E3_QW2_QA2, E3_QW3_QA2
from interop.ledger.conftest import Ledgers
from interop.ledger.recover import recover_by_apache, recover_by_us

QUORUMS = (E3_QW3_QA2, E3_QW2_QA2)
ENOUGH = 1_000


async def test_a_ledger_of_our_killed_writer_is_recovered_by_apaches_client(ledgers: Ledgers) -> None:
    acknowledged = await ledgers.our_doomed(*QUORUMS).killed_after(ENOUGH, len(QUORUMS))
    theirs = await ledgers.theirs()
    async with ledgers.ours() as ours:
        await recover_by_apache(ours, theirs, acknowledged)


async def test_a_ledger_of_apaches_killed_writer_is_recovered_by_us(ledgers: Ledgers) -> None:
    acknowledged = await ledgers.apaches_doomed(*QUORUMS).killed_after(ENOUGH, len(QUORUMS))
    theirs = await ledgers.theirs()
    async with ledgers.ours() as ours:
        await recover_by_us(ours, theirs, acknowledged)


async def test_a_ledger_of_our_killed_writer_is_recovered_by_us(ledgers: Ledgers) -> None:
    acknowledged = await ledgers.our_doomed(*QUORUMS).killed_after(ENOUGH, len(QUORUMS))
    theirs = await ledgers.theirs()
    async with ledgers.ours() as ours:
        await recover_by_us(ours, theirs, acknowledged)
