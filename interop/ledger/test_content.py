"""Ledgers that one side wrote and closed, read by the other: quorums, digests, sizes, and their metadata."""

from __future__ import annotations

from interop.bookie.client import E3_QW2_QA2, E3_QW3_QA2, ENTRY_BYTES, Protocol, Quorum, expect
from interop.bookie.client import error_of as apaches_error_of
from interop.ledger.conftest import Ledgers
from interop.ledger.ours import DIGESTS, create, error_of, open_ledger, verify, write
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerState

MANY = 5_000
IN_FLIGHT = 2_000
BOTH_PROTOCOLS: tuple[Protocol, ...] = ("v2", "v3")
NO_SUCH_LEDGER = "BKNoSuchLedgerExistsOnMetadataServerException"


async def test_what_we_write_is_read_by_us_and_by_apaches_client(ledgers: Ledgers, quorum: Quorum) -> None:
    async with ledgers.ours() as client:
        async with await create(client, quorum) as writer:
            await write(writer, MANY, in_flight=IN_FLIGHT)
            expect("fragments: no bookie was replaced", len(writer.metadata.fragments), 1)
        reader = await open_ledger(client, writer.ledger_id)
        await verify(reader, MANY - 1)
    for protocol in BOTH_PROTOCOLS:
        theirs = await ledgers.theirs(protocol)
        ledger = await theirs.open(writer.ledger_id)
        state = await ledger.state()
        expect("the end", (state["lac"], state["length"], state["closed"]), (MANY - 1, MANY * ENTRY_BYTES, True))
        await ledger.verify(MANY - 1)


async def test_what_apaches_client_writes_is_read_by_us(ledgers: Ledgers, quorum: Quorum) -> None:
    for protocol in BOTH_PROTOCOLS:
        theirs = await ledgers.theirs(protocol)
        ledger = await theirs.create(quorum)
        await ledger.write(MANY, in_flight=IN_FLIGHT)
        await ledger.close()
        for batches in (True, False):
            async with ledgers.ours(batch_reads=batches) as client:
                reader = await open_ledger(client, ledger.id)
                expect("the end", (reader.last_confirmed, reader.length), (MANY - 1, MANY * ENTRY_BYTES))
                await verify(reader, MANY - 1)


async def test_every_digest_of_either_side_is_verified_by_the_other(ledgers: Ledgers) -> None:
    theirs = await ledgers.theirs()
    async with ledgers.ours() as client:
        for name, digest in DIGESTS.items():
            async with await create(client, E3_QW3_QA2, digest_type=digest) as writer:
                await write(writer, 200, in_flight=50)
            await (await theirs.open(writer.ledger_id, digest=name)).verify(199)
            ledger = await theirs.create(E3_QW2_QA2, digest=name)
            await ledger.write(200, in_flight=50)
            await ledger.close()
            await verify(await open_ledger(client, ledger.id), 199)


async def test_entries_of_no_byte_and_of_a_megabyte_are_the_same_for_both(ledgers: Ledgers) -> None:
    theirs = await ledgers.theirs()
    async with ledgers.ours() as client:
        for size in (0, 1, 65_536, 2**20):
            async with await create(client, E3_QW3_QA2) as writer:
                await write(writer, 5, in_flight=2, size=size)
            await (await theirs.open(writer.ledger_id)).verify(4, size=size)
            ledger = await theirs.create(E3_QW2_QA2)
            await ledger.write(5, in_flight=2, size=size)
            await ledger.close()
            await verify(await open_ledger(client, ledger.id), 4, size=size)


async def test_a_ledger_without_entries_is_empty_for_both(ledgers: Ledgers) -> None:
    theirs = await ledgers.theirs()
    async with ledgers.ours() as client:
        async with await create(client, E3_QW3_QA2) as writer:
            pass
        state = await (await theirs.open(writer.ledger_id)).state()
        expect("the end of ours", (state["lac"], state["length"], state["closed"]), (-1, 0, True))
        ledger = await theirs.create()
        await ledger.close()
        reader = await open_ledger(client, ledger.id)
        expect("the end of Apache's", (reader.last_confirmed, reader.length), (-1, 0))


async def test_a_ledger_deleted_by_one_side_is_gone_for_the_other(ledgers: Ledgers) -> None:
    theirs = await ledgers.theirs()
    async with ledgers.ours() as client:
        async with await create(client, E3_QW3_QA2) as writer:
            await write(writer, 3)
        ledger = await theirs.open(writer.ledger_id)
        await ledger.ask("delete")
        expect("opened by us", await error_of(open_ledger(client, writer.ledger_id)), "NoSuchLedgerError")
        ledger = await theirs.create()
        await ledger.close()
        await client.delete(ledger.id)
        expect("opened by Apache's", await apaches_error_of(theirs.open(ledger.id)), NO_SUCH_LEDGER)


async def test_deferred_sync_of_ours_is_confirmed_by_force(ledgers: Ledgers) -> None:
    theirs = await ledgers.theirs("v3")
    async with ledgers.ours() as client:
        writer = await create(client, E3_QW3_QA2, deferred_sync=True)
        futures = [writer.enqueue(bytes(ENTRY_BYTES)) for _ in range(100)]
        for future in futures:
            await future
        expect("confirmed before force", writer.last_confirmed, -1)
        expect("confirmed after force", await writer.force(), 99)
        await writer.close()
        expect("last entry", (await (await theirs.open(writer.ledger_id)).state())["lac"], 99)


async def test_apaches_shell_shows_the_metadata_of_our_ledger(ledgers: Ledgers) -> None:
    async with ledgers.ours() as client:
        async with await create(client, E3_QW2_QA2, custom_metadata={"owner": b"a check"}) as writer:
            await write(writer, 7)
        ensemble = writer.metadata.fragments[0].ensemble
    said = await ledgers.shell("ledgermetadata", "-ledgerid", str(writer.ledger_id))
    for expected in (
        "ensembleSize=3", "writeQuorumSize=2", "ackQuorumSize=2", "state=CLOSED", "lastEntryId=6", "length=700",
        "digestType=CRC32C", "owner=", f"0=[{', '.join(ensemble)}]",
    ):  # fmt: skip
        assert expected in said, f"{expected} is missing: {said}"


async def test_apaches_shell_recovers_and_reads_a_ledger_that_we_left_open(ledgers: Ledgers) -> None:
    async with ledgers.ours() as client:
        writer = await create(client, E3_QW2_QA2, password=b"")
        await write(writer, 20)
        await writer.release()
        words = ["readledger", "-ledgerid", str(writer.ledger_id), "-firstentryid", "0", "-force-recovery"]
        said = await ledgers.shell(*words)
        found = [
            word.partition("=")[2] for word in said.replace("{", " ").replace(",", " ").split() if "entryId=" in word
        ]
        expect("entries", [int(entry_id.rstrip("}")) for entry_id in found], list(range(20)))
        metadata = await client.metadata(writer.ledger_id)
        expect("metadata", (metadata.state, metadata.last_entry_id, metadata.length), (LedgerState.CLOSED, 19, 2_000))
