"""Every copy is read from its own bookie, on a cluster of real bookies in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

import pytest
import pytest_asyncio

from magnetar.errors import NoSuchLedgerError
from magnetar.ids import BookieId, EntryId
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.quorum.sizes import write_set
from magnetar.spark.pipelines.replicas import Finding, ReplicaReads, What, keys_of, replica_ranges
from magnetar.spark.pipelines.scrub import make_plan, verify_ranges
from magnetar.testing.cluster import BookieCluster
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.messages import V3, AddEntry

pytestmark = pytest.mark.asyncio(loop_scope="module")

Spoil = Callable[[int, BookieId, bytes], bytes | None]
"""What a bookie gets in place of an entry; None: it gets nothing."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[BookieCluster]:
    async with BookieCluster(4) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def client(cluster: BookieCluster) -> AsyncIterator[LedgerClient]:
    async with LedgerClient(cluster.store, cluster.config, cluster.runtime, local=cluster.local) as made:
        yield made


async def write(client: LedgerClient, entries: int, spoil: Spoil, ensemble: int = 3, quorum: int = 3) -> LedgerMetadata:
    """A closed ledger whose copies are as `spoil` says."""
    writer = await client.create(ensemble_size=ensemble, write_quorum=quorum, ack_quorum=quorum)
    metadata = writer.metadata
    await writer.close()
    keys = keys_of(metadata)
    for entry_id in range(entries):
        payload = b"payload of %d" % entry_id
        sealed = keys.digest.seal(metadata.ledger_id, entry_id, entry_id - 1, 1, payload) + payload
        for position in write_set(ensemble, quorum, entry_id):
            bookie = metadata.fragments[0].ensemble[position]
            spoiled = spoil(entry_id, bookie, sealed)
            if spoiled is not None:
                await add(client, bookie, metadata, entry_id, spoiled)
    stored = await client.context.ledgers.read(metadata.ledger_id)
    closed = replace(stored.value, last_entry_id=EntryId(entries - 1), length=entries * 12)
    await client.context.ledgers.update(closed, stored.version)
    return closed


async def add(client: LedgerClient, bookie: BookieId, metadata: LedgerMetadata, entry_id: int, body: bytes) -> None:
    channel = await client.bookies.channel(bookie)
    request = AddEntry(metadata.ledger_id, entry_id, keys_of(metadata).master_key, body, version=V3)
    answer = await channel.request(request, timeout_s=5.0)
    assert answer.code is Code.EOK


async def scrub(client: LedgerClient, metadata: LedgerMetadata, range_bytes: int = 2**20) -> list[Finding]:
    reads = ReplicaReads(client, pauses_s=(0.0,))
    found: list[Finding] = []
    for wanted in replica_ranges(metadata, metadata.last_entry_id, range_bytes):
        found += await reads.verify(wanted, metadata)
    return found


def faults(found: list[Finding]) -> dict[tuple[int, str], str]:
    return {
        (entry_id, finding.bookie): finding.what.value
        for finding in found
        if finding.what is not What.VERIFIED
        for entry_id in range(finding.first_entry, finding.last_entry + 1)
    }


def verified(found: list[Finding]) -> int:
    return sum(finding.entries for finding in found if finding.what is What.VERIFIED)


def as_it_is(_entry_id: int, _bookie: BookieId, sealed: bytes) -> bytes:
    return sealed


@pytest.mark.parametrize(("ensemble", "quorum"), [(3, 3), (4, 2), (1, 1)])
async def test_a_ledger_that_is_whole_has_every_replica_verified(
    client: LedgerClient, ensemble: int, quorum: int
) -> None:
    metadata = await write(client, 50, as_it_is, ensemble, quorum)
    found = await scrub(client, metadata, range_bytes=100)
    assert faults(found) == {}
    assert verified(found) == 50 * quorum


