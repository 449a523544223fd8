"""Writers whose caller chooses the entry ids, when callers leave, entries are refused, or the writer ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from magnetar.errors import EntryTooLargeError, LedgerClosedError, LedgerFencedError
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX
from tests.unit.ledger.writing import bodies, writer_world

pytestmark = pytest.mark.virtual_time

SECONDS = 10.0
"""For what must happen at once; the limit that it must not wait for is twice as long."""

any_order = pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])


@any_order
async def test_caller_that_leaves_does_not_move_the_entries_behind_its_own(order: Sequence[int]) -> None:
    async with writer_world(3, adds_in_flight_max=2) as world:
        writer = await world.client.create_advanced()
        for bookie in range(3):
            world.cluster.hang(bookie)
        adds = {entry_id: asyncio.ensure_future(writer.add(entry_id, b"entry-%d" % entry_id)) for entry_id in order}
        await until(lambda: writer._next == 3, "all have had their turn")
        blocked = asyncio.ensure_future(writer.add(3, b"entry-3"))
        last = asyncio.ensure_future(writer.add(4, b"entry-4"))
        await until(lambda: writer._next == 5, "all wait in line")
        adds[2].cancel()
        blocked.cancel()
        await asyncio.wait([adds[2], blocked])
        for bookie in range(3):
            world.cluster.wake(bookie)
        assert await asyncio.gather(adds[0], adds[1], last) == [0, 1, 4]
        await writer.close()
        assert await world.payloads(writer.writer) == bodies(0, 5)


async def test_entry_that_is_too_large_gives_its_id_back_although_it_would_have_to_wait_in_line() -> None:
    async with writer_world(3, adds_in_flight_max=1) as world:
        writer = await world.client.create_advanced()
        for bookie in range(3):
            world.cluster.hang(bookie)
        first = asyncio.ensure_future(writer.add(0, b"entry-0"))
        await until(lambda: writer._next == 1, "it is sent")
        with pytest.raises(EntryTooLargeError, match="make smaller entries"):
            await writer.add(1, bytes(FRAME_BYTES_MAX))
        third = asyncio.ensure_future(writer.add(2, b"entry-2"))
        second = asyncio.ensure_future(writer.add(1, b"entry-1"))
        for bookie in range(3):
            world.cluster.wake(bookie)
        assert await asyncio.gather(first, second, third) == [0, 1, 2]
        await writer.close()
        assert await world.payloads(writer.writer) == bodies(0, 3)


async def test_entry_that_is_too_large_is_refused_before_it_waits_for_its_turn() -> None:
    async with writer_world(3) as world, await world.client.create_advanced() as writer:
        async with asyncio.timeout(SECONDS):
            with pytest.raises(EntryTooLargeError):
                await writer.add(1, bytes(FRAME_BYTES_MAX))
        again = asyncio.ensure_future(writer.add(1, b"entry-1"))
        await asyncio.sleep(0)
        await writer.add(0, b"entry-0")
        assert await again == 1


async def test_entry_ahead_of_its_turn_fails_at_once_when_the_writer_was_fenced() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create_advanced()
        await writer.add(0, b"entry-0")
        early = asyncio.ensure_future(writer.add(5, b"early"))
        await asyncio.sleep(0)
        await world.client.recover(writer.ledger_id)
        with pytest.raises(LedgerFencedError):
            await writer.add(1, b"too late")
        async with asyncio.timeout(SECONDS):
            with pytest.raises(LedgerFencedError) as refused:
                await early
            with pytest.raises(LedgerFencedError):
                await writer.add(6, b"later still")
        assert not refused.value.outcome_unknown


async def test_entry_ahead_of_its_turn_fails_when_its_client_is_closed() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create_advanced()
        early = asyncio.ensure_future(writer.add(1, b"early"))
        await asyncio.sleep(0)
        await world.client.aclose()
        async with asyncio.timeout(SECONDS):
            with pytest.raises(LedgerClosedError):
                await early
