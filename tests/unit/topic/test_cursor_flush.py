"""When a cursor is stored: what is shared, what is waited for, what happens when it fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import pytest

from magnetar.config.topic import CursorConfig
from magnetar.errors import CursorClosedError, CursorFencedError, CursorNotStoredError, SubscriptionFencedError
from magnetar.topic.cursor.cursors import Cursor
from magnetar.topic.position import EARLIEST, LATEST, Position
from tests.unit.topic.cursor_world import CursorWorld, Fate, Steps, acked_positions, run_of

pytestmark = pytest.mark.virtual_time


def adds(steps: Steps) -> int:
    return steps.names.count("ledger add")


async def world_with_cursor(
    *, config: CursorConfig | None = None, entries: int = 100
) -> tuple[CursorWorld, Steps, Cursor]:
    world = CursorWorld(entries, **({} if config is None else {"config": config}))
    await world.start()
    steps = Steps()
    cursor = await (await world.open(steps)).create("sub", EARLIEST)
    return world, steps, cursor


async def reopened(world: CursorWorld) -> Cursor:
    cursor = (await world.open()).get("sub")
    assert cursor is not None
    return cursor


def every_add_hangs(steps: Steps, hanging: asyncio.Event) -> None:
    """Until the event is set."""
    take = steps.take

    async def slow(name: str, do: Any, *, refusal: Any) -> Any:
        if name == "ledger add":
            await hanging.wait()
        return await take(name, do, refusal=refusal)

    steps.take = slow  # type: ignore[method-assign]


async def test_many_flushes_of_one_turn_are_one_write() -> None:
    _, steps, cursor = await world_with_cursor()
    flushes: list[Coroutine[Any, Any, None]] = []
    for entry_id in range(50):
        cursor.acknowledge([Position(1, entry_id)])
        flushes.append(cursor.flush())
    await asyncio.gather(*flushes)
    assert adds(steps) == 1
    assert cursor.stored_mark_delete == Position(1, 49)


async def test_what_is_acknowledged_during_a_write_shares_the_next_one() -> None:
    world, steps, cursor = await world_with_cursor()
    cursor.acknowledge([Position(1, 0)])
    await cursor.flush()
    go_on = asyncio.Event()
    every_add_hangs(steps, go_on)
    cursor.acknowledge([Position(1, 1)])
    first = asyncio.ensure_future(cursor.flush())
    await asyncio.sleep(1)
    later = []
    for entry_id in range(2, 20):
        cursor.acknowledge([Position(1, entry_id)])
        later.append(asyncio.ensure_future(cursor.flush()))
    await asyncio.sleep(1)
    assert not first.done()
    go_on.set()
    await asyncio.gather(first, *later)
    assert adds(steps) == 3
    assert (await reopened(world)).mark_delete == Position(1, 19)


async def test_a_flush_of_what_is_being_written_waits_for_that_write() -> None:
    _, steps, cursor = await world_with_cursor()
    go_on = asyncio.Event()
    every_add_hangs(steps, go_on)
    cursor.acknowledge([Position(1, 0)])
    first = asyncio.ensure_future(cursor.flush())
    await asyncio.sleep(1)
    second = asyncio.ensure_future(cursor.flush())
    await asyncio.sleep(1)
    go_on.set()
    await asyncio.gather(first, second)
    assert adds(steps) == 1


async def test_a_flush_with_nothing_to_store_writes_nothing() -> None:
    _, steps, cursor = await world_with_cursor()
    before = len(steps.names)
    await cursor.flush()
    cursor.acknowledge([Position(1, 0)])
    await cursor.flush()
    after = len(steps.names)
    assert cursor.acknowledge([Position(1, 0)]) == 0
    await cursor.flush()
    assert (after > before, len(steps.names)) == (True, after)


async def test_a_flush_that_is_cancelled_leaves_the_write_to_the_others() -> None:
    _, _, cursor = await world_with_cursor()
    cursor.acknowledge([Position(1, 0)])
    gone, stays = asyncio.ensure_future(cursor.flush()), asyncio.ensure_future(cursor.flush())
    await asyncio.sleep(0)
    gone.cancel()
    await stays
    assert cursor.is_stored
    with contextlib.suppress(asyncio.CancelledError):
        await gone


async def test_flush_soon_stores_once_per_interval() -> None:
    _, steps, cursor = await world_with_cursor(config=CursorConfig(mark_delete_interval_ms=1_000))
    for entry_id in range(40):  # Four seconds of acknowledgements.
        cursor.acknowledge([Position(1, entry_id)])
        cursor.flush_soon()
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.5)
    assert cursor.is_stored
    assert 3 <= adds(steps) <= 5


async def test_a_failed_write_is_told_and_stored_later_by_itself() -> None:
    world, steps, cursor = await world_with_cursor()
    steps.fate = lambda _number, _name: Fate.REFUSED
    cursor.acknowledge([Position(1, 0)])
    with pytest.raises(CursorNotStoredError, match="tried again"):
        await cursor.flush()
    assert (cursor.mark_delete, cursor.stored_mark_delete) == (Position(1, 0), Position(1, -1))
    steps.fate = lambda _number, _name: None
    await asyncio.sleep(30)
    assert cursor.stored_mark_delete == Position(1, 0)
    assert (await reopened(world)).mark_delete == Position(1, 0)


async def test_a_state_that_cannot_be_written_down_is_told_and_stored_later_when_it_can() -> None:
    world, _, cursor = await world_with_cursor()
    cursor.set_long_properties({"p": 2**63})
    with pytest.raises(CursorNotStoredError, match="tried again"):
        async with asyncio.timeout(60):
            await cursor.flush()
    cursor.set_long_properties({"p": 2**63 - 1})
    await asyncio.sleep(30)
    assert cursor.is_stored
    assert (await reopened(world)).long_properties == {"p": 2**63 - 1}


async def test_a_cursor_whose_state_cannot_be_written_down_is_closed_all_the_same() -> None:
    _, _, cursor = await world_with_cursor()
    cursor.set_long_properties({"p": 2**63})
    with pytest.raises(CursorNotStoredError):
        await cursor.aclose()
    with pytest.raises(CursorClosedError):
        await cursor.flush()


async def test_a_write_that_never_ends_is_given_up_in_time() -> None:
    _, steps, cursor = await world_with_cursor(config=CursorConfig(store_timeout_ms=5_000))
    every_add_hangs(steps, asyncio.Event())
    cursor.acknowledge([Position(1, 0)])
    started = asyncio.get_running_loop().time()
    with pytest.raises(CursorNotStoredError, match="too long"):
        await cursor.flush()
    assert 5 <= asyncio.get_running_loop().time() - started < 6


async def test_without_bookies_a_short_state_goes_into_the_node() -> None:
    world, steps, cursor = await world_with_cursor()
    cursor.acknowledge([Position(1, 0)])
    await cursor.flush()
    steps.fate = lambda _number, name: Fate.REFUSED if name.startswith("ledger") else None
    cursor.acknowledge([Position(1, 1), Position(1, 5)])
    await cursor.flush()
    node = await world.node()
    assert (node.cursors_ledger_id, node.mark_delete_entry_id, len(node.individual_deleted_messages)) == (-1, 1, 1)
    assert acked_positions(world.chain, await reopened(world)) == set(run_of(1, [0, 1, 5]))


PART = Position(1, 3)
LEFT = 0b0110


async def test_a_part_of_a_batch_stays_in_a_ledger_when_the_cursor_is_closed() -> None:
    """Brokers of Apache up to 4.2.4 do not read it from the node."""
    world, _, cursor = await world_with_cursor()
    cursor.acknowledge_batch(PART, [LEFT], 4)
    await cursor.aclose()
    node = await world.node()
    assert (list(world.ledgers.all), len(node.batched_entry_deletion_index_info)) == ([node.cursors_ledger_id], 0)
    again = await reopened(world)
    assert again.ack_set_of(PART) == [LEFT]
    await again.aclose()
    assert (await world.node()).cursors_ledger_id == node.cursors_ledger_id  # It was not written once more.
    again = await reopened(world)
    again.acknowledge([PART])
    await again.aclose()
    assert ((await world.node()).cursors_ledger_id, list(world.ledgers.all)) == (-1, [])


async def test_a_part_of_a_batch_that_is_in_the_node_goes_into_a_ledger_when_the_cursor_is_closed() -> None:
    world, steps, cursor = await world_with_cursor()
    steps.fate = lambda _number, name: Fate.REFUSED if name.startswith("ledger") else None
    cursor.acknowledge_batch(PART, [LEFT], 4)
    await cursor.aclose()
    assert ((await world.node()).cursors_ledger_id, list(world.ledgers.all)) == (-1, [])
    again = await reopened(world)
    assert again.ack_set_of(PART) == [LEFT]
    await again.aclose()
    assert list(world.ledgers.all) == [(await world.node()).cursors_ledger_id]
    assert (await reopened(world)).ack_set_of(PART) == [LEFT]


async def test_a_part_of_a_batch_that_is_stored_in_the_node_stays_there_without_bookies() -> None:
    world, steps, cursor = await world_with_cursor()
    steps.fate = lambda _number, name: Fate.REFUSED if name.startswith("ledger") else None
    cursor.acknowledge_batch(PART, [LEFT], 4)
    await cursor.flush()
    await cursor.aclose()
    assert (await world.node()).cursors_ledger_id == -1
    assert (await reopened(world)).ack_set_of(PART) == [LEFT]


async def test_without_bookies_a_long_state_is_refused_and_kept() -> None:
    _, steps, cursor = await world_with_cursor(config=CursorConfig(ranges_in_metadata_max=2))
    steps.fate = lambda _number, name: Fate.REFUSED if name.startswith("ledger") else None
    cursor.acknowledge(run_of(1, [1, 3, 5, 7]))
    with pytest.raises(CursorNotStoredError, match="start more bookies"):
        await cursor.flush()
    steps.fate = lambda _number, _name: None
    await asyncio.sleep(20)
    assert cursor.is_stored


async def test_another_owner_ends_the_first_at_its_next_write() -> None:
    world, _, cursor = await world_with_cursor()
    cursor.acknowledge([Position(1, 0)])
    await cursor.flush()
    other = await reopened(world)
    other.acknowledge([Position(1, 1)])
    await other.flush()
    cursor.acknowledge([Position(1, 2)])
    with pytest.raises(CursorFencedError):
        await cursor.flush()
    with pytest.raises(CursorFencedError):
        await cursor.flush()
    assert len(world.fenced) == 1
    await cursor.aclose()
    assert [writer.is_over for writer in world.ledgers.writers] == [True, False, True]
    assert list(world.ledgers.all) == [(await world.node()).cursors_ledger_id]
    assert (await reopened(world)).mark_delete == Position(1, 1)


async def test_a_node_that_somebody_else_wrote_ends_the_cursor() -> None:
    world, _, cursor = await world_with_cursor()
    other = await reopened(world)
    await other.set_properties({"a": "b"})
    cursor.acknowledge([Position(1, 0)])
    with pytest.raises(CursorFencedError, match="another broker"):
        await cursor.flush()
    assert len(world.fenced) == 1
    assert world.ledgers.all == {}


async def test_a_reset_is_durable_and_forgets_what_was_acknowledged_behind_it() -> None:
    world, _, cursor = await world_with_cursor()
    cursor.acknowledge(run_of(1, [*range(50), 60, 70]))
    cursor.set_long_properties({"p": 1})
    await cursor.flush()
    await cursor.reset(Position(1, 20))
    for found in (cursor, await reopened(world)):
        assert (found.mark_delete, found.has_gaps, found.backlog_entries()) == (Position(1, 19), False, 80)
        assert found.long_properties == {}


async def test_a_reset_knows_the_beginning_the_end_and_the_middle_of_a_batch() -> None:
    world, _, cursor = await world_with_cursor()
    await cursor.reset(LATEST)
    assert cursor.backlog_entries() == 0
    await cursor.reset(EARLIEST)
    assert cursor.backlog_entries() == 100
    await cursor.reset(Position(1, 7), [0b1100], 4)
    assert (await reopened(world)).ack_set_of(Position(1, 7)) == [0b1100]


async def test_a_reset_that_cannot_be_stored_changes_nothing() -> None:
    world, steps, cursor = await world_with_cursor()
    cursor.acknowledge(run_of(1, [*range(50), 60]))
    await cursor.flush()
    steps.fate = lambda _number, _name: Fate.REFUSED
    with pytest.raises(CursorNotStoredError):
        await cursor.reset(EARLIEST)
    assert (cursor.mark_delete, cursor.is_acknowledged(Position(1, 60))) == (Position(1, 49), True)
    steps.fate = lambda _number, _name: None
    assert cursor.acknowledge([Position(1, 50)]) == 1
    await cursor.flush()
    assert (await reopened(world)).mark_delete == Position(1, 50)


async def test_during_a_reset_acknowledgements_and_another_reset_are_refused() -> None:
    _, steps, cursor = await world_with_cursor()
    go_on = asyncio.Event()
    every_add_hangs(steps, go_on)
    resetting = asyncio.ensure_future(cursor.reset(Position(1, 50)))
    await asyncio.sleep(1)
    assert cursor.acknowledge([Position(1, 3)]) == 0
    with pytest.raises(SubscriptionFencedError, match="already"):
        await cursor.reset(EARLIEST)
    go_on.set()
    await resetting
    assert cursor.mark_delete == Position(1, 49)


async def test_long_properties_are_stored_in_one_step_with_the_position() -> None:
    world, _, cursor = await world_with_cursor()
    cursor.acknowledge_to(Position(1, 9))
    cursor.set_long_properties({"producer-1": 41, "producer-2": -1})
    await cursor.flush()
    found = await reopened(world)
    assert (found.mark_delete, found.long_properties) == (Position(1, 9), {"producer-1": 41, "producer-2": -1})


async def test_a_closed_cursor_stores_nothing_more() -> None:
    world, _, cursor = await world_with_cursor()
    cursor.acknowledge([Position(1, 0)])
    await cursor.aclose()
    cursor.acknowledge([Position(1, 1)])
    with pytest.raises(CursorClosedError):
        await cursor.flush()
    cursor.flush_soon()
    await asyncio.sleep(5)
    assert (await reopened(world)).mark_delete == Position(1, 0)


async def test_a_flush_that_waits_when_the_cursor_is_closed_is_answered() -> None:
    _, steps, cursor = await world_with_cursor()
    go_on = asyncio.Event()
    every_add_hangs(steps, go_on)
    cursor.acknowledge([Position(1, 0)])
    first = asyncio.ensure_future(cursor.flush())
    await asyncio.sleep(1)
    cursor.acknowledge([Position(1, 1)])
    second = asyncio.ensure_future(cursor.flush())
    closing = asyncio.ensure_future(cursor.aclose())
    await asyncio.sleep(1)
    go_on.set()
    await asyncio.gather(first, second, closing)


async def test_an_abandoned_cursor_stores_nothing_and_ends_at_once() -> None:
    world, steps, cursor = await world_with_cursor()
    every_add_hangs(steps, asyncio.Event())
    cursor.acknowledge([Position(1, 0)])
    waiting = asyncio.ensure_future(cursor.flush())
    await asyncio.sleep(1)
    started = asyncio.get_running_loop().time()
    await cursor.abandon()
    assert asyncio.get_running_loop().time() - started < 1
    with pytest.raises(CursorClosedError):
        await waiting
    assert (await reopened(world)).mark_delete == Position(1, -1)


async def test_every_flush_that_waits_when_a_cursor_is_abandoned_is_answered() -> None:
    """This holds for the write in progress, for the next one, and for one that has not had its turn of the loop."""
    _, steps, cursor = await world_with_cursor()
    every_add_hangs(steps, asyncio.Event())
    cursor.acknowledge([Position(1, 0)])
    waiting = [asyncio.ensure_future(cursor.flush())]
    await asyncio.sleep(1)
    cursor.acknowledge([Position(1, 1)])
    waiting.append(asyncio.ensure_future(cursor.flush()))
    await asyncio.sleep(1)
    await cursor.abandon()
    await check_given_up(cursor, waiting)


async def test_a_flush_whose_write_has_not_begun_when_a_cursor_is_abandoned_is_answered() -> None:
    _, _, cursor = await world_with_cursor()
    cursor.acknowledge([Position(1, 0)])
    waiting = asyncio.ensure_future(asyncio.shield(not_none(cursor.flush_nowait())))
    await cursor.abandon()
    await check_given_up(cursor, [waiting])


async def test_a_flush_that_waits_behind_a_reset_when_a_cursor_is_abandoned_is_answered() -> None:
    _, steps, cursor = await world_with_cursor()
    every_add_hangs(steps, asyncio.Event())
    cursor.acknowledge([Position(1, 0)])
    resetting = asyncio.ensure_future(cursor.reset(EARLIEST))
    await asyncio.sleep(1)
    waiting = asyncio.ensure_future(cursor.flush())
    await asyncio.sleep(1)
    async with asyncio.timeout(1):  # A reset may take longer than a topic has for its end.
        await cursor.abandon()
    await check_given_up(cursor, [resetting, waiting])
    assert cursor.mark_delete == Position(1, 0)


async def test_a_cursor_that_is_abandoned_again_while_its_write_is_cut_off_ends_once() -> None:
    _, steps, cursor = await world_with_cursor()
    every_add_hangs(steps, asyncio.Event())
    cursor.acknowledge([Position(1, 0)])
    waiting = asyncio.ensure_future(cursor.flush())
    await asyncio.sleep(1)
    async with asyncio.timeout(1):
        await asyncio.gather(*(cursor.abandon() for _ in range(3)))
    await cursor.abandon()
    await check_given_up(cursor, [waiting])


async def test_a_cursor_whose_close_is_cancelled_begins_no_write_any_more() -> None:
    _, steps, cursor = await world_with_cursor()
    go_on = asyncio.Event()
    every_add_hangs(steps, go_on)
    cursor.acknowledge([Position(1, 0)])
    first = asyncio.ensure_future(cursor.flush())
    await asyncio.sleep(1)
    cursor.acknowledge([Position(1, 1)])
    cursor.flush_soon()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await cursor.aclose()
    await asyncio.sleep(1)
    go_on.set()
    await first
    await asyncio.sleep(1)
    assert (adds(steps), cursor.stored_mark_delete) == (1, Position(1, 0))


async def test_a_close_of_all_cursors_that_is_given_up_leaves_the_next_owner_alone() -> None:
    """Also by those whose turn to be closed did not come: the first has a write in progress, the other a timer."""
    world = CursorWorld(100, config=CursorConfig(open_concurrency_max=1, mark_delete_interval_ms=5_000))
    await world.start()
    steps = Steps()
    cursors = await world.open(steps)
    written, later = await cursors.create("sub", EARLIEST), await cursors.create("later", EARLIEST)
    go_on = asyncio.Event()
    every_add_hangs(steps, go_on)
    written.acknowledge(run_of(1, range(10)))
    written.flush_nowait()
    later.acknowledge(run_of(1, range(10)))
    later.flush_soon()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await cursors.aclose()
    async with asyncio.timeout(1):
        await cursors.abandon()
    assert len(cursors) == 0

    again = await world.open()
    go_on.set()
    await asyncio.sleep(30)
    for cursor in again:
        cursor.acknowledge(run_of(1, range(3)))
        await cursor.flush()
    assert world.fenced == []
    assert [cursor.stored_mark_delete for cursor in again] == [Position(1, 2), Position(1, 2)]


def not_none(future: asyncio.Future[None] | None) -> asyncio.Future[None]:
    assert future is not None
    return future


async def check_given_up(cursor: Cursor, waiting: list[asyncio.Future[None]]) -> None:
    done, still_waiting = await asyncio.wait(waiting, timeout=1)
    assert not still_waiting
    assert all(isinstance(each.exception(), CursorClosedError) for each in done)
    with pytest.raises(CursorClosedError):
        cursor.flush_nowait()
