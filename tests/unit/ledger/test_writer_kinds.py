"""Writers that differ: deferred sync, explicit LAC, entry ids chosen by the caller."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import (
    AddTimeoutError,
    DuplicateEntryError,
    LedgerClosedError,
    WriterBusyError,
    WriterFailedError,
)
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerState
from magnetar.testing.waiting import until
from tests.unit.ledger.writing import bodies, ensembles, writer_world

pytestmark = pytest.mark.virtual_time

# --- deferred sync ----------------------------------------------------------------------------------------------------


async def test_lac_of_deferred_adds_stands_still_until_they_are_forced() -> None:
    async with writer_world(3) as world, await world.client.create(deferred_sync=True) as writer:
        assert await asyncio.gather(*[writer.add(body) for body in bodies(0, 5)]) == [0, 1, 2, 3, 4]
        assert writer.last_confirmed == -1
        assert await writer.force() == 4
        assert writer.last_confirmed == 4
        await writer.add(b"entry-5")
        assert writer.last_confirmed == 4


async def test_force_asks_only_bookies_that_have_an_entry() -> None:
    async with (
        writer_world(4) as world,
        await world.client.create(ensemble_size=4, write_quorum=2, ack_quorum=2, deferred_sync=True) as writer,
    ):
        assert await writer.force() == -1
        await writer.add(b"on two of four")
        assert await writer.force() == 0


async def test_close_forces_deferred_adds() -> None:
    async with writer_world(3) as world:
        async with await world.client.create(deferred_sync=True) as writer:
            await asyncio.gather(*[writer.add(body) for body in bodies(0, 20)])
        assert await world.payloads(writer) == bodies(0, 20)


async def test_failed_bookie_ends_a_writer_with_deferred_sync_and_what_was_forced_stays() -> None:
    async with writer_world(4) as world:
        writer = await world.client.create(deferred_sync=True)
        await asyncio.gather(*[writer.add(body) for body in bodies(0, 3)])
        await writer.force()
        await writer.add(b"not forced")
        await world.cluster.kill(ensembles(writer)[0][1][0])
        await asyncio.gather(*[writer.add(b"undecided") for _ in range(3)], return_exceptions=True)
        await until(lambda: writer.failure is not None, "the writer failed")
        assert isinstance(writer.failure, WriterFailedError)
        with pytest.raises(WriterFailedError, match="cannot be replaced"):
            await writer.force()
        await writer.close()
        stored = await world.client.metadata(writer.ledger_id)
        assert (stored.state, stored.last_entry_id) == (LedgerState.CLOSED, 2)
        assert stored.length == sum(map(len, bodies(0, 3)))
        assert await world.payloads(writer) == bodies(0, 3)


async def test_bookie_that_restarts_while_nothing_is_in_flight_ends_a_writer_with_deferred_sync() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create(deferred_sync=True)
        await writer.add(b"not forced")
        await until(lambda: not writer._engine.unanswered, "everybody answered")
        await world.cluster.kill(0)
        await until(lambda: writer.failure is not None, "the writer failed")
        await writer.close()
        assert (await world.client.metadata(writer.ledger_id)).last_entry_id == -1


async def test_force_without_deferred_sync_has_nothing_to_do() -> None:
    async with writer_world(3) as world, await world.client.create() as writer:
        await writer.add(b"durable")
        assert await writer.force() == 0


# --- explicit LAC -----------------------------------------------------------------------------------------------------


async def test_idle_writer_tells_readers_of_its_last_entry() -> None:
    async with writer_world(3, explicit_lac_interval_ms=20) as world, await world.client.create() as writer:
        await asyncio.gather(*[writer.add(body) for body in bodies(0, 5)])
        reader = await world.client.open_no_recovery(writer.ledger_id)

        async def knows_all() -> bool:
            await reader.refresh_lac()
            return reader.last_confirmed == 4

        await until(knows_all, "the reader knows the last entry")
        await until(lambda: writer._explicit_lac._sent_lac == 4, "enough bookies have it")


async def test_without_an_interval_the_last_entry_is_told_by_the_next() -> None:
    async with writer_world(3) as world, await world.client.create(ack_quorum=3) as writer:
        await asyncio.gather(*[writer.add(body) for body in bodies(0, 5)])
        reader = await world.client.open_no_recovery(writer.ledger_id)
        await reader.refresh_lac()
        assert reader.last_confirmed < 4
        await writer.add(b"entry-5")
        await reader.refresh_lac()
        assert reader.last_confirmed == 4


async def test_explicit_lac_that_too_few_bookies_heard_is_told_again() -> None:
    async with writer_world(3, explicit_lac_interval_ms=20, add_timeout_ms=200) as world:
        writer = await world.client.create(ack_quorum=2)
        await writer.add(b"one")
        await until(lambda: not writer._engine.unanswered, "everybody answered")
        for bookie in (0, 1, 2):
            world.cluster.hang(bookie)
        await until(lambda: writer._explicit_lac._task is not None or writer._explicit_lac._sent_lac == 0, "it is told")
        for bookie in (0, 1, 2):
            world.cluster.wake(bookie)
        await until(lambda: writer._explicit_lac._sent_lac == 0, "enough bookies have it")
        await writer.close()


async def test_readers_are_told_of_what_was_forced_when_the_writer_was_idle_before() -> None:
    async with (
        writer_world(3, explicit_lac_interval_ms=20) as world,
        await world.client.create(deferred_sync=True) as writer,
    ):
        for body in bodies(0, 3):
            await writer.add(body)
        await until(lambda: writer._explicit_lac._timer is None, "it was looked, and nothing was to be told")
        assert await writer.force() == 2
        reader = await world.client.open_no_recovery(writer.ledger_id)

        async def knows_all() -> bool:
            return await reader.refresh_lac() == 2

        await until(knows_all, "the reader knows the last entry")


# --- entry ids of the caller ------------------------------------------------------------------------------------------


async def test_entries_added_in_any_order_are_acknowledged_in_order() -> None:
    async with writer_world(3) as world:
        done: list[int] = []
        async with await world.client.create_advanced() as writer:
            adds = []
            for entry_id in (3, 1, 4, 0, 2, 5):
                add = asyncio.ensure_future(writer.add(entry_id, b"entry-%d" % entry_id))
                add.add_done_callback(lambda add: done.append(add.result()))
                adds.append(add)
            assert await asyncio.gather(*adds) == [3, 1, 4, 0, 2, 5]
            assert sorted(done) == [0, 1, 2, 3, 4, 5]
        assert await world.payloads(writer.writer) == bodies(0, 6)


async def test_entry_before_its_turn_is_not_acknowledged() -> None:
    async with writer_world(3) as world, await world.client.create_advanced() as writer:
        early = asyncio.ensure_future(writer.add(1, b"entry-1"))
        await asyncio.sleep(0)
        assert writer.writer.last_pushed == -1
        assert await writer.add(0, b"entry-0") == 0
        assert await early == 1


async def test_entry_id_can_be_used_once() -> None:
    async with writer_world(3) as world, await world.client.create_advanced() as writer:
        await writer.add(0, b"entry-0")
        with pytest.raises(DuplicateEntryError, match="entry 0"):
            await writer.add(0, b"again")
        waiting = asyncio.ensure_future(writer.add(2, b"entry-2"))
        await asyncio.sleep(0)
        with pytest.raises(DuplicateEntryError, match="entry 2"):
            await writer.add(2, b"again")
        with pytest.raises(DuplicateEntryError, match="begin at 0"):
            await writer.add(-1, b"never")
        await writer.add(1, b"entry-1")
        await waiting


async def test_gap_that_is_never_filled_fails_the_waiting_add_which_may_be_repeated() -> None:
    async with writer_world(3, add_quorum_timeout_ms=200) as world, await world.client.create_advanced() as writer:
        with pytest.raises(AddTimeoutError, match="entry 0 has not been added"):
            await writer.add(1, b"entry-1")
        again = asyncio.ensure_future(writer.add(1, b"entry-1"))
        await asyncio.sleep(0)
        await writer.add(0, b"entry-0")
        assert await again == 1


async def test_only_so_many_entries_wait_for_their_turn() -> None:
    async with writer_world(3, adds_in_flight_max=2) as world, await world.client.create_advanced() as writer:
        waiting = [asyncio.ensure_future(writer.add(entry_id, b"early")) for entry_id in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(WriterBusyError, match="wait for entry 0"):
            await writer.add(3, b"too many")
        await writer.add(0, b"entry-0")
        assert await asyncio.gather(*waiting) == [1, 2]


async def test_entries_that_wait_for_their_turn_fail_when_the_ledger_is_closed() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create_advanced()
        await writer.add(0, b"entry-0")
        early = asyncio.ensure_future(writer.add(2, b"entry-2"))
        await asyncio.sleep(0)
        await writer.close()
        with pytest.raises(WriterBusyError, match="was not sent"):
            await early
        with pytest.raises(LedgerClosedError):
            await writer.add(1, b"late")
        assert await world.payloads(writer.writer) == [b"entry-0"]
