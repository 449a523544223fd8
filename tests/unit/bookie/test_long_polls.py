"""Tailing readers that wait at a bookie: what they cost others, and when their wait ends."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
from collections.abc import Awaitable, Callable

import pytest

from magnetar.errors import RemoteProtocolError
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import decode_response, encode_request
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import V3, AddEntry, AnyResponse, ReadEntry, ReadResponse, WriteLac
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
    """Returns `count` clients that wait for the LAC to move beyond 0."""
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


# --- what the LAC is after it was forgotten ---------------------------------------------------------------------------


async def restarted(node: SimNode) -> None:
    await node.stop()
    await node.start()


async def let_go(node: SimNode) -> None:
    table = node.bookie.table
    table.ledgers_max = 1
    for ledger_id in (2, 3):
        await table.load(ledger_id)
    gc.collect()
    assert table.find(1) is None


@pytest.mark.parametrize("forget", [restarted, let_go])
@pytest.mark.parametrize(
    ("lac_of_entry", "explicit_lac", "late_lac"),
    [(1, 2, None), (2, 1, None), (1, 2, 0), (2, None, 0)],
    ids=["explicit", "of the last entry", "explicit, old entry comes late", "of the last entry, old one comes late"],
)
def test_a_long_poll_knows_the_greatest_lac_that_was_told_before_the_ledger_was_forgotten(
    forget: Callable[[SimNode], Awaitable[None]], lac_of_entry: int, explicit_lac: int | None, late_lac: int | None
) -> None:
    async def test(node: SimNode) -> None:
        writer = await Client.connect(node.bookie.port)
        await add(writer, 2, lac_of_entry)
        if explicit_lac is not None:
            body = DIGEST.seal_lac(1, explicit_lac)
            assert (await writer.ask(WriteLac(1, explicit_lac, KEY, body))).code is Code.EOK
        await forget(node)
        client = await Client.connect(node.bookie.port)
        if late_lac is not None:
            await add(client, 1, late_lac)
        async with asyncio.timeout(1.0):
            answer = await client.ask(dataclasses.replace(POLL, previous_lac=1))
        assert isinstance(answer, ReadResponse)
        assert (answer.code, answer.max_lac, answer.entry_id) == (Code.EOK, 2, 2)

    on_a_node(test)
