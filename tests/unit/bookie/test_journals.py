"""Several journals: a ledger stays in one, each has its mark, and another number of them loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from magnetar.errors import ConfigError, JournalDamagedError, JournalFailedError, MagnetarError
from magnetar.runtime.disk import Buffer
from magnetar.sim.device import Crash, Fault
from magnetar.storage.frames import by_ledger, scan_frames
from magnetar.storage.journal.files import DIRECTORY
from magnetar.storage.journal.format import JournalRecord, RecordKind, decode_explicit_lac, decode_fence
from magnetar.storage.journal.replay import replay_files
from tests.unit.bookie.journal_nodes import Node, World
from tests.unit.storage.journal_worlds import wait_until


async def ledgers_in(world: World, path: str, mark: int = 0) -> set[int]:
    """Of all records in one journal."""
    found: set[int] = set()

    def deliver(record: JournalRecord) -> None:
        match record.kind:
            case RecordKind.ADDS:
                found.update(ledger_id for ledger_id, _, _ in by_ledger(scan_frames(record.body, "a record")))
            case RecordKind.FENCE:
                found.add(decode_fence(record.body).ledger_id)
            case RecordKind.EXPLICIT_LAC:
                found.add(decode_explicit_lac(record.body).ledger_id)

    disk = world.runtime.disk(path, name="reader")
    await replay_files(disk, DIRECTORY, mark, deliver)
    await disk.aclose()
    return found


async def test_all_records_of_a_ledger_go_to_one_journal_and_a_run_is_split() -> None:
    world = World(journals=3)
    node = await world.open()
    await node.write(*((ledger_id, entry_id) for ledger_id in (0, 1, 2, 3, 4, 7) for entry_id in range(3)))
    await node.write((5, 0))
    await node.wait_durable(node.fence(1), node.explicit_lac(5, b"lac"), node.fence(6))
    await node.aclose()
    assert [await ledgers_in(world, path) for path in world.journals] == [{0, 3, 6}, {1, 4, 7}, {2, 5}]


def hold_syncs(node: Node, number: int) -> asyncio.Event:
    """Holds the syncs of one journal until the event is set."""
    assert node.journals is not None
    released = asyncio.Event()
    slow = node.journals.all[number]._current.file
    sync = slow.append_and_sync

    async def late(chunks: Sequence[Buffer]) -> None:
        await released.wait()
        await sync(chunks)

    slow.append_and_sync = late  # type: ignore[method-assign,assignment]
    return released


async def some_turns() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def test_the_parts_of_a_run_are_told_when_their_own_journal_has_them() -> None:
    world = World()
    node = await world.open()
    released = hold_syncs(node, 1)
    even, odd = node.add([(0, 0), (1, 0)])
    await node.wait_durable(even)
    await some_turns()
    assert odd not in node.durable
    released.set()
    await node.wait_durable(odd)
    await node.aclose()


async def test_each_mark_stops_before_what_is_not_flushed_and_nothing_is_lost() -> None:
    world = World()
    node = await world.open()
    await node.write((0, 0), (0, 1))
    await node.write((1, 0))
    await node.flush()
    await node.write((1, 1))
    assert node.marks.positions == {"/journal-0": 1, "/journal-1": 1}
    world.crash(Crash.DROP_UNSYNCED)
    again = await world.open()
    assert (await ledgers_in(world, "/journal-0", 1), await ledgers_in(world, "/journal-1", 1)) == (set(), {1})
    await again.has((0, 0), (0, 1), (1, 0), (1, 1))
    await again.aclose()
    world.machine.release_dead()


async def test_files_of_every_journal_are_removed_behind_its_mark() -> None:
    world = World()
    node = await world.open()
    for entry_id in range(200):
        await node.write((0, entry_id), (1, entry_id))
    files = [len(journal.files.old) + 1 for journal in node.journals.all]  # type: ignore[union-attr]
    assert min(files) > 3
    await node.flush()
    assert all(len(journal.files.old) < 2 for journal in node.journals.all)  # type: ignore[union-attr]
    await node.aclose()


async def test_when_one_journal_fails_none_acknowledges_anything_more() -> None:
    world = World()
    node = await world.open()
    await node.write((0, 0), (1, 0))
    released = hold_syncs(node, 0)
    (under_way,) = node.add([(0, 1)])
    world.machine.device("/journal-1").faults.strike_next(Fault.SYNC_ERROR)
    node.add([(1, 1)])
    await wait_until(lambda: bool(node.failures))
    with pytest.raises(JournalFailedError):
        node.add([(0, 2)])
    released.set()
    await some_turns()
    assert under_way not in node.durable
    await node.aclose()


# --- without any file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_journal_whose_files_are_all_gone_is_damaged_whatever_the_mark(count: int, is_flushed: bool) -> None:
    world = World(journals=count)
    node = await world.open()
    await node.write((0, 0), (1, 0))
    if is_flushed:
        await node.flush()
        await node.write((0, 1), (1, 1))
    world.crash(Crash.KILL)
    path = world.journals[-1]
    world.machine.device(path).empty(DIRECTORY)
    for _ in range(2):
        with pytest.raises(JournalDamagedError, match=rf"the journal in {path}/journal is damaged: all its files are"):
            await world.open()
    world.machine.release_dead()


@pytest.mark.parametrize("kind", [Crash.KILL, Crash.DROP_UNSYNCED])
@pytest.mark.parametrize("count", [1, 2])
async def test_a_first_start_that_crashes_anywhere_is_not_taken_for_damage(count: int, kind: Crash) -> None:
    is_done = False
    turns = 0
    while not is_done:
        turns += 3
        world = World(journals=count, ledgers=2)
        opening = asyncio.create_task(world.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        is_done = opening.done()
        world.crash(kind)
        world.machine.release_dead()
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        node = await world.open()
        await node.write((0, 0), (1, 0))
        await node.aclose()
    assert turns > 30


async def test_a_retired_journal_that_was_emptied_may_be_named_again() -> None:
    world = World()
    node = await world.open()
    await node.write((0, 0), (1, 0))
    await node.flush()
    await node.aclose()
    await (await world.open(["/journal-0"])).aclose()
    world.machine.device("/journal-1").empty()
    node = await world.open()
    assert node.marks.positions["/journal-1"] == 1
    await node.write((1, 1))
    world.crash(Crash.DROP_UNSYNCED)
    node = await world.open()
    await node.has((0, 0), (1, 0), (1, 1))
    await node.aclose()
    world.machine.release_dead()


async def test_a_journal_whose_files_are_all_gone_cannot_be_left_out() -> None:
    world = World()
    node = await world.open()
    await node.write((0, 0), (1, 0))
    world.crash(Crash.KILL)
    world.machine.device("/journal-1").empty(DIRECTORY)
    refusal = r"no longer names /journal-1, and that journal cannot be read .*all its files are missing"
    with pytest.raises(ConfigError, match=refusal):
        await world.open(["/journal-0"])
    world.machine.release_dead()


# --- another number of journals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 3), (1, 2)])
async def test_with_more_journals_everything_is_there(before: int, after: int) -> None:
    world = World(journals=after)
    node = await world.open(world.journals[:before])
    await node.write(*((ledger_id, 0) for ledger_id in range(6)))
    await node.wait_durable(node.fence(4))
    world.crash(Crash.DROP_UNSYNCED)
    node = await world.open()
    await node.has(*((ledger_id, 0) for ledger_id in range(6)))
    assert (await node.flags(4)).fenced
    await node.write(*((ledger_id, 1) for ledger_id in range(6)))
    world.crash(Crash.DROP_UNSYNCED)
    node = await world.open()
    await node.has(*((ledger_id, entry_id) for ledger_id in range(6) for entry_id in range(2)))
    await node.aclose()
    world.machine.release_dead()


async def test_the_later_explicit_lac_wins_though_the_earlier_is_in_another_journal() -> None:
    """Ledger 3 moves from the second journal of two to the first of three, which is replayed before, and back."""
    world = World(journals=3)
    ledger_id = 3
    for number, journals in enumerate((world.journals[:2], world.journals, world.journals[:2])):
        if number == 2:
            node = await world.open(world.journals)
            await node.flush()
            await node.aclose()
        node = await world.open(journals)
        if number:
            assert (await node.flags(ledger_id)).explicit_lac == b"%d" % (number - 1)
        await node.wait_durable(node.explicit_lac(ledger_id, b"%d" % number))
        world.crash(Crash.DROP_UNSYNCED)
    node = await world.open(world.journals[:2])
    assert (await node.flags(ledger_id)).explicit_lac == b"2"
    await node.aclose()
    world.machine.release_dead()


async def test_a_journal_with_records_that_are_nowhere_else_cannot_be_left_out() -> None:
    world = World()
    node = await world.open()
    await node.write((0, 0), (1, 0))
    await node.flush()
    await node.write((1, 1))
    world.crash(Crash.DROP_UNSYNCED)
    with pytest.raises(ConfigError, match=r"no longer names /journal-1, whose journal has 1 records .* Name it again"):
        await world.open(["/journal-0"])
    node = await world.open()
    await node.flush()
    await node.aclose()
    for _ in range(2):  # Retired now, and not looked at again.
        node = await world.open(["/journal-0"])
        await node.has((0, 0), (1, 0), (1, 1))
        await node.aclose()
        world.machine.device("/journal-1").empty()
    world.machine.release_dead()


async def test_a_journal_that_cannot_be_looked_at_cannot_be_left_out() -> None:
    world = World()
    node = await world.open()
    await node.write((1, 0))
    await node.flush()
    await node.aclose()
    world.machine.device("/journal-1").faults.strike_next(Fault.READ_ERROR)
    with pytest.raises(ConfigError, match=r"no longer names /journal-1, and that journal cannot be read"):
        await world.open(["/journal-0"])


# --- crashes ----------------------------------------------------------------------------------------------------------


class Workload:
    """Adds, fences and flushes forever; knows what must exist."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.entries: dict[tuple[int, int], None] = {}
        self.fenced: dict[int, None] = {}
        self.next_entry = 0

    async def run(self, node: Node) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write(node))
            group.create_task(self._fence(node))
            group.create_task(self._flush(node))

    async def _write(self, node: Node) -> None:
        while True:
            added = []
            for _ in range(self.random.randrange(1, 8)):
                added.append((self.random.randrange(7), self.next_entry))
                self.next_entry += 1
            await node.write(*added)
            self.entries |= dict.fromkeys(added)

    async def _fence(self, node: Node) -> None:
        while True:
            ledger_id = 100 + self.random.randrange(50)
            await node.wait_durable(node.fence(ledger_id))
            self.fenced[ledger_id] = None

    async def _flush(self, node: Node) -> None:
        while True:
            for _ in range(self.random.randrange(200)):
                await asyncio.sleep(0)
            await node.flush()


