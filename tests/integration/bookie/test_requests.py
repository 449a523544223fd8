"""Every request that is not a plain run of adds or reads, and what a restart must not forget."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.config.bookie import BookieConfig
from magnetar.errors import ListenError
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.availability import decode_availability
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import (
    V2,
    AddEntry,
    Auth,
    AuthResponse,
    BatchRead,
    BatchReadResponse,
    ForceLedger,
    GetBookieInfo,
    GetBookieInfoResponse,
    ListEntries,
    ListEntriesResponse,
    ReadEntry,
    ReadLac,
    ReadLacResponse,
    ReadResponse,
    StartTls,
    WriteLac,
)
from tests.integration.bookie.conftest import DIGEST, KEY, Client, Node, entry

OTHER_KEY = b"o" * 20


async def add(client: Client, ledger_id: int, entry_id: int, payload: bytes = b"payload") -> None:
    answer = await client.ask(AddEntry(ledger_id, entry_id, KEY, entry(ledger_id, entry_id, payload)))
    assert answer.code is Code.EOK


async def read(client: Client, ledger_id: int, entry_id: int) -> ReadResponse:
    answer = await client.ask(ReadEntry(ledger_id, entry_id))
    assert isinstance(answer, ReadResponse)
    return answer


async def code_of_add(client: Client, ledger_id: int, entry_id: int, *, recovery: bool = False) -> Code:
    request = AddEntry(ledger_id, entry_id, KEY, entry(ledger_id, entry_id), recovery=recovery)
    return (await client.ask(request)).code


async def test_what_was_added_is_read_back_before_and_after_a_restart(node: Node, client: Client) -> None:
    await add(client, 1, 0, b"hello")
    async for reader in node.lives(client):
        answer = await read(reader, 1, 0)
        assert DIGEST.open(1, 0, bytes(answer.body)).payload == b"hello"


async def test_the_port_is_the_same_after_a_restart(node: Node) -> None:
    assert node.bookie is not None
    port = node.bookie.port
    await node.restart()
    assert node.bookie.port == port


async def test_a_missing_entry_and_a_missing_ledger_are_told_apart(client: Client) -> None:
    await add(client, 1, 0)
    assert (await read(client, 1, 7)).code is Code.ENOENTRY
    assert (await read(client, 99, 0)).code is Code.ENOLEDGER


async def test_the_last_entry_is_found_in_cache_and_in_the_index(node: Node, client: Client) -> None:
    for entry_id in range(5):
        await add(client, 1, entry_id)
    async for reader in node.lives(client):
        answer = await read(reader, 1, LAST_ENTRY)
        assert (answer.code, answer.entry_id) == (Code.EOK, LAST_ENTRY)
        assert DIGEST.open_last(1, bytes(answer.body)).entry_id == 4


async def test_a_compact_read_of_the_last_entry_is_answered_under_the_id_that_was_asked_for(node: Node) -> None:
    client = await node.client()
    await add(client, 1, 0)
    compact = await node.client()
    plain = await compact.ask(ReadEntry(1, LAST_ENTRY, version=V2))
    fencing = await compact.ask(ReadEntry(1, LAST_ENTRY, fence=True, master_key=KEY, version=V2))
    for answer in (plain, fencing):
        assert isinstance(answer, ReadResponse)
        assert (answer.code, answer.entry_id) == (Code.EOK, LAST_ENTRY)


async def test_a_wrong_key_is_refused(client: Client) -> None:
    await add(client, 1, 0)
    answer = await client.ask(AddEntry(1, 1, OTHER_KEY, entry(1, 1)))
    assert answer.code is Code.EUA
    fence = await client.ask(ReadEntry(1, LAST_ENTRY, fence=True, master_key=OTHER_KEY))
    assert fence.code is Code.EUA
    await add(client, 1, 1)


async def test_a_fence_refuses_plain_adds_for_ever_and_takes_recovery_adds(node: Node, client: Client) -> None:
    await add(client, 1, 0)
    answer = await client.ask(ReadEntry(1, LAST_ENTRY, fence=True, master_key=KEY))
    assert answer.code is Code.EOK
    async for writer in node.lives(client):
        assert await code_of_add(writer, 1, 1) is Code.EFENCED
    assert await code_of_add(writer, 1, 1, recovery=True) is Code.EOK
    assert (await read(writer, 1, 1)).code is Code.EOK


async def test_a_ledger_never_seen_here_is_fenced_before_no_is_said(node: Node, client: Client) -> None:
    answer = await client.ask(ReadEntry(7, LAST_ENTRY, fence=True, master_key=KEY))
    assert answer.code in (Code.ENOENTRY, Code.ENOLEDGER)
    async for writer in node.lives(client):
        assert await code_of_add(writer, 7, 0) is Code.EFENCED


async def test_two_who_fence_at_once_are_both_answered(node: Node, client: Client) -> None:
    await add(client, 1, 0)
    other = await node.client()
    request = ReadEntry(1, LAST_ENTRY, fence=True, master_key=KEY)
    answers = await asyncio.gather(client.ask(request), other.ask(request))
    assert [answer.code for answer in answers] == [Code.EOK, Code.EOK]


async def test_an_explicit_lac_is_kept_over_a_restart(node: Node, client: Client) -> None:
    await add(client, 1, 0)
    body = DIGEST.seal_lac(1, 5)
    assert (await client.ask(WriteLac(1, 5, KEY, body))).code is Code.EOK
    async for reader in node.lives(client):
        answer = await reader.ask(ReadLac(1))
        assert isinstance(answer, ReadLacResponse)
        assert answer.lac_body == body
        assert answer.last_entry_body is not None


async def test_a_long_poll_ends_when_the_lac_moves(node: Node, client: Client) -> None:
    await add(client, 1, 0)
    tail = await node.client()
    waiting = asyncio.ensure_future(
        tail.ask(ReadEntry(1, LAST_ENTRY, previous_lac=0, timeout_ms=10_000, piggyback=True), seconds=15)
    )
    assert node.bookie is not None
    table = node.bookie.table
    await until(lambda: (ledger := table.find(1)) is not None and ledger.waiters, "the reader waits")
    await add(client, 1, 1)
    assert not waiting.done()
    await add(client, 1, 2)
    answer = await waiting
    assert isinstance(answer, ReadResponse)
    assert (answer.code, answer.max_lac, answer.entry_id) == (Code.EOK, 1, 1)
    assert DIGEST.open(1, 1, bytes(answer.body)).payload == b"payload"


async def test_a_long_poll_whose_time_is_over_gets_the_lac_as_it_is(client: Client) -> None:
    await add(client, 1, 0)
    await add(client, 1, 1)
    answer = await client.ask(ReadEntry(1, LAST_ENTRY, previous_lac=5, timeout_ms=20, piggyback=True))
    assert isinstance(answer, ReadResponse)
    assert (answer.code, answer.max_lac) == (Code.EOK, 0)


async def test_force_answers_when_deferred_adds_are_durable(node: Node, client: Client) -> None:
    answer = await client.ask(AddEntry(1, 0, KEY, entry(1, 0), deferred_sync=True))
    assert answer.code is Code.EOK
    assert (await client.ask(ForceLedger(1))).code is Code.EOK
    assert node.bookie is not None
    assert node.bookie.adds.in_progress == 0


async def test_bookie_info_tells_room_on_the_disk(client: Client) -> None:
    answer = await client.ask(GetBookieInfo())
    assert isinstance(answer, GetBookieInfoResponse)
    assert answer.total_disk_bytes is not None
    assert answer.free_disk_bytes is not None
    assert 0 < answer.free_disk_bytes <= answer.total_disk_bytes


async def test_the_entries_of_a_ledger_are_listed_with_their_gaps(node: Node, client: Client) -> None:
    for entry_id in (0, 1, 2, 5, 9):
        await add(client, 1, entry_id)
    async for reader in node.lives(client):
        answer = await reader.ask(ListEntries(1))
        assert isinstance(answer, ListEntriesResponse)
        assert answer.availability is not None
        groups = decode_availability(answer.availability)
        assert sorted(entry_id for group in groups for entry_id in group) == [0, 1, 2, 5, 9]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_batch_read_gives_entries_without_a_gap_within_its_limits(
    node: Node, client: Client, restarted: bool
) -> None:
    for entry_id in (0, 1, 2, 3, 5):
        await add(client, 1, entry_id, bytes(1_000))
    reader = await (node.restart() if restarted else node.client())

    async def batch(count: int, size: int) -> int:
        answer = await reader.ask(BatchRead(1, 0, 77, count, size, version=V2))
        assert isinstance(answer, BatchReadResponse)
        assert (answer.code, answer.request_id) == (Code.EOK, 77)
        return len(answer.bodies)

    assert [await batch(3, 1_000_000), await batch(0, 1_000_000), await batch(10, 2_500), await batch(10, 10)] == [
        3, 4, 2, 1,
    ]  # fmt: skip


async def test_there_is_no_authentication_and_the_client_is_told_so(client: Client) -> None:
    answer = await client.ask(Auth("any", b"thing"))
    assert isinstance(answer, AuthResponse)
    assert answer.code is Code.EOK


async def test_tls_is_refused_in_the_protocols_own_words(client: Client) -> None:
    assert (await client.ask(StartTls())).code is Code.EBADREQ


async def test_many_entries_survive_flushes_rolls_and_a_restart(node: Node, client: Client) -> None:
    for entry_id in range(300):
        await add(client, 1 + entry_id % 3, entry_id, f"entry {entry_id}".encode() * 60)
    async for reader in node.lives(client):
        for entry_id in range(300):
            answer = await read(reader, 1 + entry_id % 3, entry_id)
            expected = f"entry {entry_id}".encode() * 60
            assert DIGEST.open(1 + entry_id % 3, entry_id, bytes(answer.body)).payload == expected


async def test_a_port_that_is_taken_is_said_with_what_to_do(node: Node, tmp_path: Path) -> None:
    assert node.bookie is not None
    twin = BookieConfig(dir=str(tmp_path / "twin"), port=node.bookie.port)
    with pytest.raises(ListenError, match=r"cannot listen on .*--port"):
        await node.open_with(twin)
