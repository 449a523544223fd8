"""A bookie that is stopped in order: what it has taken is answered before its connections are closed."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import RemoteProtocolError
from magnetar.runtime.framed_connection import UNDELIVERED
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import AnyRequest, ForceLedger, ReadEntry, WriteLac
from tests.unit.bookie.node_story import DIGEST, KEY
from tests.unit.bookie.one_node import metric, on_a_node, slow, written
from tests.unit.bookie.sim_node import Client, SimNode

LEDGER = 1


@pytest.mark.parametrize(
    "request_",
    [
        ReadEntry(LEDGER, 7),
        ReadEntry(LEDGER, LAST_ENTRY, fence=True, master_key=KEY),
        WriteLac(LEDGER, 3, KEY, DIGEST.seal_lac(LEDGER, 3)),
        ForceLedger(LEDGER),
    ],
    ids=["read", "fence", "explicit LAC", "force"],
)
def test_a_request_that_was_taken_is_answered_before_the_bookie_stops(request_: AnyRequest) -> None:
    async def test(node: SimNode) -> None:
        await written(node, LEDGER, 60)
        await node.bookie.flush()
        client = await Client.connect(node.bookie.port)
        slow(node.journal, *node.ledgers, seconds=0.1)
        asked = asyncio.ensure_future(client.ask(request_))
        await until(lambda: metric(node.bookie, "reads_in_progress"), "it was taken")
        await node.stop()
        assert (await asked).code is Code.EOK

    on_a_node(test, storage={"read_cache_bytes_max": 0})


def test_a_bookie_that_is_stopped_does_not_wait_for_readers_of_what_is_not_written_yet() -> None:
    async def test(node: SimNode) -> None:
        await written(node, LEDGER, 60)
        client = await Client.connect(node.bookie.port)
        poll = ReadEntry(LEDGER, LAST_ENTRY, previous_lac=1_000_000, timeout_ms=30_000, piggyback=True)
        asked = asyncio.ensure_future(client.ask(poll))
        await until(lambda: metric(node.bookie, "long_polls_waiting"), "the reader waits")
        async with asyncio.timeout(5.0):
            await node.stop()
        with pytest.raises(RemoteProtocolError):
            await asked

    on_a_node(test)


def test_a_bookie_that_is_stopped_does_not_wait_for_long_for_a_client_that_takes_no_answers() -> None:
    async def test(node: SimNode) -> None:
        await written(node, LEDGER, 60)
        client = await Client.connect(node.bookie.port)
        await client.ask(ForceLedger(LEDGER))
        (connection,) = node.bookie._requests.connections
        asked = asyncio.ensure_future(client.ask(ReadEntry(LEDGER, 7)))
        connection.pause_writing()
        connection.release(UNDELIVERED)  # It brought one more request before it was held.
        await until(lambda: metric(node.bookie, "reads_in_progress"), "it was taken")
        async with asyncio.timeout(30.0):
            await node.stop()
        with pytest.raises(RemoteProtocolError):
            await asked

    on_a_node(test, bookie={"unwritable_wait_ms": 3_600_000})
