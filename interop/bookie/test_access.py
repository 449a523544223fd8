"""Who may write: fencing, recovery of a ledger left open, passwords, and answers to questions about nothing."""

from __future__ import annotations

from interop.bookie.client import E3_QW2_QA2, E3_QW3_QA2, ENTRY_BYTES, PASSWORD, Protocol, Quorum, error_of, expect
from interop.bookie.conftest import Bookies

FENCED = "BKLedgerFencedException"
CLOSED = "BKLedgerClosedException"
UNAUTHORIZED = "BKUnauthorizedAccessException"


async def test_a_writer_is_fenced_by_recovery_and_all_it_was_told_is_there(
    bookies: Bookies, protocol: Protocol
) -> None:
    for quorum in (E3_QW3_QA2, E3_QW2_QA2):
        await _fence_in_full_flight(bookies, protocol, quorum)


async def _fence_in_full_flight(bookies: Bookies, protocol: Protocol, quorum: Quorum) -> None:
    written = await (await bookies.client(protocol)).create(quorum)
    await written.begin_writing(in_flight=100)
    await written.wait_acknowledged(2_000)
    rescuer = await bookies.client(protocol)
    recovered = await rescuer.open(written.id)
    acknowledged, error = await written.end_writing()
    assert error in (FENCED, CLOSED), f"the writer met {error}"  # An add that comes just then finds its handle closed.
    state = await recovered.state()
    expect("closed", state["closed"], True)
    assert state["lac"] >= acknowledged - 1, f"{acknowledged} acknowledged, but recovered up to {state['lac']} only"
    await recovered.verify(state["lac"])
    await rescuer.disconnect()
    await written.client.disconnect()


async def test_a_ledger_left_open_by_a_writer_that_is_gone_is_recovered(bookies: Bookies, protocol: Protocol) -> None:
    writer = await bookies.client(protocol)
    ledger = await writer.create()
    await ledger.write(1_000, in_flight=100)
    await writer.disconnect()
    rescuer = await bookies.client(protocol)
    recovered = await rescuer.open(ledger.id)
    expect("last entry", (await recovered.state())["lac"], 999)
    expect("length", (await recovered.state())["length"], 1_000 * ENTRY_BYTES)
    await recovered.verify(999)
    await rescuer.disconnect()


async def test_a_writer_at_rest_is_fenced_when_it_goes_on(bookies: Bookies, protocol: Protocol) -> None:
    writer, rescuer = await bookies.client(protocol), await bookies.client(protocol)
    ledger = await writer.create()
    await ledger.write(10)
    await rescuer.open(ledger.id)
    expect("what the writer met", await ledger.refused_write(), FENCED)
    for client in (writer, rescuer):
        await client.disconnect()


async def test_a_ledger_recovered_before_its_first_entry_takes_none(bookies: Bookies, protocol: Protocol) -> None:
    writer, rescuer = await bookies.client(protocol), await bookies.client(protocol)
    ledger = await writer.create()
    recovered = await rescuer.open(ledger.id)
    expect("last entry", (await recovered.state())["lac"], -1)
    expect("what the writer met", await ledger.refused_write(), FENCED)
    for client in (writer, rescuer):
        await client.disconnect()


async def test_opening_with_a_wrong_password_is_refused(bookies: Bookies, protocol: Protocol) -> None:
    client = await bookies.client(protocol)
    ledger = await client.create()
    await ledger.write(1)
    expect("opened", await error_of(client.open(ledger.id, password="wrong")), UNAUTHORIZED)
    await client.disconnect()


async def test_a_bookie_refuses_an_add_with_a_wrong_master_key(bookies: Bookies, protocol: Protocol) -> None:
    client = await bookies.client(protocol)
    ledger = await client.create()
    await ledger.write(1)
    for bookie in bookies.cluster.ids:
        add = {"bookie": bookie, "protocol": protocol, "size": ENTRY_BYTES}
        expect("wrong key", await ledger.ask("addWithKey", entryId=1, password="wrong", **add), UNAUTHORIZED)
        expect("right key", await ledger.ask("addWithKey", entryId=1, password=PASSWORD, **add), "ok")
    await client.disconnect()


async def test_a_bookie_refuses_to_fence_with_a_wrong_master_key(bookies: Bookies, protocol: Protocol) -> None:
    client = await bookies.client(protocol)
    ledger = await client.create()
    await ledger.write(1)
    for bookie in bookies.cluster.ids:
        answer = await ledger.ask("fenceWithKey", bookie=bookie, entryId=0, password="wrong")
        expect("wrong key", answer, UNAUTHORIZED)
    expect("the writer goes on", await ledger.refused_write(), "")
    await client.disconnect()


async def test_an_entry_that_was_never_written_is_no_such_entry(bookies: Bookies, protocol: Protocol) -> None:
    client = await bookies.client(protocol)
    ledger = await client.create()
    await ledger.write(3)
    await ledger.ask("readUnconfirmed", entryId=2, size=ENTRY_BYTES)
    missing = ledger.ask("readUnconfirmed", entryId=3, size=ENTRY_BYTES)
    expect("entry 3 of 3", await error_of(missing), "BKNoSuchEntryException")
    await client.disconnect()


async def test_a_ledger_that_no_bookie_has_is_no_such_ledger(bookies: Bookies, protocol: Protocol) -> None:
    client = await bookies.client(protocol)
    ledger = await client.create()
    missing = ledger.ask("readUnconfirmed", entryId=0, size=ENTRY_BYTES)
    expect("an entry of a ledger never written", await error_of(missing), "BKNoSuchLedgerExistsException")
    await client.disconnect()
