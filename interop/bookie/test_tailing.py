"""Readers beside a writer, and what only one of the protocols has.

v3 alone: long poll, explicit LAC, deferred sync and force, bookie info. v2 alone: batch reads. An entry carries the LAC
known when it was sent, so without an explicit one a reader sees a writer at rest one entry behind.
"""

from __future__ import annotations

from interop.bookie.client import E3_QW2_QA2, ENTRY_BYTES, Protocol, error_of, expect, wait_until
from interop.bookie.conftest import Bookies

POLL_MS = 4_000  # Below the client's own timeout of a read, 5 s: beyond it a poll ends in an error.


async def test_a_reader_polls_the_last_add_confirmed_of_a_writer(bookies: Bookies, protocol: Protocol) -> None:
    writer, tail = await bookies.client(protocol), await bookies.client(protocol)
    ledger = await writer.create()
    await ledger.write(1)
    reader = await tail.open(ledger.id, recovery=False)
    for round_ in range(1, 6):
        await ledger.write(100)
        expect(f"LAC in round {round_}", await reader.lac(), 100 * round_ - 1)
        await reader.verify(100 * round_ - 1)
    await ledger.close()

    async def sees_the_end() -> bool:
        return await reader.lac() == 500

    await wait_until(sees_the_end, "the reader sees the last entry of the closed ledger")
    for client in (writer, tail):
        await client.disconnect()


async def test_a_reader_tails_with_long_polls_in_v3(bookies: Bookies) -> None:
    for parallel in (False, True):
        writer, tail = await bookies.client("v3"), await bookies.client("v3")
        ledger = await writer.create()
        await ledger.write(2)
        reader = await tail.open(ledger.id, recovery=False)
        for entry_id in range(1, 20):
            await reader.ask("beginLongPoll", entryId=entry_id, timeoutMs=POLL_MS, parallel=parallel)
            await ledger.write(1)  # Carries the news that the one before it is confirmed.
            got = await reader.ask("endLongPoll", entryId=entry_id, size=ENTRY_BYTES)
            expect(f"entry {entry_id} came along", got["hasEntry"], True)
            expect("LAC", got["lac"], entry_id)
        for client in (writer, tail):
            await client.disconnect()


async def test_a_long_poll_that_nobody_feeds_ends_without_an_entry_in_v3(bookies: Bookies) -> None:
    writer, tail = await bookies.client("v3"), await bookies.client("v3")
    ledger = await writer.create()
    await ledger.write(5)
    reader = await tail.open(ledger.id, recovery=False)
    await reader.ask("beginLongPoll", entryId=4, timeoutMs=500, parallel=True)
    got = await reader.ask("endLongPoll", entryId=4, size=ENTRY_BYTES)
    expect("answer", (got["hasEntry"], got["lac"]), (False, 3))
    for client in (writer, tail):
        await client.disconnect()


async def test_an_explicit_lac_shows_the_last_entry_of_a_writer_at_rest_in_v3(bookies: Bookies) -> None:
    writer, tail = await bookies.client("v3", explicit_lac_ms=50), await bookies.client("v3")
    ledger = await writer.create()
    await ledger.write(10)
    reader = await tail.open(ledger.id, recovery=False)

    async def sees_all() -> bool:
        return await reader.explicit_lac() == 9

    await wait_until(sees_all, "the explicit LAC of a writer at rest")
    await reader.verify(9)
    for client in (writer, tail):
        await client.disconnect()


async def test_a_long_poll_returns_the_entry_that_an_explicit_lac_confirmed_in_v3(bookies: Bookies) -> None:
    writer, tail = await bookies.client("v3", explicit_lac_ms=100), await bookies.client("v3")
    ledger = await writer.create()
    await ledger.write(1)
    reader = await tail.open(ledger.id, recovery=False)
    await reader.ask("beginLongPoll", entryId=1, timeoutMs=1_000, parallel=True)
    await ledger.write(1)  # Nothing follows that could carry its confirmation. Apache's bookies see it at the timeout.
    got = await reader.ask("endLongPoll", entryId=1, size=ENTRY_BYTES)
    expect("answer", (got["hasEntry"], got["lac"]), (True, 1))
    for client in (writer, tail):
        await client.disconnect()


