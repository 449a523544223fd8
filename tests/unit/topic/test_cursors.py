"""The cursors of one topic: made, opened, deleted, and what they keep from being trimmed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from magnetar.errors import CursorExistsError, CursorMissingError, MagnetarError, NoSuchLedgerError, WriterFailedError
from magnetar.topic.cursor.codec import NO_LEDGER
from magnetar.topic.cursor.cursors import Cursors
from magnetar.topic.cursor.ledger_storage import LedgerCursorStorage
from magnetar.topic.log.managed_ledger import managed_ledger_path
from magnetar.topic.position import EARLIEST, LATEST, Position
from magnetar.topic.proto.managed_ledger_pb2 import ManagedCursorInfo
from tests.unit.broker import golden
from tests.unit.topic.cursor_world import TOPIC, CursorWorld, Fate, Steps, acked_positions, run_of


async def started(*entries: int) -> tuple[CursorWorld, Cursors]:
    world = CursorWorld(*entries)
    await world.start()
    return world, await world.open()


async def test_a_new_cursor_begins_at_the_position_it_is_given() -> None:
    _, cursors = await started(10, 10)
    backlogs = {}
    for name, at in (("all", EARLIEST), ("new", LATEST), ("some", Position(1, 4)), ("edge", Position(1, 10))):
        backlogs[name] = (await cursors.create(name, at)).backlog_entries()
    assert backlogs == {"all": 20, "new": 0, "some": 16, "edge": 10}


async def test_cursors_are_found_again_with_names_and_properties() -> None:
    world, cursors = await started(10)
    await cursors.create("a b/c~", Position(1, 4), properties={"team": "blue"}, long_properties={"n": 5})
    await cursors.create("plain", EARLIEST)
    found = await world.open()
    assert sorted(cursor.name for cursor in found) == ["a b/c~", "plain"]
    again = found.get("a b/c~")
    assert again is not None
    assert (again.mark_delete, again.properties, again.long_properties) == (Position(1, 3), {"team": "blue"}, {"n": 5})
    assert "a+b%2Fc%7E" in await world.inner.children(managed_ledger_path(TOPIC))


async def test_a_cursor_that_was_closed_unchanged_is_not_written_again() -> None:
    world, cursors = await started(10)
    await cursors.create("sub", EARLIEST)
    await cursors.aclose()
    steps = Steps()
    await (await world.open(steps)).aclose()
    assert set(steps.names) == {"store children", "store get"}


async def test_a_name_is_taken_once() -> None:
    _, cursors = await started(1)
    await cursors.create("sub", EARLIEST)
    with pytest.raises(CursorExistsError, match="'sub'"):
        await cursors.create("sub", EARLIEST)
    with pytest.raises(CursorExistsError):
        cursors.create_non_durable("sub", EARLIEST)


async def test_a_cursor_that_another_owner_made_meanwhile_is_not_overwritten() -> None:
    world, cursors = await started(10)
    await (await world.open()).create("sub", LATEST)
    with pytest.raises(CursorExistsError):
        await cursors.create("sub", EARLIEST)
    found = (await world.open()).get("sub")
    assert found is not None
    assert found.backlog_entries() == 0


async def test_a_cursor_without_a_name_is_refused() -> None:
    _, cursors = await started(1)
    with pytest.raises(CursorMissingError, match="needs a name"):
        await cursors.create("", EARLIEST)


async def test_a_deleted_cursor_leaves_neither_node_nor_ledger() -> None:
    world, cursors = await started(10)
    cursor = await cursors.create("sub", EARLIEST)
    cursor.acknowledge(run_of(1, [0, 5]))
    await cursor.flush()
    assert world.ledgers.all
    await cursors.delete("sub")
    assert (world.ledgers.all, await world.inner.children(managed_ledger_path(TOPIC))) == ({}, [])
    with pytest.raises(CursorMissingError, match="no subscription 'sub'"):
        await cursors.delete("sub")


async def test_all_cursors_go_with_their_topic() -> None:
    world, cursors = await started(10)
    for name in ("a", "b"):
        await cursors.create(name, EARLIEST)
    cursors.create_non_durable("reader", EARLIEST)
    await cursors.delete_all()
    assert (len(cursors), await world.inner.children(managed_ledger_path(TOPIC))) == (0, [])


async def test_a_cursor_that_is_not_durable_costs_no_step_and_holds_nothing() -> None:
    world = CursorWorld(10)
    await world.start()
    steps = Steps()
    cursors = await world.open(steps)
    before = len(steps.names)
    cursor = cursors.create_non_durable("reader", Position(1, 4))
    assert (cursor.is_durable, cursor.backlog_entries(), cursors.slowest_mark_delete()) == (False, 6, None)
    cursor.acknowledge_to(Position(1, 6))
    await cursor.flush()
    await cursor.reset(Position(1, 2))
    await cursor.set_properties({"a": "b"})
    assert (cursor.mark_delete, cursor.is_stored) == (Position(1, 1), True)
    await cursors.delete("reader")
    assert len(steps.names) == before


async def test_only_what_is_durably_acknowledged_by_all_may_be_trimmed() -> None:
    _, cursors = await started(10, 10)
    slow, fast = await cursors.create("slow", EARLIEST), await cursors.create("fast", EARLIEST)
    fast.acknowledge_to(Position(2, 9))
    slow.acknowledge_to(Position(1, 5))
    assert cursors.slowest_mark_delete() == Position(1, -1)
    await fast.flush()
    await slow.flush()
    assert cursors.slowest_mark_delete() == Position(1, 5)


async def test_trimming_moves_the_backlog_to_what_is_left() -> None:
    world, cursors = await started(10, 10, 10)
    cursor = await cursors.create("sub", EARLIEST)
    cursor.acknowledge(run_of(1, [5]) + run_of(2, [0, 1, 5]))
    world.chain.drop([1])
    cursors.on_trimmed()
    assert (cursor.backlog_entries(), cursor.mark_delete) == (17, Position(2, 1))
    assert cursor.next_unacknowledged(EARLIEST) == Position(2, 2)
    assert cursor.acknowledged_ranges() == [(Position(2, 5), Position(2, 5))]


async def test_trimming_what_was_acknowledged_is_nothing_to_store() -> None:
    world, cursors = await started(10, 10)
    cursor = await cursors.create("sub", EARLIEST)
    cursor.acknowledge(run_of(1, range(10)) + run_of(2, [5]))
    await cursor.flush()
    world.chain.drop([1])
    cursors.on_trimmed()
    assert (cursor.is_stored, cursor.backlog_entries()) == (True, 9)


async def test_statistics_say_where_a_cursor_is() -> None:
    world, cursors = await started(10)
    cursor = await cursors.create("sub", EARLIEST)
    cursor.acknowledge(run_of(1, [0, 5]))
    cursor.acknowledge_batch(Position(1, 7), [1], 2)
    await cursor.flush()
    found = cursor.statistics()
    assert (found.mark_delete, found.stored_mark_delete) == (Position(1, 0), Position(1, 0))
    assert (found.ranges, found.partial_batches, found.backlog_entries) == (1, 1, 8)
    assert (found.ledger_id in world.ledgers.all, found.ledger_last_entry) == (True, 0)
    assert (found.stores, found.store_failures) == (1, 0)


async def test_a_cursor_ledger_says_whose_it_is() -> None:
    world, cursors = await started(10)
    cursor = await cursors.create("a b", EARLIEST)
    cursor.acknowledge(run_of(1, [0]))
    await cursor.flush()
    (ledger,) = world.ledgers.all.values()
    assert ledger.custom == golden.custom_metadata("topic") | golden.custom_metadata("cursor")


# --- ledgers in trouble -----------------------------------------------------------------------------------------------


async def with_ledger(entry: bytes | None, *, is_lost: bool = False) -> CursorWorld:
    """A node with position 1:3 and long property n, and a ledger with this entry, or empty, or lost."""
    world, _ = await started(10, 10)
    client = world.owner().client
    writer = await client.create(custom_metadata={})
    if entry is not None:
        await writer.add(entry)
    if is_lost:
        del world.ledgers.all[writer.ledger_id]
    node = ManagedCursorInfo(cursors_ledger_id=writer.ledger_id, mark_delete_ledger_id=1, mark_delete_entry_id=3)
    node.properties.add(name="n", value=9)
    await world.inner.create(f"{managed_ledger_path(TOPIC)}/sub", node.SerializeToString())
    return world


@pytest.mark.parametrize("is_lost", [False, True], ids=["empty", "lost"])
async def test_without_an_entry_in_the_ledger_the_position_of_the_node_counts(is_lost: bool) -> None:
    world = await with_ledger(None, is_lost=is_lost)
    cursor = (await world.open()).get("sub")
    assert cursor is not None
    assert (cursor.mark_delete, cursor.long_properties) == (Position(1, 3), {"n": 9})
    cursor.acknowledge(run_of(1, [4]))
    await cursor.flush()
    again = (await world.open()).get("sub")
    assert again is not None
    assert again.mark_delete == Position(1, 4)


async def test_a_ledger_that_cannot_be_read_now_keeps_the_topic_from_opening() -> None:
    """Else acknowledged messages would be delivered again, only because a bookie is away."""
    world = await with_ledger(bytes.fromhex("08 01 10 05"))
    for step in ("ledger open", "ledger read"):
        steps = Steps()
        steps.fate = lambda _number, name, step=step: Fate.REFUSED if name == step else None  # type: ignore[misc]
        with pytest.raises(WriterFailedError):
            await world.open(steps)
    cursor = (await world.open()).get("sub")
    assert cursor is not None
    assert cursor.mark_delete == Position(1, 5)


async def test_the_ledger_of_the_owner_before_is_replaced_at_the_first_write_and_deleted() -> None:
    world = await with_ledger(bytes.fromhex("08 01 10 05"))
    (old,) = world.ledgers.all
    cursors = await world.open()
    cursor = cursors.get("sub")
    assert cursor is not None
    assert list(world.ledgers.all) == [old]
    cursor.acknowledge(run_of(1, [6]))
    await cursor.flush()
    await cursors.aclose()
    assert world.ledgers.all == {}
    assert (await world.node()).cursors_ledger_id == NO_LEDGER


async def test_a_missing_cursor_is_named() -> None:
    world, _ = await started(1)
    with pytest.raises(CursorMissingError, match="'a b'"):
        await LedgerCursorStorage.open(TOPIC, "a+b", world.owner())


async def test_old_ledgers_that_are_gone_already_do_no_harm() -> None:
    world = await with_ledger(bytes.fromhex("08 01 10 05"))
    cursors = await world.open()
    cursor = cursors.get("sub")
    assert cursor is not None
    world.ledgers.all.clear()
    cursor.acknowledge(run_of(1, [6]))
    await cursor.flush()
    await cursors.delete("sub")
    with pytest.raises(NoSuchLedgerError):
        await world.owner().client.open(100)
    assert acked_positions(world.chain, cursor) == set(run_of(1, range(7)))


async def test_a_cursor_that_its_old_owner_moves_while_it_is_opened_is_found_where_it_is_then() -> None:
    """The old owner closes: it writes the state into the node, and deletes the ledger that the new one is about to
    read."""
    world, cursors = await started(10)
    old = await cursors.create("sub", EARLIEST)
    for entry_id in range(3):  # The first is stored in the node, the others in a ledger.
        old.acknowledge(run_of(1, [entry_id]))
        await old.flush()
    steps = Steps()
    take = steps.take

    async def closed_before_the_ledger_is_opened(name: str, do: Any, *, refusal: MagnetarError) -> Any:
        if name == "ledger open":
            await cursors.aclose()
        return await take(name, do, refusal=refusal)

    steps.take = closed_before_the_ledger_is_opened  # type: ignore[method-assign]
    new = (await world.open(steps)).get("sub")
    assert new is not None
    assert new.mark_delete == Position(1, 2)
    new.acknowledge(run_of(1, [3]))
    await new.flush()
    assert world.fenced == []


async def test_a_topic_that_was_just_made_has_no_cursors_and_nobody_is_asked() -> None:
    world = CursorWorld(0)
    context = replace(world.owner(), store=cast("Any", None))
    cursors = await Cursors.open(TOPIC, world.chain, context, on_fenced=world.fenced.append, is_new=True)
    assert len(cursors) == 0
