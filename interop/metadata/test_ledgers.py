"""Ledgers on a real ZooKeeper: stored by one side, read, changed, listed and deleted by the other; ids from both."""

from __future__ import annotations

from dataclasses import replace

from interop.comparing import same
from interop.java_program import ApacheError
from interop.metadata.conftest import Cluster, Metadata
from interop.metadata.fields import as_stored, ledger_fields
from interop.metadata.samples import FULL, LEDGER_IDS, fragments, ledgers
from magnetar.errors import BadVersionError, LedgerExistsError
from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.bookkeeper.ledger_metadata import FormatVersion, Fragment, LedgerMetadata, LedgerState

OPEN = replace(FULL, state=LedgerState.OPEN, last_entry_id=EntryId(-1), length=0)


async def _cluster(metadata: Metadata) -> Cluster:
    cluster = await metadata.new_place()
    await init_cluster(metadata.store, cluster.paths, metadata.runtime.entropy)
    await metadata.apache.ask("openLedgers")
    return cluster


def _numbered() -> list[LedgerMetadata]:
    """Every sample under an id of its own."""
    return [replace(sample, ledger_id=LedgerId(1_000 + n)) for n, (_, sample) in enumerate(ledgers())]


async def test_apache_reads_every_field_of_the_ledgers_that_we_stored(metadata: Metadata) -> None:
    cluster = await _cluster(metadata)
    for sample in _numbered():
        stored = await cluster.ledgers.create(sample)
        ours = await cluster.ledgers.read(sample.ledger_id)
        theirs = await metadata.apache.ask("readLedger", ledgerId=sample.ledger_id)
        same(f"ledger {sample.ledger_id}", ledger_fields(ours.value), theirs["metadata"])
        same("version", stored.version, theirs["version"])
        expected = ledger_fields(as_stored(stored.value, ours.value.ctime_ms))
        same(f"ledger {sample.ledger_id} as stored", ledger_fields(ours.value), expected)


async def test_we_read_every_field_of_the_ledgers_that_apache_stored(metadata: Metadata) -> None:
    cluster = await _cluster(metadata)
    for sample in _numbered():
        await metadata.apache.ask("createLedger", metadata=ledger_fields(sample))
        theirs = (await metadata.apache.ask("readLedger", ledgerId=sample.ledger_id))["metadata"]
        await metadata.store.sync()
        ours = await cluster.ledgers.read(sample.ledger_id)
        same(f"ledger {sample.ledger_id}", ledger_fields(ours.value), theirs)
        token = ours.value.c_token  # Chosen by the creator.
        expected = as_stored(replace(sample, c_token=token), ours.value.ctime_ms)
        same(f"ledger {sample.ledger_id} as stored", ledger_fields(ours.value), ledger_fields(expected))


async def test_ledgers_with_ids_beyond_32_bits_are_found_by_both_sides(metadata: Metadata) -> None:
    cluster = await _cluster(metadata)
    for n, ledger_id in enumerate(LEDGER_IDS):
        sample = replace(OPEN, ledger_id=ledger_id)
        if n % 2:
            await metadata.apache.ask("createLedger", metadata=ledger_fields(sample))
        else:
            await cluster.ledgers.create(sample)
    await metadata.store.sync()
    same("listed by us", [ledger_id async for ledger_id in cluster.ledgers.list()], LEDGER_IDS)
    same("listed by Apache", sorted(await metadata.apache.ask("listLedgers")), LEDGER_IDS)
    for ledger_id in LEDGER_IDS:
        theirs = (await metadata.apache.ask("readLedger", ledgerId=ledger_id))["metadata"]
        same(f"ledger {ledger_id}", ledger_fields((await cluster.ledgers.read(ledger_id)).value), theirs)


async def test_a_ledger_changed_in_turn_by_both_sides_keeps_every_field_in_every_version(metadata: Metadata) -> None:
    cluster = await _cluster(metadata)
    for version in (FormatVersion.TEXT_PROTOBUF, FormatVersion.BINARY_PROTOBUF, FormatVersion.TEXT):
        ledger_id = LedgerId(100 + version)
        await cluster.ledgers.create(replace(OPEN, ledger_id=ledger_id, format_version=version))
        new = [str(b) for b in fragments(1)[0].ensemble]
        await metadata.apache.ask("addFragment", ledgerId=ledger_id, firstEntryId=5_000_000, ensemble=new)
        await metadata.store.sync()
        ours = await cluster.ledgers.read(ledger_id)
        same("version", ours.value.format_version, version)
        added = Fragment(EntryId(5_000_001), tuple(BookieId(f"new-{n}") for n in range(3)))
        await cluster.ledgers.update(replace(ours.value, fragments=(*ours.value.fragments, added)), ours.version)
        closed = await metadata.apache.ask("closeLedger", ledgerId=ledger_id, lastEntryId=6_000_000, length=77)
        await metadata.store.sync()
        final = await cluster.ledgers.read(ledger_id)
        # Apache's builder drops the token when it changes a ledger; nobody asks for it after the creation.
        expected = replace(
            ours.value,
            fragments=(*ours.value.fragments, added),
            state=LedgerState.CLOSED,
            last_entry_id=EntryId(6_000_000),
            length=77,
            c_token=0,
        )
        same(f"version {version}", ledger_fields(final.value), ledger_fields(expected))
        same("node version", final.version, closed["version"])
        same(f"version {version} for Apache", ledger_fields(final.value), closed["metadata"])


