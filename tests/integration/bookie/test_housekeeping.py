"""Garbage collection and compaction of a whole bookie: seen by its clients, and after a restart."""

from __future__ import annotations

import asyncio

from magnetar.bookie.bookie import Bookie
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.runtime.system import SystemEntropy
from magnetar.storage.entry_log.compaction import Survey
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.messages import AddEntry, ReadEntry, ReadResponse
from tests.integration.bookie.conftest import DIGEST, KEY, Client, Node, entry


def metadata_of(node: Node) -> LedgerMetadataStore:
    return LedgerMetadataStore(node._store, BookKeeperPaths(), SystemEntropy())


def bookie_of(node: Node) -> Bookie:
    assert node.bookie is not None
    return node.bookie


async def create(node: Node, ledger_id: int) -> None:
    ensemble = (BookieId(bookie_of(node).bookie_id),)
    await metadata_of(node).create(
        LedgerMetadata(
            ledger_id=LedgerId(ledger_id),
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            fragments=(Fragment(0, ensemble),),
        )
    )


async def add(client: Client, ledger_id: int, entry_id: int, payload: bytes = b"payload") -> Code:
    return (await client.ask(AddEntry(ledger_id, entry_id, KEY, entry(ledger_id, entry_id, payload)))).code


async def read(client: Client, ledger_id: int, entry_id: int) -> ReadResponse:
    answer = await client.ask(ReadEntry(ledger_id, entry_id))
    assert isinstance(answer, ReadResponse)
    return answer


async def test_a_deleted_ledger_is_gone_for_clients_and_its_neighbour_is_not(node: Node, client: Client) -> None:
    for ledger_id in (1, 2):
        await create(node, ledger_id)
        assert await add(client, ledger_id, 0) is Code.EOK
    await bookie_of(node).flush()
    await metadata_of(node).delete(LedgerId(1), 0)
    await bookie_of(node).collector.collect()
    async for reader in node.lives(client):
        assert (await read(reader, 1, 0)).code is Code.ENOLEDGER
        assert (await read(reader, 2, 0)).code is Code.EOK


async def test_a_fenced_writer_stays_refused_after_its_ledger_was_deleted(node: Node, client: Client) -> None:
    await create(node, 1)
    assert await add(client, 1, 0) is Code.EOK
    await client.ask(ReadEntry(1, 0, fence=True, master_key=KEY))
    await metadata_of(node).delete(LedgerId(1), 0)
    await bookie_of(node).collector.collect()
    assert bookie_of(node).collector.garbage.statistics.deleted == 1
    async for writer in node.lives(client):
        assert await add(writer, 1, 1) is Code.EFENCED


async def test_compaction_while_clients_read_is_not_seen_by_them(node: Node, client: Client) -> None:
    payload = b"p" * 900
    for ledger_id in range(4):
        await create(node, ledger_id)
        for entry_id in range(20):
            assert await add(client, ledger_id, entry_id, payload) is Code.EOK
    await bookie_of(node).flush()
    client = await node.restart()  # So that the log is finished,
    await create(node, 9)
    assert await add(client, 9, 0) is Code.EOK  # and not the newest.
    await bookie_of(node).flush()
    for ledger_id in (1, 2, 3):
        await metadata_of(node).delete(LedgerId(ledger_id), 0)
    collector = bookie_of(node).collector
    await collector.collect()
    usages = await Survey(bookie_of(node)._storage).look(lambda *_: None)
    assert [usage.is_below(80) for usage in usages] == [True]
    compacting = asyncio.create_task(collector.compactor.compact(usages))
    for entry_id in [*range(20), *range(20)]:
        assert DIGEST.open(0, entry_id, bytes((await read(client, 0, entry_id)).body)).payload == payload
    await asyncio.wait_for(compacting, 20)
    assert collector.compactor.statistics.logs_removed == 1
    async for reader in node.lives(client):
        for entry_id in range(20):
            assert DIGEST.open(0, entry_id, bytes((await read(reader, 0, entry_id)).body)).payload == payload
