from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

import pytest

from magnetar.config.ledger import LedgerConfig
from magnetar.errors import EntryAbsentError, EntryOutOfRangeError, LacUnknownError, NoSuchLedgerError
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.digests import Entry
from tests.unit.ledger.worlds import QUICK, World, ledger_world, payload_of

pytestmark = pytest.mark.virtual_time

LONG_POLL = dataclasses.replace(QUICK, long_poll_ms=2_000)
POLL = dataclasses.replace(QUICK, tail_long_poll=False, tail_poll_interval_ms=20)
tails = pytest.mark.parametrize("config", [LONG_POLL, POLL], ids=["long poll", "poll"])


def ids_of(entries: list[Entry]) -> list[int]:
    for entry in entries:
        assert bytes(entry.payload) == payload_of(entry.entry_id)
    return [entry.entry_id for entry in entries]


async def fill(world: World, count: int, first: int = 0) -> None:
    for entry_id in range(first, first + count):
        await world.put(entry_id)


# --- bounds -----------------------------------------------------------------------------------------------------------


async def test_regular_read_returns_nothing_beyond_the_lac_of_an_open_ledger() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 5)
        reader = await world.open_reader()
        assert reader.last_confirmed == 3
        assert not reader.is_closed
        assert ids_of(await reader.read(0, 3)) == [0, 1, 2, 3]
        with pytest.raises(EntryOutOfRangeError, match="3 is the last that is"):
            await reader.read(0, 4)
        assert ids_of([entry async for entry in reader]) == [0, 1, 2, 3]
        with pytest.raises(EntryOutOfRangeError):
            _ = [entry async for entry in reader.entries(0, 4)]


async def test_regular_read_returns_nothing_beyond_the_end_of_a_closed_ledger() -> None:
    """Though a bookie has more: what was written and not acknowledged."""
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 5)
        await world.close(2)
        reader = await world.open_reader()
        assert (reader.is_closed, reader.last_confirmed) == (True, 2)
        assert reader.length == sum(len(payload_of(entry_id)) for entry_id in range(3))
        assert ids_of([entry async for entry in reader]) == [0, 1, 2]
        with pytest.raises(EntryOutOfRangeError, match="closed and ends with 2"):
            await reader.read(2, 3)
        with pytest.raises(EntryOutOfRangeError, match="closed and ends with 2"):
            await reader.read_unconfirmed(2, 3)


async def test_unconfirmed_entries_are_read_if_asked_for_by_that_name() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 4)
        await world.put(4, on=[1], lac=3)
        reader = await world.open_reader()
        assert ids_of(await reader.read_unconfirmed(0, 4)) == [0, 1, 2, 3, 4]
        with pytest.raises(EntryAbsentError):
            await reader.read_unconfirmed(5, 5)


@pytest.mark.parametrize("wrong", [(-1, 0), (3, 2)])
async def test_range_that_makes_no_sense_is_refused(wrong: tuple[int, int]) -> None:
    async with ledger_world(1) as world:
        await world.create(E=1, Qw=1, Qa=1)
        await fill(world, 5)
        reader = await world.open_reader()
        with pytest.raises(EntryOutOfRangeError):
            await reader.read(*wrong)


async def test_last_entry_is_that_of_the_lac_as_it_is_now() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        reader = await world.open_reader()
        assert await reader.refresh_lac() == -1
        await fill(world, 5)
        assert await reader.refresh_lac() == 3
        await world.put_explicit_lac(4, on=[0, 1])
        assert await reader.refresh_lac() == 4


async def test_reader_of_an_open_ledger_needs_enough_bookies_to_begin() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 2)
        await world.cluster.kill(0)
        await world.cluster.kill(1)
        with pytest.raises(LacUnknownError):
            await world.open_reader()


async def test_long_ledger_is_iterated_in_chunks() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 100)
        await world.close(99)
        reader = await world.open_reader(read_entries_max=7)
        assert ids_of([entry async for entry in reader]) == list(range(100))


async def test_iteration_that_is_left_early_leaves_no_task_behind() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 50)
        await world.close(49)
        reader = await world.open_reader(read_entries_max=5)
        async with contextlib.aclosing(reader.entries()) as entries:
            async for entry in entries:
                if entry.entry_id == 12:
                    break
        assert tasks_of_readers() == []


async def test_entries_that_were_moved_to_another_bookie_are_found_there() -> None:
    async with ledger_world(2) as world:
        await world.create(E=1, Qw=1, Qa=1)
        await fill(world, 3)
        await world.close(2)
        reader = await world.open_reader()
        stored = await world.metadata()
        moved = dataclasses.replace(stored.value.fragments[0], ensemble=(world.cluster.bookie_ids[1],))
        world.stored = await world.context.ledgers.update(
            dataclasses.replace(stored.value, fragments=(moved,)), stored.version
        )
        await fill(world, 3)
        await world.cluster.kill(0)
        assert ids_of([entry async for entry in reader]) == [0, 1, 2]


# --- the tail ---------------------------------------------------------------------------------------------------------