async def test_a_compare_and_set_that_lost_the_race_against_apache_fails(metadata: Metadata) -> None:
    cluster = await _cluster(metadata)
    stored = await cluster.ledgers.create(replace(OPEN, ledger_id=LedgerId(1)))
    await metadata.apache.ask("closeLedger", ledgerId=1, lastEntryId=5, length=50)
    try:
        await cluster.ledgers.update(replace(stored.value, state=LedgerState.IN_RECOVERY), stored.version)
    except BadVersionError:
        return
    raise AssertionError("a change made by Apache was overwritten")


async def test_neither_side_creates_a_ledger_that_the_other_has(metadata: Metadata) -> None:
    cluster = await _cluster(metadata)
    await cluster.ledgers.create(replace(OPEN, ledger_id=LedgerId(1)))
    await metadata.apache.ask("createLedger", metadata=ledger_fields(replace(OPEN, ledger_id=LedgerId(2))))
    try:
        await metadata.apache.ask("createLedger", metadata=ledger_fields(replace(OPEN, ledger_id=LedgerId(1))))
        raise AssertionError("Apache created a ledger that we had")
    except ApacheError as error:
        same("Apache's answer", "BKLedgerExistException" in str(error), True)
    try:
        await cluster.ledgers.create(replace(OPEN, ledger_id=LedgerId(2)))
        raise AssertionError("we created a ledger that Apache had")
    except LedgerExistsError:
        pass


async def test_a_ledger_deleted_by_either_side_is_gone_with_its_empty_directories(metadata: Metadata) -> None:
    cluster = await _cluster(metadata)
    before = await metadata.store.children(cluster.paths.root)
    for ledger_id in (LedgerId(3), LedgerId(2**40)):
        ours = await cluster.ledgers.create(replace(OPEN, ledger_id=ledger_id))
        await metadata.apache.ask("removeLedger", ledgerId=ledger_id, version=ours.version)
        await metadata.apache.ask("createLedger", metadata=ledger_fields(replace(OPEN, ledger_id=ledger_id)))
        await metadata.store.sync()
        await cluster.ledgers.delete(ledger_id, (await cluster.ledgers.read(ledger_id)).version)
        same(f"listed by Apache after {ledger_id}", await metadata.apache.ask("listLedgers"), [])
        same(f"nodes after {ledger_id}", await metadata.store.children(cluster.paths.root), before)


async def test_ids_generated_in_turn_by_both_sides_never_collide(metadata: Metadata) -> None:
    cluster = await _cluster(metadata)
    ids = [await metadata.apache.ask("nextLedgerId") if n % 2 else await cluster.ids.next_id() for n in range(60)]
    same("short ids", ids, list(range(60)))
    left = await metadata.store.children(cluster.paths.short_ids)
    assert len(left) <= 1, f"generator nodes are left behind: {left}"  # Apache deletes its last one in the background.


async def test_ids_beyond_32_bits_generated_in_turn_by_both_sides_never_collide(metadata: Metadata) -> None:
    for we_begin in (True, False):
        cluster = await metadata.new_place()
        await init_cluster(metadata.store, cluster.paths, metadata.runtime.entropy)
        await metadata.store.create(cluster.paths.long_ids)  # As if the short ids were used up.
        await metadata.apache.ask("openLedgers")
        turns = [(n % 2 == 0) is we_begin for n in range(60)]
        ids = [await cluster.ids.next_id() if ours else await metadata.apache.ask("nextLedgerId") for ours in turns]
        same("long ids", ids, [2**32 + n for n in range(60)])
        await metadata.store.create(f"{cluster.paths.long_ids}/HOB-0000000007")  # As if six directories were used up.
        await metadata.apache.ask("openLedgers")
        ids = [await cluster.ids.next_id() if ours else await metadata.apache.ask("nextLedgerId") for ours in turns]
        same("long ids of another directory", ids, [7 * 2**32 + n for n in range(60)])