@pytest.mark.parametrize(("ensemble", "quorum"), [(3, 3), (4, 2)])
async def test_each_bad_copy_is_told_with_its_bookie_though_other_copies_are_good(
    client: LedgerClient, ensemble: int, quorum: int
) -> None:
    planted: dict[tuple[int, str], str] = {}

    def spoil(entry_id: int, bookie: BookieId, sealed: bytes) -> bytes | None:
        if (entry_id, bookie) in planted or len(planted) >= 12 or entry_id % 3:
            return sealed
        kind = ("missing", "flipped", "cut")[len(planted) % 3]
        planted[entry_id, bookie] = "missing" if kind == "missing" else "damaged"
        if kind == "missing":
            return None
        return sealed[:-3] if kind == "cut" else sealed[:-1] + bytes([sealed[-1] ^ 1])

    metadata = await write(client, 40, spoil, ensemble, quorum)
    found = await scrub(client, metadata)
    assert faults(found) == planted
    assert verified(found) == 40 * quorum - len(planted)


async def test_neighbouring_missing_entries_are_one_range(client: LedgerClient) -> None:
    lost: Mapping[BookieId, range] = {}

    def spoil(entry_id: int, bookie: BookieId, sealed: bytes) -> bytes | None:
        nonlocal lost
        lost = lost or {bookie: range(5, 25)}
        return None if entry_id in lost.get(bookie, ()) else sealed

    metadata = await write(client, 30, spoil)
    [bookie] = lost
    bad = [finding for finding in await scrub(client, metadata) if finding.what is not What.VERIFIED]
    assert bad == [Finding(metadata.ledger_id, 5, 24, bookie, What.MISSING, 20)]


async def test_a_bookie_that_does_not_answer_is_not_taken_for_a_loss(
    cluster: BookieCluster, client: LedgerClient
) -> None:
    metadata = await write(client, 10, as_it_is)
    dead = metadata.fragments[0].ensemble[1]
    await cluster.kill(dead)
    try:
        found = await scrub(client, metadata)
    finally:
        await cluster.node(dead).start()
    assert faults(found) == {(entry_id, dead): "unreachable" for entry_id in range(10)}
    assert verified(found) == 20


async def test_a_replica_that_moved_while_the_scrub_ran_is_looked_for_where_it_is_now(
    cluster: BookieCluster, client: LedgerClient
) -> None:
    old = await write(client, 10, as_it_is)
    [spare] = [bookie for bookie in cluster.bookie_ids if bookie not in old.fragments[0].ensemble]
    keys = keys_of(old)
    for entry_id in range(10):
        payload = b"payload of %d" % entry_id
        sealed = keys.digest.seal(old.ledger_id, entry_id, entry_id - 1, 1, payload) + payload
        await add(client, spare, old, entry_id, sealed)
    ensemble = (spare, *old.fragments[0].ensemble[1:])
    await update(client.context.ledgers, replace(old, fragments=(Fragment(EntryId(0), ensemble),)))
    before = replace(old, fragments=(Fragment(EntryId(0), (BookieId("gone:1"), *old.fragments[0].ensemble[1:])),))
    found = await scrub(client, before)
    assert faults(found) == {}
    assert verified(found) == 30


async def test_a_ledger_that_is_deleted_meanwhile_is_no_loss(client: LedgerClient) -> None:
    metadata = await write(client, 5, lambda entry_id, bookie, sealed: None if entry_id == 3 else sealed)
    await client.delete(metadata.ledger_id)
    found = await scrub(client, metadata)
    assert faults(found) == {}


async def test_a_ledger_that_is_written_is_verified_as_far_as_it_is_confirmed(client: LedgerClient) -> None:
    writer = await client.create(ensemble_size=3)
    for _ in range(5):
        await writer.add(b"x")
    plan = await make_plan(client, [writer.ledger_id])
    ends = {wanted.last_entry for wanted, _ in plan.work}
    assert ends <= {3, 4}, "the last entry may be confirmed without a bookie knowing it yet"
    found = [finding async for findings in verify_ranges(client, plan.work) for finding in findings]
    assert faults(found) == {}
    await writer.close()


async def test_a_ledger_that_was_named_must_exist(client: LedgerClient) -> None:
    with pytest.raises(NoSuchLedgerError):
        await make_plan(client, [999_999])


async def update(ledgers: LedgerMetadataStore, metadata: LedgerMetadata) -> None:
    stored = await ledgers.read(metadata.ledger_id)
    await ledgers.update(metadata, stored.version)