async def test_force_confirms_what_deferred_sync_wrote_in_v3(bookies: Bookies) -> None:
    writer = await bookies.client("v3")
    ledger = await writer.create(deferred_sync=True)
    await ledger.write(500, in_flight=50)
    expect("confirmed before force", (await ledger.state())["lac"], -1)
    expect("confirmed after force", await ledger.ask("force"), 499)
    await ledger.close()
    await (await writer.open(ledger.id)).verify(499)
    await writer.disconnect()


async def test_deferred_sync_without_force_is_recovered_in_v3(bookies: Bookies) -> None:
    writer, rescuer = await bookies.client("v3"), await bookies.client("v3")
    ledger = await writer.create(deferred_sync=True)
    await ledger.write(50, in_flight=10)
    recovered = await rescuer.open(ledger.id)
    expect("last entry", (await recovered.state())["lac"], 49)
    await recovered.verify(49)
    for client in (writer, rescuer):
        await client.disconnect()


async def test_bookie_info_gives_the_disk_space_of_every_bookie_in_v3(bookies: Bookies) -> None:
    client = await bookies.client("v3")
    info = await client.bookie_info()
    expect("bookies", sorted(info), sorted(bookies.cluster.ids))
    for bookie, space in info.items():
        assert 0 < space["free"] < space["total"], f"{bookie}: {space}"
    await client.disconnect()


async def test_every_entry_that_a_bookie_holds_is_listed_in_v3(bookies: Bookies) -> None:
    client = await bookies.client("v3")
    ledger = await client.create(E3_QW2_QA2)
    await ledger.write(300, in_flight=50)
    await ledger.close()
    ensemble = (await (await client.open(ledger.id)).state())["ensembles"][0]
    for at, bookie in enumerate(ensemble):
        listed = await ledger.ask("listEntries", bookie=bookie, last=299)
        held = [n for n in range(300) if (at - n) % 3 in (0, 1)]  # Entry n goes to n and n + 1, modulo three.
        expect(f"entries of bookie {at}", listed, held)
    await client.disconnect()


async def test_batch_reads_end_at_the_count_or_the_bytes_asked_for_in_v2(bookies: Bookies) -> None:
    client = await bookies.client("v2")
    ledger = await client.create()
    await ledger.write(2_000, in_flight=500, size=1_000)
    await ledger.close()
    opened = await client.open(ledger.id)
    read = {"first": 0, "last": 1_999, "size": 1_000}
    by_count = await opened.ask("verifyBatches", batchEntries=300, batchBytes=0, **read)
    expect("batches of 300", by_count, [300] * 6 + [200])
    by_bytes = await opened.ask("verifyBatches", batchEntries=2_000, batchBytes=100_000, **read)
    assert all(0 < count <= 100 for count in by_bytes), f"more than 100,000 bytes in a batch: {by_bytes}"
    assert max(by_bytes) > 50, f"batches are much smaller than asked for: {by_bytes}"
    await client.disconnect()


async def test_a_batch_read_of_a_striped_ledger_ends_where_the_bookie_lacks_an_entry_in_v2(bookies: Bookies) -> None:
    client = await bookies.client("v2")
    ledger = await client.create(E3_QW2_QA2)
    await ledger.write(300, in_flight=50)
    await ledger.close()
    opened = await client.open(ledger.id)
    batches = await opened.ask("verifyBatches", first=0, last=299, size=ENTRY_BYTES, batchEntries=100, batchBytes=0)
    expect("entries", sum(batches), 300)
    await client.disconnect()


async def test_a_batch_read_beyond_the_last_entry_is_refused_in_v2(bookies: Bookies) -> None:
    client = await bookies.client("v2")
    ledger = await client.create()
    await ledger.write(3)
    beyond = ledger.ask("verifyBatches", first=3, last=3, size=ENTRY_BYTES, batchEntries=10, batchBytes=0)
    expect("answer", await error_of(beyond), "BKReadException")
    await client.disconnect()
