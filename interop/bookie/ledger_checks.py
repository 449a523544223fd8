"""Ledgers written and read back: quorums, digests, sizes, many adds in flight, restarts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from interop.bookie.client import E3_QW2_QA2, E3_QW3_QA2, Ledger, Protocol, Quorum, expect
from interop.bookie.part import Bookies, with_both_protocols

MANY = 100_000
IN_FLIGHT = 2_000
LEFT_WAITING = 30_000  # More than a bookie takes from one writer at once.


async def _write_many(b: Bookies, protocol: Protocol, quorum: Quorum) -> None:
    writer = await b.client(protocol)
    ledger = await writer.create(quorum)
    await ledger.write(MANY, in_flight=IN_FLIGHT)
    await _no_bookie_was_replaced(ledger)
    await ledger.close()
    reader = await b.client(protocol)
    opened = await reader.open(ledger.id)
    expect("last entry", (await opened.state())["lac"], MANY - 1)
    await opened.verify(MANY - 1)
    for client in (writer, reader):
        await client.disconnect()


async def _no_bookie_was_replaced(ledger: Ledger) -> None:
    ensembles = (await ledger.state())["ensembles"]
    assert len(ensembles) == 1, f"a bookie refused an add or failed, and was replaced: {ensembles}"


async def a_hundred_thousand_entries_come_back_from_write_quorum_3_with_ack_quorum_2(b: Bookies, p: Protocol) -> None:
    await _write_many(b, p, E3_QW3_QA2)


async def a_hundred_thousand_entries_come_back_from_three_bookies_with_write_quorum_2(b: Bookies, p: Protocol) -> None:
    await _write_many(b, p, E3_QW2_QA2)


async def two_thousand_adds_in_flight_in_each_of_three_ledgers_meet_no_refusal(b: Bookies, p: Protocol) -> None:
    client = await b.client(p)
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


async def a_bookie_that_stood_still_while_two_went_on_refuses_nothing(b: Bookies) -> None:
    """What waited for it comes at once. A refusal would end the ledger: there is no fourth bookie to go to."""
    client = await b.client("v2")
    try:
        ledger = await client.create(E3_QW3_QA2)
        await ledger.begin_writing(in_flight=IN_FLIGHT)
        await ledger.wait_acknowledged(IN_FLIGHT)
        os.kill(b.cluster.bookies[-1].pid, signal.SIGSTOP)
        try:
            await ledger.wait_acknowledged(await ledger.acknowledged() + LEFT_WAITING)
        finally:
            os.kill(b.cluster.bookies[-1].pid, signal.SIGCONT)
        await ledger.wait_acknowledged(await ledger.acknowledged() + LEFT_WAITING)
        done = await ledger.ask("endWriting", untilItFails=False)
        expect("error", done["error"], "")
        await _no_bookie_was_replaced(ledger)
        await ledger.close()
    finally:
        await client.disconnect()


async def every_digest_is_stored_and_verified_by_the_reader(b: Bookies, p: Protocol) -> None:
    client = await b.client(p)
    for digest in ("CRC32C", "CRC32", "MAC", "DUMMY"):
        ledger = await client.create(digest=digest)
        await ledger.write(200, in_flight=50)
        await ledger.close()
        await (await client.open(ledger.id, digest=digest)).verify(199)
    await client.disconnect()


async def entries_of_no_byte_and_of_four_megabytes_come_back(b: Bookies, p: Protocol) -> None:
    client = await b.client(p)
    for size in (0, 1, 65_536, 4 * 2**20):
        ledger = await client.create()
        await ledger.write(5, in_flight=2, size=size)
        await ledger.close()
        await (await client.open(ledger.id)).verify(4, size=size)
    await client.disconnect()


async def a_ledger_without_entries_is_closed_and_opened(b: Bookies, p: Protocol) -> None:
    client = await b.client(p)
    ledger = await client.create()
    await ledger.close()
    state = await (await client.open(ledger.id)).state()
    expect("last entry", (state["lac"], state["length"], state["closed"]), (-1, 0, True))
    await client.disconnect()


async def entries_are_there_after_all_bookies_were_stopped_and_started(b: Bookies) -> None:
    await _survives(b, b.cluster.stop)


async def entries_are_there_after_all_bookies_were_killed_and_started(b: Bookies) -> None:
    await _survives(b, b.cluster.kill)


async def _survives(b: Bookies, end: Callable[[], None]) -> None:
    writer = await b.client("v2")
    ledgers = [await writer.create() for _ in range(3)]
    for ledger in ledgers[:2]:
        await ledger.write(5_000, in_flight=100)
    await ledgers[2].write(10, size=2**20)
    await ledgers[0].close()
    await writer.disconnect()
    ids = b.cluster.ids
    end()
    b.cluster.start()
    expect("ids after the restart", b.cluster.ids, ids)
    reader = await b.client("v2")
    for ledger in ledgers[:2]:
        await (await reader.open(ledger.id)).verify(4_999)
    await (await reader.open(ledgers[2].id)).verify(9, size=2**20)
    await reader.disconnect()


CHECKS = [
    *with_both_protocols(a_hundred_thousand_entries_come_back_from_write_quorum_3_with_ack_quorum_2),
    *with_both_protocols(a_hundred_thousand_entries_come_back_from_three_bookies_with_write_quorum_2),
    *with_both_protocols(two_thousand_adds_in_flight_in_each_of_three_ledgers_meet_no_refusal),
    *with_both_protocols(every_digest_is_stored_and_verified_by_the_reader),
    *with_both_protocols(entries_of_no_byte_and_of_four_megabytes_come_back),
    *with_both_protocols(a_ledger_without_entries_is_closed_and_opened),
    entries_are_there_after_all_bookies_were_stopped_and_started,
    entries_are_there_after_all_bookies_were_killed_and_started,
]
# Apache's refuse what is too much at once.
OURS_ALONE = [a_bookie_that_stood_still_while_two_went_on_refuses_nothing]
