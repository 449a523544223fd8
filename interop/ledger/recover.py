"""One side recovers ledgers that a writer left open; then both sides see the same end, and every entry."""

from __future__ import annotations

from collections.abc import Mapping

from interop.bookie.client import ENTRY_BYTES, ApacheClient, expect
from interop.ledger.ours import open_ledger, verify
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerState


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
