"""Writers on real bookies in this process, while bookies fail."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from magnetar.bookie.read_only import ReadOnlyReason
from magnetar.errors import (
    AddTimeoutError,
    LedgerFencedError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    WriterFailedError,
)
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerState
from magnetar.runtime.backoff import Backoff
from magnetar.testing.waiting import until
from tests.unit.ledger.writing import WriterWorld, add_all, assert_replicated, bodies, ensembles, writer_world

pytestmark = pytest.mark.virtual_time

UNLIMITED = 60_000


async def keep_adding_until_replaced(writer: LedgerWriter, bookie: str) -> None:
    """Adds that do not need the replaced bookie do not wait for it."""

    async def is_replaced() -> bool:
        await writer.add(b"another")
        return bookie not in ensembles(writer)[-1][1]

    await until(is_replaced, f"{bookie} is replaced")


async def test_killed_bookie_is_replaced_and_nothing_acknowledged_is_lost() -> None:
    async with writer_world(4) as world:
        async with await world.client.create(ack_quorum=3) as writer:
            await add_all(writer, 0, 10)
            killed = ensembles(writer)[0][1][1]
            adds = [asyncio.ensure_future(writer.add(body)) for body in bodies(10, 50)]
            await world.cluster.kill(killed)
            assert await asyncio.gather(*adds) == list(range(10, 60))
            last = ensembles(writer)[-1]
            assert killed not in last[1]
            assert writer.statistics().ensemble_changes == 1
        await assert_replicated(world, writer, 60)


async def test_change_at_an_entry_id_that_the_ensemble_size_does_not_divide() -> None:
    async with writer_world(4) as world:
        async with await world.client.create(ensemble_size=3, write_quorum=2, ack_quorum=2) as writer:
            await add_all(writer, 0, 7)
            before = ensembles(writer)[0][1]
            await world.cluster.kill(before[1])
            await add_all(writer, 7, 13)
            (_, (first, after)) = ensembles(writer)
            assert first == 7
            assert [after[0], after[2]] == [before[0], before[2]]
            assert after[1] not in before
        await assert_replicated(world, writer, 20)


async def test_fragment_without_acknowledged_entries_is_replaced_in_place() -> None:
    async with writer_world(4) as world:
        async with await world.client.create(ack_quorum=3) as writer:
            before = ensembles(writer)[0][1]
            await world.cluster.kill(before[0])
            await add_all(writer, 0, 2)
            ((first, after),) = ensembles(writer)
            assert first == 0
            assert after[1:] == before[1:]
            assert after[0] not in before
        await assert_replicated(world, writer, 2)


async def test_hung_bookie_is_replaced_after_the_add_timeout() -> None:
    async with writer_world(4, add_timeout_ms=300) as world:
        async with await world.client.create(ack_quorum=3) as writer:
            await add_all(writer, 0, 3)
            hung = ensembles(writer)[0][1][2]
            world.cluster.hang(hung)
            assert await add_all(writer, 3, 5) == [3, 4, 5, 6, 7]
            assert hung not in ensembles(writer)[-1][1]
            world.cluster.wake(hung)
        await assert_replicated(world, writer, 8)


async def test_hung_bookie_that_nobody_waits_for_is_replaced_with_the_next_add() -> None:
    async with writer_world(4, add_timeout_ms=300) as world, await world.client.create(ack_quorum=2) as writer:
        await add_all(writer, 0, 3)
        hung = ensembles(writer)[0][1][2]
        world.cluster.hang(hung)
        await add_all(writer, 3, 1)
        await until(lambda: writer.statistics().bookies_failed, "the silence is noticed")
        assert len(ensembles(writer)) == 1
        await keep_adding_until_replaced(writer, hung)
        world.cluster.wake(hung)


async def test_restarted_bookie_may_come_back_at_its_place_when_nobody_else_is_there() -> None:
    async with writer_world(3, replacement_wait_ms=UNLIMITED) as world:
        async with await world.client.create(ack_quorum=3) as writer:
            await add_all(writer, 0, 5)
            adds = [asyncio.ensure_future(writer.add(body)) for body in bodies(5, 20)]
            await world.cluster.kill(0)
            await until(lambda: writer.statistics().bookies_failed, "its loss is noticed")
            assert not any(add.done() and add.exception() for add in adds)
            await world.cluster.restart(0)
            assert await asyncio.gather(*adds) == list(range(5, 25))
            assert writer.statistics().ensemble_changes == 0
            assert len(ensembles(writer)) == 1
        await assert_replicated(world, writer, 25)


async def test_bookie_that_registers_later_takes_the_place_that_nobody_could_take() -> None:
    async with writer_world(3, replacement_wait_ms=UNLIMITED) as world:
        async with await world.client.create(ack_quorum=3) as writer:
            await add_all(writer, 0, 5)
            await world.cluster.kill(0)
            adds = [asyncio.ensure_future(writer.add(body)) for body in bodies(5, 5)]
            await until(lambda: writer.statistics().bookies_failed, "its loss is noticed")
            newcomer = await world.cluster.add_bookie()
            assert await asyncio.gather(*adds) == list(range(5, 10))
            assert newcomer.bookie_id in ensembles(writer)[-1][1]
        await assert_replicated(world, writer, 10)


async def test_writer_fails_when_there_are_not_enough_bookies_and_it_may_not_wait() -> None:
    async with writer_world(3, replacement_wait_ms=0) as world:
        writer = await world.client.create(ack_quorum=3)
        await add_all(writer, 0, 5)
        await world.cluster.kill(0)
        found = await asyncio.gather(*[writer.add(body) for body in bodies(5, 5)], return_exceptions=True)
        assert all(isinstance(error, NotEnoughBookiesError) for error in found)
        assert all(error.outcome_unknown for error in found if isinstance(error, NotEnoughBookiesError))
        with pytest.raises(WriterFailedError, match="not enough bookies") as refused:
            await writer.add(b"never sent")
        assert not refused.value.outcome_unknown
        await writer.close()
        stored = await world.client.metadata(writer.ledger_id)
        assert (stored.state, stored.last_entry_id) == (LedgerState.CLOSED, 4)
        assert await world.payloads(writer) == bodies(0, 5)


async def test_writer_goes_on_without_a_bookie_that_nobody_can_replace_while_the_ack_quorum_is_there() -> None:
    async with writer_world(3, replacement_wait_ms=0) as world:
        async with await world.client.create(ack_quorum=2) as writer:
            await add_all(writer, 0, 5)
            await world.cluster.kill(0)
            for first in range(5, 50, 5):
                await add_all(writer, first, 5)
            assert writer.failure is None
        await assert_replicated(world, writer, 50)


async def test_part_of_the_failed_bookies_is_replaced_when_there_are_not_enough_for_all() -> None:
    async with writer_world(4, replacement_wait_ms=UNLIMITED) as world:
        async with await world.client.create(ack_quorum=2) as writer:
            await add_all(writer, 0, 5)
            killed = ensembles(writer)[0][1][:2]
            await asyncio.gather(*[world.cluster.kill(bookie) for bookie in killed])
            assert await add_all(writer, 5, 5) == [5, 6, 7, 8, 9]
            assert len([bookie for bookie in killed if bookie in ensembles(writer)[-1][1]]) == 1
        await assert_replicated(world, writer, 10)


async def test_read_only_bookie_is_replaced() -> None:
    async with writer_world(4) as world:
        async with await world.client.create(ack_quorum=3) as writer:
            await add_all(writer, 0, 2)
            full = ensembles(writer)[0][1][0]
            make_read_only(world, full)
            assert await add_all(writer, 2, 3) == [2, 3, 4]
            assert full not in ensembles(writer)[-1][1]
        await assert_replicated(world, writer, 5)


def make_read_only(world: WriterWorld, bookie: str) -> None:
    world.cluster.node(bookie).running.switch.set(ReadOnlyReason.OPERATOR, True)


# --- while the change is written --------------------------------------------------------------------------------------


async def test_lac_does_not_move_while_an_ensemble_change_is_written() -> None:
    async with writer_world(4) as world:
        async with await world.client.create(ack_quorum=2) as writer:
            await add_all(writer, 0, 5)
            world.ledgers.gate.clear()
            killed = ensembles(writer)[0][1][0]
            await world.cluster.kill(killed)
            world.cluster.hang(ensembles(writer)[0][1][1])
            adds = [asyncio.ensure_future(writer.add(body)) for body in bodies(5, 5)]
            await until(lambda: world.ledgers.waiting, "the change is being written")
            world.cluster.wake(ensembles(writer)[0][1][1])
            await until(lambda: writer._engine.slots[1].unanswered == 0, "two bookies have stored them all")
            await until(lambda: writer._engine.slots[2].unanswered == 0, "two bookies have stored them all")
            assert writer.last_confirmed == 4
            assert not any(add.done() for add in adds)
            world.ledgers.gate.set()
            assert await asyncio.gather(*adds) == [5, 6, 7, 8, 9]
            assert ensembles(writer)[-1][0] == 5
        await assert_replicated(world, writer, 10)


async def test_ack_of_a_replaced_bookie_does_not_count() -> None:
    async with writer_world(4, add_timeout_ms=UNLIMITED) as world:
        async with await world.client.create(ack_quorum=2) as writer:
            await add_all(writer, 0, 3)
            one, other, third = ensembles(writer)[0][1]
            for bookie in world.cluster.bookie_ids:
                if bookie != one:
                    world.cluster.hang(bookie)
            add = asyncio.ensure_future(writer.add(b"entry-3"))
            await until(lambda: writer._engine.slots[0].unanswered == 0, "the first bookie has it")
            await world.cluster.kill(one)
            await until(lambda: one not in ensembles(writer)[-1][1], "the first bookie is replaced")
            world.cluster.wake(other)
            await until(lambda: writer._engine.slots[1].unanswered == 0, "the second bookie has it")
            assert not add.done()  # Two have it; one of them does not count any more.
            world.cluster.wake(third)
            assert await add == 3
            world.cluster.wake(ensembles(writer)[-1][1][0])
        await assert_replicated(world, writer, 4)


async def test_bookie_that_fails_while_a_change_is_written_is_replaced_too() -> None:
    async with writer_world(5) as world:
        async with await world.client.create(ack_quorum=2) as writer:
            await add_all(writer, 0, 3)
            first, second, _ = ensembles(writer)[0][1]
            world.ledgers.gate.clear()
            adds = [asyncio.ensure_future(writer.add(body)) for body in bodies(3, 5)]
            await world.cluster.kill(first)
            adds += [asyncio.ensure_future(writer.add(body)) for body in bodies(8, 5)]
            await until(lambda: world.ledgers.waiting, "the change is being written")
            await world.cluster.kill(second)
            world.ledgers.gate.set()
            assert await asyncio.gather(*adds) == list(range(3, 13))
            await until(lambda: second not in ensembles(writer)[-1][1] or not len(writer._engine.pending), "settled")
        await assert_replicated(world, writer, 13)


async def test_writer_whose_ledger_is_being_recovered_learns_it_from_the_metadata() -> None:
    async with writer_world(4) as world:
        writer = await world.client.create(ack_quorum=3)
        await add_all(writer, 0, 3)
        await world.ledgers.change(writer.ledger_id, lambda m: dataclasses.replace(m, state=LedgerState.IN_RECOVERY))
        await world.cluster.kill(ensembles(writer)[0][1][0])
        with pytest.raises(LedgerFencedError, match="another client is recovering it"):
            await writer.add(b"too late")
        assert len((await world.client.metadata(writer.ledger_id)).fragments) == 1


async def test_metadata_that_cannot_be_written_fails_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "next_s", lambda _: 0.0)
    async with writer_world(4) as world:
        writer = await world.client.create(ack_quorum=3)
        await add_all(writer, 0, 3)
        world.ledgers.errors = [MetadataUnavailableError("away")] * 12
        await world.cluster.kill(ensembles(writer)[0][1][0])
        with pytest.raises(WriterFailedError, match="could not be replaced: away") as failed:
            await writer.add(b"undecided")
        assert failed.value.outcome_unknown
        await writer.close()
        assert await world.payloads(writer) == bodies(0, 3)


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_add_that_nobody_stores_fails_in_time_and_says_that_its_outcome_is_unknown() -> None:
    async with writer_world(3, add_timeout_ms=UNLIMITED, add_quorum_timeout_ms=200) as world:
        writer = await world.client.create()
        await add_all(writer, 0, 2)
        for bookie in range(3):
            world.cluster.hang(bookie)
        with pytest.raises(AddTimeoutError, match="entry 2 of ledger") as failed:
            await writer.add(b"into the void")
        assert failed.value.outcome_unknown
        await writer.close()
        assert (await world.client.metadata(writer.ledger_id)).last_entry_id == 1
        for bookie in range(3):
            world.cluster.wake(bookie)


async def test_nothing_of_a_writer_is_left_when_it_is_closed() -> None:
    async with writer_world(4) as world:
        async with await world.client.create(ack_quorum=3) as writer:
            await add_all(writer, 0, 3)
            await world.cluster.kill(ensembles(writer)[0][1][0])
            await add_all(writer, 3, 3)
        engine = writer._engine
        assert engine._timer is None
        assert engine._repair._task is None
        assert all(slot.channel is None for slot in engine.slots)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in names if name.startswith(("ledger-", "explicit-lac", "deferred"))]
        assert len(world.client._writers) == 0


async def test_slow_bookie_makes_the_writer_wait_and_is_then_replaced() -> None:
    options: dict[str, Any] = {"channel_unsent_bytes_max": 65_536, "add_timeout_ms": UNLIMITED}
    async with (
        writer_world(4, slow_bookie_wait_ms=300, **options) as world,
        await world.client.create(ack_quorum=2) as writer,
    ):
        await writer.add(b"connected")
        slow = ensembles(writer)[0][1][0]
        world.cluster.hang(slow)
        most = 0
        for _ in range(300):
            await writer.add(bytes(100_000))
            most = max(most, unsent(writer))
        await keep_adding_until_replaced(writer, slow)
        assert writer.statistics().ensemble_changes == 1
        assert most < 2_000_000  # A fraction of the 30 MB that were written meanwhile.
        world.cluster.wake(slow)


def unsent(writer: LedgerWriter) -> int:
    """Bytes that wait in this process for a bookie that does not read."""
    channels: list[Any] = [slot.channel for slot in writer._engine.slots if slot.channel is not None]
    connections = [channel._v2 for channel in channels]
    return sum(each._unsent_bytes + each._transport.get_write_buffer_size() for each in connections)


async def test_slow_bookie_that_reads_again_in_time_is_not_replaced() -> None:
    options: dict[str, Any] = {"channel_unsent_bytes_max": 65_536, "add_timeout_ms": UNLIMITED}
    async with (
        writer_world(4, slow_bookie_wait_ms=UNLIMITED, **options) as world,
        await world.client.create(ack_quorum=2) as writer,
    ):
        await writer.add(b"connected")
        slow = ensembles(writer)[0][1][0]
        world.cluster.hang(slow)
        added = 0
        while writer.has_room:
            await writer.add(bytes(100_000))
            added += 1
        waiting = asyncio.ensure_future(writer.add(b"in line"))
        await asyncio.sleep(0)
        assert writer.last_pushed == added  # It was not sent.
        world.cluster.wake(slow)
        assert await waiting == added + 1
        assert writer.statistics().ensemble_changes == 0


async def test_writer_waits_for_a_bookie_that_others_are_far_ahead_of_and_then_replaces_it() -> None:
    async with (
        writer_world(4, adds_behind_max=20, slow_bookie_wait_ms=400, add_timeout_ms=UNLIMITED) as world,
        await world.client.create(ack_quorum=2) as writer,
    ):
        await writer.add(b"connected")
        slow = ensembles(writer)[0][1][0]
        world.cluster.hang(slow)
        while writer.has_room:
            await writer.add(b"without it")
        assert writer._engine.slots[0].unanswered <= 23  # The limit, and what was sent when it was reached.
        await writer.add(b"when it was given up")
        await keep_adding_until_replaced(writer, slow)
        world.cluster.wake(slow)


async def test_bookie_that_catches_up_in_time_is_not_replaced() -> None:
    async with (
        writer_world(4, adds_behind_max=20, slow_bookie_wait_ms=UNLIMITED, add_timeout_ms=UNLIMITED) as world,
        await world.client.create(ack_quorum=2) as writer,
    ):
        await writer.add(b"connected")
        slow = ensembles(writer)[0][1][0]
        world.cluster.hang(slow)
        while writer.has_room:
            await writer.add(b"without it")
        waiting = asyncio.ensure_future(writer.add(b"in line"))
        await asyncio.sleep(0)
        assert not writer.has_room
        world.cluster.wake(slow)
        await waiting
        assert writer.statistics().ensemble_changes == 0


# --- delayed changes --------------------------------------------------------------------------------------------------


async def test_delayed_change_waits_until_the_ack_quorum_is_in_danger() -> None:
    async with writer_world(5, delay_ensemble_change=True) as world:
        async with await world.client.create(ack_quorum=2) as writer:
            await add_all(writer, 0, 3)
            first, second, _ = ensembles(writer)[0][1]
            await world.cluster.kill(first)
            for number in range(3, 10):
                await add_all(writer, number, 1)
            assert len(ensembles(writer)) == 1
            await world.cluster.kill(second)
            await add_all(writer, 10, 5)
            last = ensembles(writer)[-1][1]
            assert first not in last
            assert second not in last
            assert writer.statistics().ensemble_changes == 1
        await assert_replicated(world, writer, 15)
