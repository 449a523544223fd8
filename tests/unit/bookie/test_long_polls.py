"""Tailing readers that wait at a bookie: what they cost others, and when their wait ends."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import RemoteProtocolError
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.client import decode_response, encode_request
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.messages import V3, AddEntry, AnyResponse, ReadEntry, ReadResponse
from magnetar.wire.bookkeeper.packet import LAST_ENTRY
from tests.unit.bookie.node_story import DIGEST, KEY
from tests.unit.bookie.one_node import metric, on_a_node
from tests.unit.bookie.sim_node import Client, SimNode

LONG_MS = 30_000
POLL = ReadEntry(1, LAST_ENTRY, previous_lac=0, timeout_ms=LONG_MS, piggyback=True)


def entry(ledger_id: int, entry_id: int, lac: int) -> bytes:
    return DIGEST.seal(ledger_id, entry_id, lac, 4, b"data") + b"data"


async def add(client: Client, entry_id: int, lac: int) -> None:
    assert (await client.ask(AddEntry(1, entry_id, KEY, entry(1, entry_id, lac)))).code is Code.EOK


async def polling(node: SimNode, count: int) -> tuple[list[Client], list[asyncio.Future[AnyResponse]]]:
    """So many clients that wait for the LAC to move beyond 0."""
    clients = [await Client.connect(node.bookie.port) for _ in range(count)]
    polls = [asyncio.ensure_future(client.ask(POLL)) for client in clients]
    await until(lambda: metric(node.bookie, "long_polls_waiting") == count, "all of them wait")
    return clients, polls


def test_readers_that_wait_for_the_lac_keep_neither_reads_nor_fences_waiting() -> None:
    async def test(node: SimNode) -> None:
        writer = await Client.connect(node.bookie.port)
        await add(writer, 0, -1)
        _, polls = await polling(node, 20)
        assert metric(node.bookie, "reads_in_progress") == 0
        other = await Client.connect(node.bookie.port)
        async with asyncio.timeout(1.0):
            assert (await other.ask(ReadEntry(1, 0))).code is Code.EOK
            assert (await other.ask(ReadEntry(2, LAST_ENTRY, fence=True, master_key=KEY))).code is Code.ENOENTRY
        await add(writer, 1, 0)
        await add(writer, 2, 1)
        for answer in await asyncio.gather(*polls):
            assert isinstance(answer, ReadResponse)
            assert (answer.code, answer.max_lac, answer.entry_id) == (Code.EOK, 1, 1)
        assert (metric(node.bookie, "long_polls_waiting"), metric(node.bookie, "reads_in_progress")) == (0, 0)

    on_a_node(test, bookie={"reads_in_progress_max": 5})


def test_a_reader_that_waits_is_forgotten_as_soon_as_its_connection_is_closed() -> None:
    async def test(node: SimNode) -> None:
        await add(await Client.connect(node.bookie.port), 0, -1)
        clients, polls = await polling(node, 10)
        for client in clients:
            client.close()
        async with asyncio.timeout(1.0):
            await until(lambda: not metric(node.bookie, "long_polls_waiting"), "nobody waits any more")
            await until(lambda: not node.bookie.reads._tasks, "nothing of them is left")
        ledger = node.bookie.table.find(1)
        assert ledger is not None
        assert not ledger.waiters
        for poll in polls:
            with pytest.raises(RemoteProtocolError):
                await poll

    on_a_node(test)


def test_more_readers_than_may_wait_at_once_are_refused_and_the_others_wait_on() -> None:
    async def test(node: SimNode) -> None:
        writer = await Client.connect(node.bookie.port)
        await add(writer, 0, -1)
        _, polls = await polling(node, 3)
        late = await Client.connect(node.bookie.port)
        assert (await late.ask(POLL)).code is Code.ETOOMANYREQUESTS
        assert metric(node.bookie, "refused_reads_total") == 1
        assert metric(node.bookie, "long_polls_waiting") == 3
        await add(writer, 1, 0)
        await add(writer, 2, 1)
        assert {answer.code for answer in await asyncio.gather(*polls)} == {Code.EOK}
        assert (await late.ask(POLL)).code is Code.EOK

    on_a_node(test, bookie={"long_polls_waiting_max": 3})


def test_the_polls_of_one_client_are_among_the_reads_that_it_may_have_waiting() -> None:
    async def test(node: SimNode) -> None:
        await add(await Client.connect(node.bookie.port), 0, -1)
        reader, writer = await asyncio.open_connection("127.0.0.1", node.bookie.port)
        for _ in range(5):
            writer.write(encode_request(POLL))
        await until(lambda: metric(node.bookie, "long_polls_waiting") == 5, "all of them wait")
        writer.write(encode_request(POLL))
        head = await reader.readexactly(4)
        frame = head + await reader.readexactly(int.from_bytes(head, "big"))
        decoded = decode_response(frame, 0, len(frame), V3)
        assert decoded is not None
        assert decoded.response.code is Code.ETOOMANYREQUESTS
        writer.close()

    on_a_node(test, bookie={"pending_reads_per_reader_max": 5})
