"""A bookie is killed: writers of both sides go on with another one, and both sides read and recover without it.

Where:  writers of ours stand at an entry that is no multiple of E when the bookie dies, and the new fragment begins
        there: with write quorum 2 it cannot be acknowledged without a replacement; with 3 two bookies are enough, so
        the writer goes on when we have heard of the end. One more is in full flight and goes on wherever it is.
Cost:   a killed bookie stays registered until its session ends, so one kill serves for everything shown here.
"""

from __future__ import annotations

import asyncio

import pytest

from interop.apache import ApacheBookie
from interop.bookie.client import E3_QW2_QA2, E3_QW3_QA2, ApacheClient, Ledger, Quorum, expect, wait_until
from interop.bookies import Bookie
from interop.ledger.conftest import Ledgers
from interop.ledger.ours import create, error_of, open_ledger, verify, write
from interop.ledger.recover import recover_by_apache, recover_by_us
from interop.magnetar_bookies import MagnetarBookie
from magnetar.ids import BookieId
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.writing.writer import LedgerWriter

QUORUMS = (E3_QW3_QA2, E3_QW2_QA2)
MORE = 1_000
IN_FLIGHT = 100
LEFT = 300
"""Entries of the ledgers that nobody writes to any more when the bookie dies."""
BUSY = 5_000
BUSY_ENOUGH = 500
"""So many entries of the writer in full flight are acknowledged when the bookie dies."""


async def test_everything_goes_on_when_an_apache_bookie_is_killed(ledgers: Ledgers) -> None:
    await _lose(ledgers, next(bookie for bookie in ledgers.cluster.bookies if isinstance(bookie, ApacheBookie)))


@pytest.mark.only_on("mixed")
async def test_everything_goes_on_when_a_magnetar_bookie_is_killed(ledgers: Ledgers) -> None:
    await _lose(ledgers, next(bookie for bookie in ledgers.cluster.bookies if isinstance(bookie, MagnetarBookie)))


async def _lose(ledgers: Ledgers, victim: Bookie) -> None:
    lost = victim.id
    theirs = await ledgers.theirs()
    async with ledgers.ours() as ours:
        writers = [await _our_writer(ours, quorum, lost) for quorum in QUORUMS]
        apaches = [await _apaches_ledger(theirs, quorum, lost) for quorum in QUORUMS]
        left_by_us = await _left_by_us(ledgers, lost)
        left_by_apache = await _left_by_apache(ledgers, lost)
        ends = [await _write_ours(writer, lost) for writer in writers]
        apaches_ends = [await _write_apaches(ledger, lost) for ledger in apaches]
        busy, writing = await _in_full_flight(ours, lost)
        async with ledgers.without(victim):
            for writer, end in zip(writers, ends, strict=True):
                await _go_on(ours, writer, end, lost)
                await _read_by_both(ours, theirs, writer, end + MORE - 1)
            await _end_flight(ours, theirs, busy, writing)
            for ledger, end in zip(apaches, apaches_ends, strict=True):
                await ledger.write(MORE, in_flight=IN_FLIGHT)
                await recover_by_us(ours, theirs, {ledger.id: end + MORE - 1})
            await recover_by_apache(ours, theirs, left_by_us)
            await recover_by_us(ours, theirs, left_by_apache)
            await _shell_sees(ledgers, writers[1], ends[1])


# --- before the loss --------------------------------------------------------------------------------------------------


async def _in_full_flight(client: LedgerClient, lost: str) -> tuple[LedgerWriter, asyncio.Task[None]]:
    writer = await _our_writer(client, E3_QW3_QA2, lost)
    writing = asyncio.create_task(write(writer, BUSY, in_flight=IN_FLIGHT))

    async def is_busy() -> bool:
        return writer.last_confirmed >= BUSY_ENOUGH

    await wait_until(is_busy, f"{BUSY_ENOUGH} entries acknowledged")
    return writer, writing


async def _our_writer(client: LedgerClient, quorum: Quorum, lost: str) -> LedgerWriter:
    """Of a ledger that has this bookie."""
    while True:
        writer = await create(client, quorum)
        if lost in writer.metadata.fragments[0].ensemble:
            return writer
        await writer.close()