@pytest.mark.parametrize("kind", list(Crash))
@pytest.mark.parametrize("seed", range(4))
async def test_what_was_acknowledged_is_there_after_any_crash_with_any_number_of_journals(
    seed: int, kind: Crash
) -> None:
    random = Random(f"journals/{seed}/{kind.value}")
    world = World(f"{seed}", journals=3, ledgers=1 + seed % 2)
    workload = Workload(random)
    stopped: list[asyncio.Task[None]] = []
    try:
        for count in (1, 2, 2, 3, 3, 3):  # Journals are added, never taken away unflushed.
            node = await world.open(world.journals[:count])
            await node.has(*workload.entries)
            for ledger_id in workload.fenced:
                assert (await node.flags(ledger_id)).fenced
            running = asyncio.create_task(workload.run(node))
            stopped.append(running)
            for _ in range(random.randrange(100, 900)):
                await asyncio.sleep(0)
            assert not running.done(), running
            world.crash(kind)
            running.cancel()
        assert len(workload.entries) > 50
    finally:
        world.machine.release_dead()
        await asyncio.gather(*stopped, return_exceptions=True)


async def test_every_sync_of_two_journals_is_needed() -> None:
    async def life(ignored: str | None) -> list[str]:
        world = World()
        if ignored is not None:
            world.machine.sites.ignored.add(ignored)
        node = await world.open()
        await node.write((0, 0), (1, 0))
        await node.wait_durable(node.fence(3))
        await node.flush()
        await node.write((0, 1), (1, 1))
        sites = list(world.machine.sites.counts)
        world.crash(Crash.DROP_UNSYNCED)
        world.machine.sites.ignored.clear()
        try:
            node = await world.open()
            await node.has((0, 0), (1, 0), (0, 1), (1, 1))
            assert (await node.flags(3)).fenced
            await node.aclose()
        finally:
            world.machine.release_dead()
        return sites

    needed = []
    for site in await life(None):
        try:
            await life(site)
        except (AssertionError, MagnetarError):
            needed.append(site)
    assert any("journal.py" in site for site in needed), needed
    assert any("journal_mark.py" in site or "entry_log" in site for site in needed), needed
