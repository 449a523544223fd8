"""Who may write: a writer of one side that the other side fences, and passwords."""

from __future__ import annotations

import asyncio

from interop.bookie.client import E3_QW3_QA2, Quorum, expect, wait_until
from interop.bookie.client import error_of as apaches_error_of
from interop.ledger.conftest import Ledgers
from interop.ledger.ours import Flight, create, error_of, open_ledger, verify, write
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerState

OURS_FENCED = "LedgerFencedError"
FENCED = "BKLedgerFencedException"
CLOSED = "BKLedgerClosedException"
UNAUTHORIZED = "BKUnauthorizedAccessException"
ENOUGH = 1_000


async def test_our_writer_in_full_flight_is_fenced_by_apaches_client(ledgers: Ledgers, quorum: Quorum) -> None:
    rescuer = await ledgers.theirs()
    async with ledgers.ours() as client:
        writer = await create(client, quorum)
        flight = Flight(writer, in_flight=100)
        await wait_until(lambda: flight.enough(ENOUGH), f"{ENOUGH} adds acknowledged")
        recovered = await rescuer.open(writer.ledger_id)
        expect("what our writer met", await flight.end(), OURS_FENCED)
        state = await recovered.state()
        expect("closed", state["closed"], True)
        _all_there(flight.acknowledged, state["lac"])
        await recovered.verify(state["lac"])
        await verify(await open_ledger(client, writer.ledger_id), state["lac"])


async def test_apaches_writer_in_full_flight_is_fenced_by_us(ledgers: Ledgers, quorum: Quorum) -> None:
    client = await ledgers.theirs()
    async with ledgers.ours() as rescuer:
        ledger = await client.create(quorum)
        await ledger.begin_writing(in_flight=100)
        await ledger.wait_acknowledged(ENOUGH)
        recovered = await open_ledger(rescuer, ledger.id)
        acknowledged, error = await ledger.end_writing()
        assert error in (FENCED, CLOSED), f"Apache's writer met {error}"  # An add that comes just then finds it closed.
        _all_there(acknowledged, recovered.last_confirmed)
        await verify(recovered, recovered.last_confirmed)


async def test_a_writer_of_ours_is_fenced_by_ours(ledgers: Ledgers, quorum: Quorum) -> None:
    async with ledgers.ours() as client, ledgers.ours() as rescuer:
        writer = await create(client, quorum)
        flight = Flight(writer, in_flight=100)
        await wait_until(lambda: flight.enough(ENOUGH), f"{ENOUGH} adds acknowledged")
        recovered = await open_ledger(rescuer, writer.ledger_id)
        expect("what the writer met", await flight.end(), OURS_FENCED)
        _all_there(flight.acknowledged, recovered.last_confirmed)
        await verify(recovered, recovered.last_confirmed)


def _all_there(acknowledged: int, last: int) -> None:
    assert last >= acknowledged - 1, f"{acknowledged} acknowledged, but recovered up to {last} only"


async def test_writers_at_rest_are_fenced_by_the_other_side_when_they_go_on(ledgers: Ledgers) -> None:
    theirs = await ledgers.theirs()
    async with ledgers.ours() as ours:
        writer = await create(ours, E3_QW3_QA2)
        await write(writer, 10)
        await theirs.open(writer.ledger_id)
        expect("what our writer met", await error_of(write(writer, 1)), OURS_FENCED)
        expect("our close", await error_of(writer.close()), OURS_FENCED)
        ledger = await theirs.create()
        await ledger.write(10)
        await open_ledger(ours, ledger.id)
        expect("what Apache's writer met", await ledger.refused_write(), FENCED)


async def test_a_ledger_recovered_before_its_first_entry_takes_none_from_the_other_side(ledgers: Ledgers) -> None:
    theirs = await ledgers.theirs()
    async with ledgers.ours() as ours:
        writer = await create(ours, E3_QW3_QA2)
        expect("last entry", (await (await theirs.open(writer.ledger_id)).state())["lac"], -1)
        expect("what our writer met", await error_of(write(writer, 1)), OURS_FENCED)
        ledger = await theirs.create()
        expect("last entry", (await open_ledger(ours, ledger.id)).last_confirmed, -1)
        expect("what Apache's writer met", await ledger.refused_write(), FENCED)


async def test_two_recoveries_of_both_sides_at_once_end_in_one_ledger(ledgers: Ledgers, quorum: Quorum) -> None:
    """Either may lose the race and say so; asked again it finds the ledger closed."""
    theirs = await ledgers.theirs()
    async with ledgers.ours() as ours:
        for count in (1, 10, 300):
            writer = await create(ours, quorum)
            await write(writer, count, in_flight=50)
            await asyncio.gather(
                error_of(open_ledger(ours, writer.ledger_id)), apaches_error_of(theirs.open(writer.ledger_id))
            )
            reader = await open_ledger(ours, writer.ledger_id)
            recovered = await theirs.open(writer.ledger_id)
            expect("last entry for us", reader.last_confirmed, count - 1)
            expect("last entry for Apache's", (await recovered.state())["lac"], count - 1)
            expect("state", reader.metadata.state, LedgerState.CLOSED)
            await verify(reader, count - 1)
            await recovered.verify(count - 1)


async def test_a_wrong_password_is_refused_by_either_side(ledgers: Ledgers) -> None:
    theirs = await ledgers.theirs()
    async with ledgers.ours() as ours:
        async with await create(ours, E3_QW3_QA2) as writer:
            await write(writer, 1)
        refused = await apaches_error_of(theirs.open(writer.ledger_id, password="wrong"))
        expect("our ledger, opened by Apache's", refused, UNAUTHORIZED)
        ledger = await theirs.create()
        await ledger.write(1)
        refused = await error_of(open_ledger(ours, ledger.id, password=b"wrong"))
        expect("Apache's ledger, opened by us", refused, "WrongPasswordError")
        expect("the writer goes on", await ledger.refused_write(), "")
