"""Writers that wait for room: each wait has an end."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.ledger.channels.channel import Channel
from magnetar.testing.waiting import until
from tests.unit.ledger.test_empty_slots import writer_with_an_empty_slot
from tests.unit.ledger.writing import ensembles, writer_world

pytestmark = pytest.mark.virtual_time

SECONDS = 10.0
"""For what must happen; nothing here takes a second."""


async def test_close_ends_although_the_last_one_in_line_has_left() -> None:
    async with writer_world(3, adds_behind_max=1, slow_bookie_wait_ms=60_000, add_timeout_ms=60_000) as world:
        writer = await world.client.create(ack_quorum=2)
        await writer.add(b"connected")
        slow = ensembles(writer)[0][1][2]
        world.cluster.hang(slow)
        while writer.has_room:
            await writer.add(b"without it")
        waiting = asyncio.ensure_future(writer.add(b"in line"))
        await until(lambda: writer._queue, "it waits in line")
        waiting.cancel()
        closing = asyncio.ensure_future(writer.close())
        await until(lambda: writer._quiet is not None, "the close waits for the line")
        world.cluster.wake(slow)
        async with asyncio.timeout(SECONDS):
            await closing


async def test_writer_does_not_wait_for_ever_for_a_channel_that_another_ledger_fills(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bookie answers all that this writer has sent, so nothing is overdue."""
    async with writer_world(4, slow_bookie_wait_ms=200) as world:
        writer = await world.client.create(ack_quorum=2)
        engine = writer._engine
        await writer.add(b"connected")
        await until(lambda: not engine.unanswered and engine._timer is None, "nothing is waited for")
        full = engine.slots[2].channel
        monkeypatch.setattr(
            Channel, "is_writable", property(lambda channel: channel is not full and channel._v2.is_writable)
        )
        await writer.add(b"sent")
        assert not writer.has_room
        async with asyncio.timeout(SECONDS):
            assert await writer.add(b"in line") == 2
        assert writer.statistics().bookies_failed == 1
        await writer.close()


async def test_writer_does_not_wait_for_ever_for_a_bookie_that_is_back_and_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others confirm everything before it is back, so that nothing was waited for when it sits down."""
    async with (
        writer_world(4, slow_bookie_wait_ms=200) as world,
        writer_with_an_empty_slot(world, monkeypatch) as (writer, door),
    ):
        engine = writer._engine
        back = ensembles(writer)[0][1][0]
        await writer.add(b"by two")
        await until(lambda: engine._timer is None, "nothing is waited for")
        monkeypatch.setattr(
            Channel,
            "is_writable",
            property(lambda channel: channel.bookie_id != back and channel._v2.is_writable),
        )
        door.open()
        await until(lambda: not writer.has_room, "it is back, and gets what it is owed")
        try:
            async with asyncio.timeout(SECONDS):
                assert await writer.add(b"in line") == 2
                await writer.close()
        finally:
            await writer.release()  # Otherwise a close that waits forever would be the last sign of it.
        assert writer.statistics().bookies_failed == 1
