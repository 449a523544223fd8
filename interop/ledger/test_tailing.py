"""Readers of one side beside a writer of the other: the LAC, long polls, and the end of the ledger."""

from __future__ import annotations

import asyncio

from interop.bookie.client import E3_QW3_QA2, ENTRY_BYTES, Quorum, expect, wait_until
from interop.ledger.conftest import Ledgers
from interop.ledger.ours import check, create, open_ledger, verify, write
from magnetar.ledger.reading.reader import LedgerReader

MANY = 3_000
EXPLICIT_MS = 50
POLL_MS = 4_000  # Below the timeout of a read of Apache's client, 5 s.


async def _tail(reader: LedgerReader) -> int:
    """Every entry once, in order, until the ledger is closed: how many there were."""
    wanted = 0
    async for entry in reader.tail():
        check(reader.ledger_id, entry, wanted)
        wanted += 1
    return wanted


async def test_we_tail_a_writer_of_apaches_client_to_its_end(ledgers: Ledgers, quorum: Quorum) -> None:
    theirs = await ledgers.theirs()
    polling = {"tail_long_poll": False, "tail_poll_interval_ms": 50}
    async with ledgers.ours() as longs, ledgers.ours(**polling) as polls:
        ledger = await theirs.create(quorum)
        tails = [
            asyncio.create_task(_tail(await open_ledger(client, ledger.id, recover=False))) for client in (longs, polls)
        ]
        for _ in range(30):
            await ledger.write(MANY // 30, in_flight=20)
        await ledger.close()
        for how, tail in zip(("long polls", "polls"), tails, strict=True):
            expect(f"entries seen with {how}", await asyncio.wait_for(tail, 30), MANY)


async def test_we_tail_our_own_writer_to_its_end(ledgers: Ledgers, quorum: Quorum) -> None:
    async with ledgers.ours() as client, ledgers.ours() as follower:
        writer = await create(client, quorum)
        tail = asyncio.create_task(_tail(await open_ledger(follower, writer.ledger_id, recover=False)))
        for _ in range(30):
            await write(writer, MANY // 30, in_flight=20)
        await writer.close()
        expect("entries seen", await asyncio.wait_for(tail, 30), MANY)


async def test_a_long_poll_of_ours_sees_each_entry_when_the_next_one_comes(ledgers: Ledgers) -> None:
    theirs = await ledgers.theirs("v3")
    async with ledgers.ours() as client:
        ledger = await theirs.create()
        await ledger.write(1)
        reader = await open_ledger(client, ledger.id, recover=False)
        entries = reader.tail()
        for entry_id in range(20):
            coming = asyncio.create_task(anext(entries))
            await ledger.write(1)  # Carries the news that the one before it is confirmed.
            check(ledger.id, await asyncio.wait_for(coming, 10), entry_id)
        await entries.aclose()


async def test_apaches_reader_follows_our_writer(ledgers: Ledgers) -> None:
    theirs = await ledgers.theirs("v3")
    async with ledgers.ours() as client:
        writer = await create(client, E3_QW3_QA2)
        await write(writer, 2)
        reader = await theirs.open(writer.ledger_id, recovery=False)
        for entry_id in range(1, 20):
            await reader.ask("beginLongPoll", entryId=entry_id, timeoutMs=POLL_MS, parallel=True)
            await write(writer, 1)
            got = await reader.ask("endLongPoll", entryId=entry_id, size=ENTRY_BYTES)
            expect(f"entry {entry_id}", (got["hasEntry"], got["lac"]), (True, entry_id))
        await writer.close()

        async def sees_the_end() -> bool:
            return await reader.lac() == 20

        await wait_until(sees_the_end, "Apache's reader sees the last entry of our closed ledger")
        await reader.verify(20)


async def test_an_explicit_lac_of_either_side_is_seen_by_the_other(ledgers: Ledgers) -> None:
    theirs = await ledgers.theirs("v3")
    async with ledgers.ours(explicit_lac_interval_ms=EXPLICIT_MS) as ours:
        writer = await create(ours, E3_QW3_QA2)
        await write(writer, 10)
        apaches_reader = await theirs.open(writer.ledger_id, recovery=False)

        async def apache_sees_all() -> bool:
            return await apaches_reader.explicit_lac() == 9

        await wait_until(apache_sees_all, "Apache's reader sees our explicit LAC")
        await apaches_reader.verify(9)
    theirs = await ledgers.theirs("v3", explicit_lac_ms=EXPLICIT_MS)
    async with ledgers.ours() as ours:
        ledger = await theirs.create()
        await ledger.write(10)
        reader = await open_ledger(ours, ledger.id, recover=False)

        async def we_see_all() -> bool:
            return await reader.refresh_lac() == 9

        await wait_until(we_see_all, "we see Apache's explicit LAC")
        await verify(reader, 9)