async def _apaches_ledger(client: ApacheClient, quorum: Quorum, lost: str) -> Ledger:
    while True:
        ledger = await client.create(quorum)
        if lost in (await ledger.state())["ensembles"][0]:
            return ledger
        await ledger.close()


async def _left_by_us(ledgers: Ledgers, lost: str) -> dict[int, int]:
    async with ledgers.ours() as client:
        writers = [await _our_writer(client, quorum, lost) for quorum in QUORUMS]
        for writer in writers:
            await write(writer, LEFT, in_flight=IN_FLIGHT)
    return {writer.ledger_id: LEFT - 1 for writer in writers}


async def _left_by_apache(ledgers: Ledgers, lost: str) -> dict[int, int]:
    client = await ledgers.theirs()
    ledgers = [await _apaches_ledger(client, quorum, lost) for quorum in QUORUMS]
    for ledger in ledgers:
        await ledger.write(LEFT, in_flight=IN_FLIGHT)
    return {ledger.id: LEFT - 1 for ledger in ledgers}


async def _write_ours(writer: LedgerWriter, lost: str) -> int:
    count = _odd_end(writer.metadata.fragments[0].ensemble.index(lost))
    await write(writer, count, in_flight=IN_FLIGHT)
    return count


async def _write_apaches(ledger: Ledger, lost: str) -> int:
    count = _odd_end((await ledger.state())["ensembles"][0].index(lost))
    await ledger.write(count, in_flight=IN_FLIGHT)
    return count


def _odd_end(position: int) -> int:
    """No multiple of three, and the write quorum 2 of the entry with this id has the bookie at this position."""
    return 1_001 if position == 0 else 1_000


# --- without it -------------------------------------------------------------------------------------------------------


async def _go_on(client: LedgerClient, writer: LedgerWriter, end: int, lost: str) -> None:
    async def is_unreachable() -> bool:
        return await error_of(client.bookies.channel(BookieId(lost))) == "BookieUnavailableError"

    if writer.metadata.write_quorum == 3:
        await wait_until(is_unreachable, f"we heard of the end of {lost}")
    await write(writer, MORE, in_flight=IN_FLIGHT)
    await writer.close()
    fragments = writer.metadata.fragments
    expect("fragments", len(fragments), 2)
    if writer.metadata.ack_quorum == writer.metadata.write_quorum:
        expect("first entry without the bookie", fragments[1].first_entry_id, end)
    else:  # The two others may confirm some more before the change is written.
        assert end <= fragments[1].first_entry_id < end + MORE, fragments
    assert lost not in fragments[1].ensemble, f"{lost} was killed, and is still in {fragments[1].ensemble}"


async def _end_flight(
    ours: LedgerClient, theirs: ApacheClient, writer: LedgerWriter, writing: asyncio.Task[None]
) -> None:
    await writing
    await writer.close()
    assert len(writer.metadata.fragments) == 2, f"the bookie was killed, but not replaced: {writer.metadata.fragments}"
    await _read_by_both(ours, theirs, writer, BUSY - 1)


async def _read_by_both(ours: LedgerClient, theirs: ApacheClient, writer: LedgerWriter, last: int) -> None:
    reader = await open_ledger(ours, writer.ledger_id)
    expect("last entry", reader.last_confirmed, last)
    await verify(reader, last)
    opened = await theirs.open(writer.ledger_id)
    expect("last entry for Apache's", (await opened.state())["lac"], last)
    expect("ensembles for Apache's", len((await opened.state())["ensembles"]), 2)
    await opened.verify(last)


async def _shell_sees(ledgers: Ledgers, writer: LedgerWriter, end: int) -> None:
    said = await ledgers.shell("ledgermetadata", "-ledgerid", str(writer.ledger_id))
    for first, fragment in zip((0, end), writer.metadata.fragments, strict=True):
        expected = f"{first}=[{', '.join(fragment.ensemble)}]"
        assert expected in said, f"{expected} is missing: {said}"
