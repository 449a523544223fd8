"""Cursors beside a real log on real bookies: what the doubles of the other tests stand for."""

from __future__ import annotations

import pytest

from magnetar.config.topic import CursorConfig
from magnetar.errors import CursorFencedError, MagnetarError
from magnetar.quorum.sizes import QuorumSizes
from magnetar.topic.cursor.cursors import Cursors
from magnetar.topic.cursor.ledger_storage import CursorContext
from magnetar.topic.log.log import TopicLog
from magnetar.topic.position import EARLIEST
from magnetar.topic.seek_targets import find_seek_position, parse_seek_target
from tests.unit.topic.log_world import TOPIC, LogWorld, log_world

pytestmark = pytest.mark.virtual_time


async def open_cursors(world: LogWorld, log: TopicLog, fenced: list[MagnetarError] | None = None) -> Cursors:
    context = CursorContext(
        world.client, world.cluster.store, world.cluster.runtime.entropy, QuorumSizes(1, 1, 1), CursorConfig()
    )
    on_fenced = (fenced if fenced is not None else []).append
    return await Cursors.open(TOPIC, log.chain, context, on_fenced=on_fenced)


async def test_the_next_owner_finds_what_was_flushed_and_fences_the_last() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 20)
        fenced: list[MagnetarError] = []
        first = await (await open_cursors(world, log, fenced)).create("sub", EARLIEST)
        first.acknowledge([*heard.positions[:5], heard.positions[9]])
        await first.flush()
        first.acknowledge(heard.positions[5:6])  # Not flushed: lost with its owner.

        log, _ = await world.open()
        cursors = await open_cursors(world, log)
        second = cursors.get("sub")
        assert second is not None
        assert (second.mark_delete, second.backlog_entries()) == (heard.positions[4], 14)
        assert second.next_unacknowledged(heard.positions[9]) == heard.positions[10]

        with pytest.raises(CursorFencedError):
            await first.flush()
        assert len(fenced) == 1
        await first.abandon()
        second.acknowledge_to(heard.positions[19])
        await cursors.aclose()
        third = (await open_cursors(world, log)).get("sub")
        assert third is not None
        assert (third.backlog_entries(), third.statistics().ledger_id) == (0, -1)


async def test_what_every_cursor_has_passed_is_trimmed_and_their_ledgers_go_with_them() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        cursors = await open_cursors(world, log)
        cursor = await cursors.create("sub", EARLIEST)
        await world.written(log, heard, 5)
        await log.roll()
        await world.written(log, heard, 5)
        cursor.acknowledge(heard.positions[:7])
        assert await log.trim(cursors.slowest_mark_delete() or EARLIEST) == []  # Not durable yet.
        await cursor.flush()
        dropped = await log.trim(cursors.slowest_mark_delete() or EARLIEST)
        cursors.on_trimmed()
        assert [span.entries for span in dropped] == [5]
        assert (cursor.backlog_entries(), cursor.mark_delete) == (3, heard.positions[6])
        await cursors.delete_all()
        assert await world.ledgers() == [log.chain.spans[-1].ledger_id]


async def test_a_cursor_is_reset_to_a_place_that_people_name() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 10, batch=4)
        cursor = await (await open_cursors(world, log)).create("sub", EARLIEST)
        for text, backlog, ack_set in (("-4", 1, None), ("-5", 2, [0b1000]), ("index:8", 8, None), ("latest", 0, None)):
            found = await find_seek_position(parse_seek_target(text), log, world.cluster.runtime.entropy.wall_ms())
            await cursor.reset(found.position, found.still_unacked, found.batch_size)
            assert cursor.backlog_entries() == backlog, text
            assert cursor.ack_set_of(found.position) == ack_set, text
