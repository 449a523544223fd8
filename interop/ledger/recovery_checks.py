"""Ledgers left open by a writer's process that was killed in full flight, recovered by the other side.

What the dead writer printed as acknowledged must all be there, byte for byte; whoever recovered and whoever reads later
agree on where the ledger ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from interop.bookie.client import E3_QW2_QA2, E3_QW3_QA2, ENTRY_BYTES, ApacheClient, expect
from interop.ledger.ours import open_ledger, verify
from interop.ledger.part import Ledgers
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerState

QUORUMS = (E3_QW3_QA2, E3_QW2_QA2)
ENOUGH = 1_000


async def a_ledger_of_our_killed_writer_is_recovered_by_apaches_client(b: Ledgers) -> None:
    acknowledged = await b.our_doomed(*QUORUMS).killed_after(ENOUGH, len(QUORUMS))
    theirs = await b.theirs()
    async with b.ours() as ours:
        await recover_by_apache(ours, theirs, acknowledged)


async def a_ledger_of_apaches_killed_writer_is_recovered_by_us(b: Ledgers) -> None:
    acknowledged = await b.apaches_doomed(*QUORUMS).killed_after(ENOUGH, len(QUORUMS))
    theirs = await b.theirs()
    async with b.ours() as ours:
        await recover_by_us(ours, theirs, acknowledged)


async def a_ledger_of_our_killed_writer_is_recovered_by_us(b: Ledgers) -> None:
    acknowledged = await b.our_doomed(*QUORUMS).killed_after(ENOUGH, len(QUORUMS))
    theirs = await b.theirs()
    async with b.ours() as ours:
        await recover_by_us(ours, theirs, acknowledged)


async def recover_by_apache(ours: LedgerClient, theirs: ApacheClient, acknowledged: Mapping[int, int]) -> None:
    for ledger_id, last_acknowledged in acknowledged.items():
        expect("state before", (await ours.metadata(ledger_id)).state, LedgerState.OPEN)
        recovered = await theirs.open(ledger_id)
        last = (await recovered.state())["lac"]
        assert last >= last_acknowledged, f"{last_acknowledged} was acknowledged, but the ledger ends with {last}"
        await recovered.verify(last)
        # If it finds nothing behind the LAC, its length is that of the entry which told the LAC: a later one.
        assert await _we_see(ours, ledger_id, last) >= (last + 1) * ENTRY_BYTES


async def recover_by_us(ours: LedgerClient, theirs: ApacheClient, acknowledged: Mapping[int, int]) -> None:
    for ledger_id, last_acknowledged in acknowledged.items():
        expect("state before", (await ours.metadata(ledger_id)).state, LedgerState.OPEN)
        last = (await open_ledger(ours, ledger_id)).last_confirmed
        assert last >= last_acknowledged, f"{last_acknowledged} was acknowledged, but the ledger ends with {last}"
        expect("the length for us", await _we_see(ours, ledger_id, last), (last + 1) * ENTRY_BYTES)
        opened = await theirs.open(ledger_id)
        state = await opened.state()
        expect("the end for Apache's", (state["lac"], state["length"]), (last, (last + 1) * ENTRY_BYTES))
        await opened.verify(last)


async def _we_see(ours: LedgerClient, ledger_id: int, last: int) -> int:
    """All of it; returns its length."""
    reader = await open_ledger(ours, ledger_id)
    expect("the end for us", reader.last_confirmed, last)
    await verify(reader, last)
    return reader.length


CHECKS = [
    a_ledger_of_our_killed_writer_is_recovered_by_apaches_client,
    a_ledger_of_apaches_killed_writer_is_recovered_by_us,
    a_ledger_of_our_killed_writer_is_recovered_by_us,
]
