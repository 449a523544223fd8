"""Recovery beside busy writers, and with bookies that come back while it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.ids import EntryId
from magnetar.ledger.channels.connection import V2Connection
from magnetar.ledger.metadata import LedgerKeys
from magnetar.ledger.recovery.reads import RecoveryReads
from magnetar.ledger.recovery.recovery import WriteBack
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerState
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.digests import Entry
from tests.unit.ledger.worlds import World, ledger_world, length_up_to, payload_of

pytestmark = pytest.mark.virtual_time

_TRIES = 5  # More than a few quick ones.


async def filled(world: World, count: int) -> None:
    await world.create(E=3, Qw=3, Qa=2)
    for entry_id in range(count):
        await world.put(entry_id)


async def tried_again_and_again(world: World, number: int, work: asyncio.Future[Any]) -> None:
    """Returns when several connections to the bookie have failed, and the work continues."""
    way = world.context.bookies._dialers[world.cluster.bookie_ids[number]]
    await until(lambda: way._failures >= _TRIES or work.done(), "it was tried a few times")
    assert not work.done()


async def test_fence_gets_through_although_writers_fill_the_other_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ledger_world(3) as world:
        await filled(world, 3)
        with monkeypatch.context() as patch:
            patch.setattr(V2Connection, "is_writable", False)
            end = await recovery_without_entries_to_write_back(world)
        assert end == 2


async def recovery_without_entries_to_write_back(world: World) -> int:
    """Every bookie learns of it by the fence, and its last entry is read, in v3."""
    await world.put_explicit_lac(2, on=[0, 1, 2])
    return (await world.recover()).last_entry_id


async def test_fence_waits_for_bookies_that_come_back_in_time() -> None:
    async with ledger_world(3) as world:
        await filled(world, 3)
        await world.cluster.kill(0)
        await world.cluster.kill(1)
        recovering = asyncio.ensure_future(world.recover())
        await tried_again_and_again(world, 0, recovering)
        await world.cluster.restart(0)
        closed = await recovering
        assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 2)


async def test_read_of_an_entry_waits_for_bookies_that_come_back_in_time() -> None:
    async with ledger_world(3) as world:
        await filled(world, 3)
        await world.cluster.kill(0)
        await world.cluster.kill(1)
        until_s = asyncio.get_running_loop().time() + 20
        reads = RecoveryReads(world.stored.value, EntryId(3), world.keys, world.context, until_s)
        reading = asyncio.ensure_future(reads.next())
        await tried_again_and_again(world, 0, reading)
        await world.cluster.restart(0)
        assert await reading is None
        await reads.aclose()


# --- several of one process -------------------------------------------------------------------------------------------


def first_entry(keys: LedgerKeys) -> Entry:
    payload = payload_of(0)
    sealed = keys.digest.seal(keys.ledger_id, 0, -1, length_up_to(0), payload)
    return keys.digest.open(keys.ledger_id, 0, sealed + payload)


async def test_recoveries_that_begin_to_write_back_at_once_all_get_channels() -> None:
    async with ledger_world(3) as world:
        await filled(world, 1)
        entry = first_entry(world.keys)
        writing = [WriteBack(world.stored.value, world.keys, world.context, entry) for _ in range(3)]
        await asyncio.gather(*[each.open() for each in writing])
        assert [str(slot.error) for each in writing for slot in each._engine.slots if slot.channel is None] == []
        for each in writing:
            await each.aclose()


async def test_write_back_that_is_cancelled_while_it_connects_leaves_nothing_attached() -> None:
    async with ledger_world(3) as world:
        await filled(world, 1)
        world.cluster.hang(2)
        ways = world.context.bookies._dialers
        slow = world.cluster.bookie_ids[2]
        reach = world.context.bookies.channel
        gate = asyncio.Event()

        async def channel(bookie_id: str, **choices: int) -> object:
            if bookie_id == slow:
                await gate.wait()
            return await reach(bookie_id, **choices)  # type: ignore[arg-type]

        reach_nowait = world.context.bookies.channel_nowait

        def channel_nowait(bookie_id: str, **choices: int) -> object:
            return None if bookie_id == slow else reach_nowait(bookie_id, **choices)  # type: ignore[arg-type]

        world.context.bookies.channel = channel  # type: ignore[assignment, method-assign]
        world.context.bookies.channel_nowait = channel_nowait  # type: ignore[assignment, method-assign]
        writing = WriteBack(world.stored.value, world.keys, world.context, first_entry(world.keys))
        opening = asyncio.ensure_future(writing.open())
        await until(lambda: attached(world) == 2, "two are attached")
        opening.cancel()
        await asyncio.wait([opening])
        await asyncio.sleep(0)
        assert attached(world) == 0
        assert len(ways) == 3
        await writing.aclose()
        world.cluster.wake(2)


def attached(world: World) -> int:
    return sum(len(channel._writers) for way in world.context.bookies._dialers.values() for channel in way.channels)
