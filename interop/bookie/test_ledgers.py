"""Ledgers written and read back: quorums, digests, sizes, many adds in flight, restarts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from interop.bookie.client import E3_QW2_QA2, E3_QW3_QA2, Ledger, Protocol, Quorum, expect
from interop.bookie.conftest import Bookies

MANY = 100_000
IN_FLIGHT = 2_000
LEFT_WAITING = 30_000  # More than a bookie takes from one writer at once.


async def _write_many(bookies: Bookies, protocol: Protocol, quorum: Quorum) -> None:
    writer = await bookies.client(protocol)
    ledger = await writer.create(quorum)
    await ledger.write(MANY, in_flight=IN_FLIGHT)
    await _no_bookie_was_replaced(ledger)
    await ledger.close()
    reader = await bookies.client(protocol)
    opened = await reader.open(ledger.id)
    expect("last entry", (await opened.state())["lac"], MANY - 1)
    await opened.verify(MANY - 1)
    for client in (writer, reader):
        await client.disconnect()


async def _no_bookie_was_replaced(ledger: Ledger) -> None:
    ensembles = (await ledger.state())["ensembles"]
    assert len(ensembles) == 1, f"a bookie refused an add or failed, and was replaced: {ensembles}"


async def test_a_hundred_thousand_entries_come_back_from_write_quorum_3_with_ack_quorum_2(
    bookies: Bookies, protocol: Protocol
) -> None:
    await _write_many(bookies, protocol, E3_QW3_QA2)


async def test_a_hundred_thousand_entries_come_back_from_three_bookies_with_write_quorum_2(
    bookies: Bookies, protocol: Protocol
) -> None:
    await _write_many(bookies, protocol, E3_QW2_QA2)


async def test_two_thousand_adds_in_flight_in_each_of_three_ledgers_meet_no_refusal(
    bookies: Bookies, protocol: Protocol
) -> None:
    client = await bookies.client(protocol)
    try:
        ledgers = [await client.create() for _ in range(3)]
        for ledger in ledgers:
            await ledger.begin_writing(in_flight=IN_FLIGHT)
        for ledger in ledgers:
            await ledger.wait_acknowledged(10 * IN_FLIGHT)
            done = await ledger.ask("endWriting", untilItFails=False)
            expect("error", done["error"], "")
            await _no_bookie_was_replaced(ledger)
            await ledger.close()
    finally:
        await client.disconnect()  # Ends the writers, too, that a failure leaves behind.


@pytest.mark.only_on("magnetar")  # Apache's refuse what is too much at once.
async def test_a_bookie_that_stood_still_while_two_went_on_refuses_nothing(bookies: Bookies) -> None:
    """What waited for it comes at once. A refusal would end the ledger: there is no fourth bookie to go to."""
    client = await bookies.client("v2")
    try:
        ledger = await client.create(E3_QW3_QA2)
        await ledger.begin_writing(in_flight=IN_FLIGHT)
        await ledger.wait_acknowledged(IN_FLIGHT)
        os.kill(bookies.cluster.bookies[-1].pid, signal.SIGSTOP)
        try:
            await ledger.wait_acknowledged(await ledger.acknowledged() + LEFT_WAITING)
        finally:
            os.kill(bookies.cluster.bookies[-1].pid, signal.SIGCONT)
        await ledger.wait_acknowledged(await ledger.acknowledged() + LEFT_WAITING)
        done = await ledger.ask("endWriting", untilItFails=False)
        expect("error", done["error"], "")
        await _no_bookie_was_replaced(ledger)
        await ledger.close()
    finally:
        await client.disconnect()


async def test_every_digest_is_stored_and_verified_by_the_reader(bookies: Bookies, protocol: Protocol) -> None:
    client = await bookies.client(protocol)
    for digest in ("CRC32C", "CRC32", "MAC", "DUMMY"):
        ledger = await client.create(digest=digest)
        await ledger.write(200, in_flight=50)
        await ledger.close()
        await (await client.open(ledger.id, digest=digest)).verify(199)
    await client.disconnect()


async def test_entries_of_no_byte_and_of_four_megabytes_come_back(bookies: Bookies, protocol: Protocol) -> None:
    client = await bookies.client(protocol)
    for size in (0, 1, 65_536, 4 * 2**20):
        ledger = await client.create()
        await ledger.write(5, in_flight=2, size=size)
        await ledger.close()
        await (await client.open(ledger.id)).verify(4, size=size)
    await client.disconnect()


async def test_a_ledger_without_entries_is_closed_and_opened(bookies: Bookies, protocol: Protocol) -> None:
    client = await bookies.client(protocol)
    ledger = await client.create()
    await ledger.close()
    state = await (await client.open(ledger.id)).state()
    expect("last entry", (state["lac"], state["length"], state["closed"]), (-1, 0, True))
    await client.disconnect()


async def test_entries_are_there_after_all_bookies_were_stopped_and_started(bookies: Bookies) -> None:
    await _survives(bookies, bookies.cluster.stop)


async def test_entries_are_there_after_all_bookies_were_killed_and_started(bookies: Bookies) -> None:
    await _survives(bookies, bookies.cluster.kill)


async def _survives(bookies: Bookies, end: Callable[[], None]) -> None:
    writer = await bookies.client("v2")
    ledgers = [await writer.create() for _ in range(3)]
    for ledger in ledgers[:2]:
        await ledger.write(5_000, in_flight=100)
    await ledgers[2].write(10, size=2**20)
    await ledgers[0].close()
    await writer.disconnect()
    ids = bookies.cluster.ids
    end()
    bookies.cluster.start()
    expect("ids after the restart", bookies.cluster.ids, ids)
    reader = await bookies.client("v2")
    for ledger in ledgers[:2]:
        await (await reader.open(ledger.id)).verify(4_999)
    await (await reader.open(ledgers[2].id)).verify(9, size=2**20)
    await reader.disconnect()