class Follower:
    """Collects what a tail brings."""

    def __init__(self, reader: LedgerReader) -> None:
        self.reader = reader
        self.seen: list[Entry] = []
        self.lacs: list[int] = []
        self.task = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        async with contextlib.aclosing(self.reader.tail()) as entries:
            async for entry in entries:
                assert entry.entry_id <= self.reader.last_confirmed
                self.seen.append(entry)
                self.lacs.append(self.reader.last_confirmed)

    async def wait_for(self, last: int) -> None:
        await until(lambda: self.task.done() or (self.seen and self.seen[-1].entry_id >= last), f"entry {last}")
        assert self.seen, self.task
        assert self.seen[-1].entry_id == last
        assert ids_of(self.seen) == list(range(last + 1))
        assert self.lacs == sorted(self.lacs)


@contextlib.asynccontextmanager
async def following(world: World) -> AsyncIterator[Follower]:
    follower = Follower(await world.open_reader())
    try:
        yield follower
    finally:
        follower.task.cancel()
        await asyncio.gather(follower.task, return_exceptions=True)


@tails
@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 2, 2)])
async def test_tail_brings_what_is_committed_and_ends_with_the_ledger(
    sizes: tuple[int, int, int], config: LedgerConfig
) -> None:
    async with ledger_world(sizes[0], config) as world:
        await world.create(E=sizes[0], Qw=sizes[1], Qa=sizes[2])
        await fill(world, 3)
        async with following(world) as follower:
            await follower.wait_for(1)
            for entry_id in range(3, 10):
                await world.put(entry_id)
                await follower.wait_for(entry_id - 1)
            await world.close(9)
            await follower.task
            assert ids_of(follower.seen) == list(range(10))


@tails
async def test_tail_of_a_ledger_without_entries_waits_for_the_first(config: LedgerConfig) -> None:
    async with ledger_world(3, config) as world:
        await world.create(E=3, Qw=3, Qa=2)
        async with following(world) as follower:
            await fill(world, 2)
            await follower.wait_for(0)


async def test_tail_hears_of_an_explicit_lac() -> None:
    async with ledger_world(3, LONG_POLL) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        async with following(world) as follower:
            await follower.wait_for(1)
            await world.put_explicit_lac(2, on=[0, 1])
            await follower.wait_for(2)


@tails
async def test_tail_goes_on_with_a_bookie_lost(config: LedgerConfig) -> None:
    async with ledger_world(3, config) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        async with following(world) as follower:
            await follower.wait_for(1)
            await world.cluster.kill(0)
            await world.put(3, on=[1, 2])
            await follower.wait_for(2)
            await world.put(4, on=[1, 2])
            await follower.wait_for(3)


@tails
async def test_tail_follows_the_ensemble_when_it_changes(config: LedgerConfig) -> None:
    async with ledger_world(6, config) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        async with following(world) as follower:
            await follower.wait_for(1)
            stored = await world.metadata()
            ids = tuple(world.cluster.bookie_ids[3:])
            new = dataclasses.replace(stored.value.fragments[0], first_entry_id=3, ensemble=ids)
            changed = dataclasses.replace(stored.value, fragments=(*stored.value.fragments, new))
            world.stored = await world.context.ledgers.update(changed, stored.version)
            await fill(world, 4, first=3)
            await follower.wait_for(5)


async def test_tail_of_a_ledger_that_is_deleted_ends_with_an_error() -> None:
    async with ledger_world(3, LONG_POLL) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        async with following(world) as follower:
            await follower.wait_for(1)
            await world.context.ledgers.delete(world.keys.ledger_id, world.stored.version)
            with pytest.raises(NoSuchLedgerError):
                await follower.task


async def test_tails_of_one_reader_leave_one_watch_behind() -> None:
    async with ledger_world(3, LONG_POLL) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        reader = await world.open_reader()
        before = watches_of(world)
        for _ in range(10):
            async with contextlib.aclosing(reader.tail()) as entries:
                assert (await anext(entries)).entry_id == 0
        assert watches_of(world) == before + 1
        followers = [Follower(reader) for _ in range(2)]
        for follower in followers:
            await follower.wait_for(1)
        await world.close(2)
        for follower in followers:
            await follower.task
            assert ids_of(follower.seen) == [0, 1, 2]
        assert watches_of(world) == before + 1


def watches_of(world: World) -> int:
    return len(world.cluster.server._watches)


async def test_tail_of_a_closed_ledger_ends_at_once() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        await world.close(2)
        reader = await world.open_reader()
        assert ids_of([entry async for entry in reader.tail(1)]) == [1, 2]
        assert ids_of([entry async for entry in reader.tail(3)]) == []


@tails
async def test_tail_that_is_left_leaves_nothing_running(config: LedgerConfig) -> None:
    async with ledger_world(3, config) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        reader = await world.open_reader()
        async with contextlib.aclosing(reader.tail()) as entries:
            async for entry in entries:
                if entry.entry_id == 1:
                    assert tasks_of_readers()
                    break
        assert tasks_of_readers() == []


def tasks_of_readers() -> list[str]:
    """Not those of the bookies, where a long poll waits for its time to be over."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(("tail", "read ledger"))]
