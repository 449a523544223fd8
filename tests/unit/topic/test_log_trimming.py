"""Giving room back: trim, delete."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import NotEmptyError
from magnetar.topic.position import EARLIEST, LATEST, Position
from tests.unit.topic.log_world import TOPIC, drop_tail, log_world, read_all, text_of
from tests.unit.topic.test_log_reading import three_ledgers

pytestmark = pytest.mark.virtual_time

HOUR_MS = 3_600_000


async def test_consumed_ledgers_are_dropped_from_the_node_and_deleted() -> None:
    async with log_world() as world:
        log, _ = await three_ledgers(world)
        first, second, third = (span.ledger_id for span in log.chain.spans)
        assert [span.ledger_id for span in await log.trim(Position(second, 4))] == [first]
        assert await world.ledgers() == [second, third]
        assert text_of((await log.read(EARLIEST, 1, 1))[0]) == "m10"
        assert [span.ledger_id for span in await log.trim(LATEST)] == [second]
        assert await log.trim(LATEST) == []
        await log.aclose()
        again, _ = await world.open()
        assert [text_of(entry) for entry in await read_all(again)] == [f"m{number}" for number in range(20, 30)]


async def test_retention_keeps_consumed_ledgers() -> None:
    now = [1_000_000]
    async with log_world(wall_ms=lambda: now[0]) as world:
        log, _ = await three_ledgers(world)
        assert await log.trim(LATEST, retention_ms=HOUR_MS, retention_bytes=-1) == []
        assert await log.trim(LATEST, retention_ms=-1, retention_bytes=-1) == []
        now[0] += HOUR_MS + 1
        assert len(await log.trim(LATEST, retention_ms=HOUR_MS, retention_bytes=-1)) == 2


async def test_topic_rolled_and_trimmed_to_its_end_has_no_entries_and_goes_on_counting() -> None:
    async with log_world() as world:
        log, heard = await three_ledgers(world)
        await log.roll()
        dropped = await log.trim(LATEST)
        assert len(dropped) == 3
        assert await read_all(log) == []
        assert log.chain.entries == 0
        assert len(await world.ledgers()) == 1
        await world.written(log, heard, 1)
        (entry,) = await read_all(log)
        assert entry.head.index == 30


async def test_index_goes_on_after_everything_was_trimmed_and_the_topic_opened_again() -> None:
    async with log_world() as world:
        log, _ = await three_ledgers(world)
        await log.roll()
        await log.trim(LATEST)
        await log.aclose()
        again, heard = await world.open()
        assert again.next_index == 30
        await world.written(again, heard, 1, first=30)
        assert (await read_all(again))[0].head.index == 30


async def test_reader_in_a_trimmed_ledger_goes_on_behind_it() -> None:
    async with log_world() as world:
        log, _ = await three_ledgers(world)
        drop_tail(log)
        first, second, _ = (span.ledger_id for span in log.chain.spans)
        await log.read(EARLIEST, 2, 2**20)
        await log.read(Position(first, 2), 2, 2**20)  # So that some of it is read ahead.
        reading = asyncio.ensure_future(log.read(Position(first, 4), 2, 2**20))
        await log.trim(Position(first, 9))
        assert (await reading)[0].position >= (first, 4)
        assert [tuple(entry.position) for entry in await log.read(Position(first, 6), 1, 1)] == [(second, 0)]


async def test_deleted_topic_leaves_nothing() -> None:
    async with log_world() as world:
        log, _ = await three_ledgers(world)
        await log.delete()
        assert await world.ledgers() == []
        assert await world.cluster.store.get(f"/managed-ledgers/{TOPIC}") is None
        again, _ = await world.open()
        assert again.next_index == 0


async def test_topic_with_cursors_is_not_deleted() -> None:
    async with log_world() as world:
        log, heard = await three_ledgers(world)
        await world.cluster.store.create(f"/managed-ledgers/{TOPIC}/subscription", b"")
        with pytest.raises(NotEmptyError):
            await log.delete()
        await world.written(log, heard, 1)
        assert len(await read_all(log)) == 31
