"""A damaged journal or a lost disk: refused, repaired, and from then on nothing that may be forgotten is denied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from magnetar.bookie.directories import COOKIE_FILE, REPAIR_FILE, open_directories
from magnetar.bookie.identity import establish, identify_for_repair, restore_port
from magnetar.bookie.limbo import RepairReport, Suspects, find_suspects, repair
from magnetar.config.bookie import BookieConfig
from magnetar.errors import ConfigError, CookieMismatchError, JournalDamagedError, MarkDamagedError
from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.metadata.bookkeeper.cookies import CookieStore
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import ANY_VERSION, MetadataStore
from magnetar.runtime.system import SystemEntropy
from magnetar.sim.device import Crash
from magnetar.storage.entry_log.ledger_dirs import LedgerDirs
from magnetar.storage.entry_log.reader import EntryLogReader
from magnetar.storage.index.ordered_store import MemoryImage
from magnetar.storage.index.rebuild import rebuild_index
from magnetar.storage.journal.files import DIRECTORY
from tests.unit.bookie.conftest import PATHS
from tests.unit.bookie.journal_nodes import Node, World
from tests.unit.storage.samples import listed

US = BookieId("127.0.0.1:3181")
A, B = BookieId("a:1"), BookieId("b:1")
OPEN, CLOSED, ELSEWHERE, EARLIER, RECOVERING, RECOVERED_FROM = 1, 2, 3, 4, 5, 6
IN_LIMBO, FENCED = [OPEN, RECOVERING], [CLOSED, RECOVERED_FROM]


def ledger(ledger_id: int, state: LedgerState, *ensembles: tuple[BookieId, ...]) -> LedgerMetadata:
    fragments = tuple(Fragment(EntryId(100 * number), ensemble) for number, ensemble in enumerate(ensembles))
    last = {"last_entry_id": EntryId(300), "length": 1} if state is LedgerState.CLOSED else {}
    quorums = {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2}
    return LedgerMetadata(ledger_id=LedgerId(ledger_id), state=state, fragments=fragments, **quorums, **last)  # type: ignore[arg-type]


LEDGERS = [
    ledger(OPEN, LedgerState.OPEN, (A, B), (US, B)),
    ledger(CLOSED, LedgerState.CLOSED, (US, B)),
    ledger(ELSEWHERE, LedgerState.OPEN, (A, B)),
    ledger(EARLIER, LedgerState.OPEN, (US, B), (A, B)),
    ledger(RECOVERING, LedgerState.IN_RECOVERY, (US, B)),
    ledger(RECOVERED_FROM, LedgerState.IN_RECOVERY, (US, B), (A, B)),
]


@pytest.fixture
async def store(server: MemoryServer) -> AsyncIterator[MetadataStore]:
    async with server.connect() as connected:
        await create_ledgers(connected)
        yield connected


async def create_ledgers(store: MetadataStore) -> None:
    for metadata in LEDGERS:
        await ledgers_of(store).create(metadata)


def ledgers_of(store: MetadataStore) -> LedgerMetadataStore:
    return LedgerMetadataStore(store, PATHS, SystemEntropy())


def config_of(world: World, **changes: object) -> BookieConfig:
    dirs = {"journal_dirs": ",".join(world.journals), "ledger_dirs": ",".join(world.ledgers)}
    return BookieConfig(**(dirs | {"port": 3181} | changes))  # type: ignore[arg-type]


async def start(world: World, store: MetadataStore) -> Node:
    """As a bookie does, up to where it would listen."""
    directories = await open_directories(world.runtime, world.layout())
    try:
        await establish(directories, store, PATHS, config_of(world), port=3181)
    finally:
        await directories.aclose()
    return await world.open()


async def run_repair(world: World, store: MetadataStore, config: BookieConfig | None = None) -> RepairReport:
    config = config or config_of(world)
    directories = await open_directories(world.runtime, world.layout())
    try:
        found = await identify_for_repair(directories, store, PATHS, config)
        suspects = await find_suspects(ledgers_of(store), found.cookie.bookie_id)
        await restore_port(directories, config, found.cookie.bookie_id)
        lost = [directory.path for directory in found.lost]

        async def rebuild() -> None:
            await rebuild_of(world, keeps_flags=world.ledgers[0] not in lost)

        return await repair(
            directories,
            found.cookie,
            found.lost,
            suspects,
            entropy=world.runtime.entropy,
            open_storage=world.open_storage,
            rebuild_index=rebuild,
        )
    finally:
        await directories.aclose()


async def rebuild_of(world: World, *, keeps_flags: bool) -> None:
    """The new index takes the old one's place at one moment."""
    dirs = await LedgerDirs.open(world.runtime, world.ledgers)
    logs = EntryLogReader(dirs, 2)
    old = world.index() if keeps_flags else None
    mark = await old.mark() if old is not None else 2**40  # Far enough for any mark of these tests.
    before, image = world.image, MemoryImage()
    world.image = image
    new = world.index()
    world.image = before
    await rebuild_index(dirs, logs, new, old=old, mark=mark)
    world.image = image
    for index in (old, new):
        if index is not None:
            await index.aclose()
    await logs.aclose()
    await dirs.aclose()


async def names(world: World, path: str, directory: str = DIRECTORY) -> list[str]:
    disk = world.runtime.disk(path, name="reader")
    try:
        return await disk.list(directory)
    finally:
        await disk.aclose()


async def journal_files(world: World) -> list[str]:
    return [name for name in await names(world, "/journal-0") if name.endswith(".journal")]


async def write_and_crash(world: World, store: MetadataStore) -> list[tuple[int, int]]:
    """Writes several files of single groups after the mark; returns the entries in order."""
    node = await start(world, store)
    written = []
    for entry_id in range(100):
        for ledger_id in (OPEN, CLOSED):
            await node.write((ledger_id, entry_id))
            written.append((ledger_id, entry_id))
        if entry_id in (9, 29):  # The journal's first files are deleted then.
            await node.flush()
    await node.wait_durable(node.fence(ELSEWHERE))
    world.crash(Crash.KILL)
    return written


async def damage(world: World, file: int = 1, at: float = 0.5) -> str:
    """Somewhere inside a journal file that is followed by others."""
    name = (await journal_files(world))[file]
    device, path = world.machine.device("/journal-0"), f"{DIRECTORY}/{name}"
    device.flip_bit(path, int(len(device.cached(path)) * at))
    return name


async def check_flags(node: Node) -> None:
    for ledger_id in IN_LIMBO:
        flags = await node.flags(ledger_id)
        assert (flags.limbo, flags.fenced) == (True, True), ledger_id
    for ledger_id in FENCED:
        flags = await node.flags(ledger_id)
        assert (flags.limbo, flags.fenced) == (False, True), ledger_id
    assert not (await node.flags(EARLIER)).fenced
    assert not (await node.flags(ELSEWHERE)).limbo


async def missing_of(node: Node, entries: list[tuple[int, int]]) -> list[tuple[int, int]]:
    assert node.storage is not None
    here = {ledger_id: await listed(node.storage, ledger_id) for ledger_id in (OPEN, CLOSED)}
    return [(ledger_id, entry_id) for ledger_id, entry_id in entries if entry_id not in here[ledger_id]]


# --- which ledgers ----------------------------------------------------------------------------------------------------


async def test_ledgers_in_doubt_are_those_not_closed_whose_last_ensemble_has_us(store: MetadataStore) -> None:
    assert await find_suspects(ledgers_of(store), US) == Suspects(IN_LIMBO, FENCED)


async def test_a_ledger_with_damaged_metadata_is_in_doubt_too(store: MetadataStore) -> None:
    await store.put(PATHS.ledger(LedgerId(ELSEWHERE)), b"BookieMetadataFormatVersion\t3\nnonsense", 0)
    found = await find_suspects(ledgers_of(store), US)
    assert found == Suspects([OPEN, ELSEWHERE, RECOVERING], FENCED, [ELSEWHERE])


async def test_more_ledgers_than_are_read_at_once_are_all_found(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.bookie.limbo._READS_AT_ONCE", 4)
    assert await find_suspects(ledgers_of(store), US) == Suspects(IN_LIMBO, FENCED)


# --- a damaged journal ------------------------------------------------------------------------------------------------


async def test_a_kill_with_an_intact_journal_puts_nothing_in_limbo(store: MetadataStore) -> None:
    world = World(journals=1)
    written = await write_and_crash(world, store)
    node = await start(world, store)
    await node.has(*written)
    for ledger_id in range(8):
        assert not (await node.flags(ledger_id)).limbo
    await node.aclose()
    world.machine.release_dead()


@pytest.mark.parametrize("at", [0.0, 0.3, 0.9])
async def test_a_damaged_file_is_set_aside_and_all_before_and_behind_it_is_kept(
    store: MetadataStore, at: float
) -> None:
    world = World(journals=1)
    written = await write_and_crash(world, store)
    name = await damage(world, at=at)
    before = await journal_files(world)
    with pytest.raises(JournalDamagedError, match=name):
        await start(world, store)
    report = await run_repair(world, store)
    assert report.set_aside == [f"/journal-0/{DIRECTORY}/{name}.damaged"]
    assert report.missing_records
    after = await names(world, "/journal-0")
    assert f"{name}.damaged" in after
    assert set(before) - {name} <= set(after)
    node = await start(world, store)
    await check_flags(node)
    assert (await node.flags(ELSEWHERE)).fenced  # From the journal, after the damage.
    missing = await missing_of(node, written)
    assert 0 < len(missing) <= report.missing_records < len(written) / 3
    await node.has(*(entry for entry in written if entry not in missing))
    await node.write((CLOSED, 1000))
    world.crash(Crash.DROP_UNSYNCED)
    node = await start(world, store)
    await node.has((CLOSED, 1000))
    await node.aclose()
    world.machine.release_dead()


async def test_several_damaged_files_and_one_that_is_gone_are_got_past(store: MetadataStore) -> None:
    world = World(journals=1)
    written = await write_and_crash(world, store)
    damaged = [await damage(world, 1), await damage(world, 3, at=0.0)]
    gone = (await journal_files(world))[4]
    disk = world.runtime.disk("/journal-0", name="remover")
    await disk.remove(f"{DIRECTORY}/{gone}")
    await disk.sync_dir(DIRECTORY)
    await disk.aclose()
    report = await run_repair(world, store)
    assert report.set_aside == [f"/journal-0/{DIRECTORY}/{name}.damaged" for name in damaged]
    node = await start(world, store)
    await check_flags(node)
    assert written[-1] not in await missing_of(node, written)
    await node.aclose()
    world.machine.release_dead()


async def test_an_only_file_without_its_header_is_set_aside_and_the_journal_begins_anew(store: MetadataStore) -> None:
    world = World(journals=1)
    await write_and_crash(world, store)
    disk = world.runtime.disk("/journal-0", name="remover")
    *others, last = await journal_files(world)
    for name in others:
        await disk.remove(f"{DIRECTORY}/{name}")
    file = await disk.open(f"{DIRECTORY}/{last}")
    await file.truncate(10)
    await file.sync()
    await file.aclose()
    await disk.aclose()
    with pytest.raises(JournalDamagedError, match=last):
        await start(world, store)
    report = await run_repair(world, store)
    assert report.set_aside == [f"/journal-0/{DIRECTORY}/{last}.damaged"]
    node = await start(world, store)
    await check_flags(node)
    await node.aclose()
    world.machine.release_dead()


@pytest.mark.parametrize("journals", [1, 2])
@pytest.mark.parametrize("damaged", [1, 2], ids=["one of two", "both"])
async def test_a_damaged_mark_is_made_anew_and_nothing_that_the_journal_has_is_missing(
    store: MetadataStore, journals: int, damaged: int
) -> None:
    world = World(journals=journals)
    written = await write_and_crash(world, store)
    for root in world.ledgers[:damaged]:
        world.machine.device(root).flip_bit("lastmark", 10)
    with pytest.raises(MarkDamagedError, match="magnetar bookie limbo"):
        await start(world, store)
    await run_repair(world, store)
    node = await start(world, store)
    await check_flags(node)
    assert await missing_of(node, written) == []
    await node.aclose()
    world.machine.release_dead()


async def test_a_name_that_is_taken_is_not_overwritten(store: MetadataStore) -> None:
    world = World(journals=1)
    await write_and_crash(world, store)
    name = await damage(world)
    disk = world.runtime.disk("/journal-0", name="maker")
    await (await disk.open(f"{DIRECTORY}/{name}.damaged", create=True)).aclose()
    await disk.aclose()
    assert (await run_repair(world, store)).set_aside == [f"/journal-0/{DIRECTORY}/{name}.damaged.2"]
    world.machine.release_dead()


async def test_a_file_that_is_not_the_journals_is_left_where_it_is(store: MetadataStore) -> None:
    world = World(journals=1)
    await (await start(world, store)).aclose()
    disk = world.runtime.disk("/journal-0", name="maker")
    await (await disk.open(f"{DIRECTORY}/copy of 1.journal", create=True)).aclose()
    await disk.aclose()
    with pytest.raises(JournalDamagedError, match=r"/journal-0/journal/copy of 1.journal.*move it elsewhere"):
        await run_repair(world, store)
    assert "copy of 1.journal" in await names(world, "/journal-0")


async def remove_files(world: World) -> None:
    world.machine.device("/journal-0").empty(DIRECTORY)


async def remove_directory(world: World) -> None:
    await remove_files(world)
    world.machine.device("/journal-0").tree.root.entries.pop(DIRECTORY)


async def leave_one_that_is_damaged(world: World) -> None:
    """As if the power had gone before the next one was prepared."""
    used, *others = await journal_files(world)
    disk = world.runtime.disk("/journal-0", name="remover")
    for name in others:
        await disk.remove(f"{DIRECTORY}/{name}")
    await disk.sync_dir(DIRECTORY)
    await disk.aclose()
    world.machine.device("/journal-0").flip_bit(f"{DIRECTORY}/{used}", 3)


@pytest.mark.parametrize("harm", [remove_files, remove_directory, leave_one_that_is_damaged])
async def test_a_journal_that_is_left_without_a_file_begins_anew_behind_the_mark(
    store: MetadataStore, harm: Callable[[World], Awaitable[None]]
) -> None:
    world = World(journals=1)
    written = await write_and_crash(world, store)
    await harm(world)
    with pytest.raises(JournalDamagedError, match="/journal-0/journal"):
        await start(world, store)
    await run_repair(world, store)
    world.crash(Crash.DROP_UNSYNCED)
    assert len(await journal_files(world)) == 1
    node = await start(world, store)
    await check_flags(node)
    missing = await missing_of(node, written)
    assert missing == written[60:], "all behind the last flush"
    assert node.marks.positions == {"/journal-0": 60}
    await node.write((CLOSED, 1000))
    world.crash(Crash.DROP_UNSYNCED)
    node = await start(world, store)
    await node.has((CLOSED, 1000), *written[:60])
    await node.aclose()
    world.machine.release_dead()


async def test_the_other_journal_is_replayed_in_full(store: MetadataStore) -> None:
    world = World(journals=2)
    written = await write_and_crash(world, store)
    await damage(world)  # The first journal's: it has the even ledgers.
    await run_repair(world, store)
    node = await start(world, store)
    await check_flags(node)
    missing = await missing_of(node, written)
    assert missing
    assert {ledger_id for ledger_id, _ in missing} == {CLOSED}
    await node.aclose()
    world.machine.release_dead()


async def test_repairing_what_is_whole_changes_flags_only(store: MetadataStore) -> None:
    world = World(journals=1)
    written = await write_and_crash(world, store)
    report = await run_repair(world, store)
    assert (report.set_aside, report.missing_records, report.stamped) == ([], 0, [])
    node = await start(world, store)
    await node.has(*written)
    await check_flags(node)
    await node.aclose()
    world.machine.release_dead()


# --- a lost disk ------------------------------------------------------------------------------------------------------


def lose(world: World, path: str) -> None:
    world.machine.device(path).empty()
    if path == world.ledgers[0]:
        world.image = MemoryImage()


@pytest.mark.parametrize("path", ["/journal-0", "/journal-1", "/ledgers-0", "/ledgers-1"])
async def test_a_lost_directory_is_taken_back_when_all_that_may_be_forgotten_is_in_limbo(
    store: MetadataStore, path: str
) -> None:
    world = World(journals=2, ledgers=2)
    written = await write_and_crash(world, store)
    lose(world, path)
    with pytest.raises(CookieMismatchError, match=rf"none in {path}: .* magnetar bookie limbo "):
        await start(world, store)
    report = await run_repair(world, store)
    assert (report.stamped, report.missing_records) == ([path], 0)
    assert REPAIR_FILE not in await names(world, path, "")
    node = await start(world, store)
    for ledger_id in IN_LIMBO:
        flags = await node.flags(ledger_id)
        assert (flags.limbo, flags.fenced) == (True, True)
    missing = await missing_of(node, written)
    await node.has(*(entry for entry in written if entry not in missing))
    await node.write((CLOSED, 1000), (OPEN, 1000))
    world.crash(Crash.DROP_UNSYNCED)
    node = await start(world, store)
    await node.has((CLOSED, 1000))
    await node.aclose()
    world.machine.release_dead()


async def test_a_bookie_that_waits_for_a_repair_does_not_start_before_it(store: MetadataStore) -> None:
    """As a rebuild of its index leaves it, when that could not find the fences."""
    world = World(journals=1)
    await write_and_crash(world, store)
    directories = await open_directories(world.runtime, world.layout())
    await directories.first_ledger.write(REPAIR_FILE, b"")
    await directories.aclose()
    refusal = "REPAIRING in /ledgers-0 says: .* fences of the old one, .* magnetar bookie limbo "
    with pytest.raises(CookieMismatchError, match=refusal):
        await start(world, store)
    await run_repair(world, store)
    world.crash(Crash.DROP_UNSYNCED)
    node = await start(world, store)
    await check_flags(node)
    await node.aclose()
    world.machine.release_dead()


async def test_a_bookie_that_lost_everything_is_named_by_its_id(store: MetadataStore) -> None:
    world = World(journals=1)
    await write_and_crash(world, store)
    for path in (*world.journals, *world.ledgers):
        lose(world, path)
    with pytest.raises(ConfigError, match="name it with --id"):
        await run_repair(world, store, config_of(world, port=0))
    report = await run_repair(world, store, config_of(world, port=0, bookie_id=US))
    assert report.stamped == ["/journal-0", "/ledgers-0"]
    device = world.machine.device("/ledgers-0")
    assert device.cached("port") == b"3181\n"
    node = await start(world, store)
    await check_flags(node)
    await node.aclose()
    world.machine.release_dead()


async def test_a_directory_with_something_in_it_and_no_cookie_is_refused(store: MetadataStore) -> None:
    world = World(journals=1)
    await write_and_crash(world, store)
    disk = world.runtime.disk("/journal-0", name="remover")
    await disk.remove(COOKIE_FILE)
    await disk.aclose()
    with pytest.raises(CookieMismatchError, match=r"/journal-0 has no cookie but is not empty .*cookie get .* --raw"):
        await run_repair(world, store)
    world.machine.release_dead()


async def test_a_bookie_that_the_metadata_does_not_know_is_refused(store: MetadataStore) -> None:
    world = World(journals=1)
    with pytest.raises(CookieMismatchError, match="no cookie in the metadata"):
        await run_repair(world, store)


# --- crashes ----------------------------------------------------------------------------------------------------------


async def crash_after(world: World, store: MetadataStore, turns: int, kind: Crash) -> bool:
    """Whether the repair was done by then."""
    running = asyncio.create_task(run_repair(world, store))
    for _ in range(turns):
        await asyncio.sleep(0)
    is_done = running.done()
    world.crash(kind)
    world.machine.release_dead()
    if not is_done:
        running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return is_done


async def crash_everywhere(
    store: MetadataStore, make: Callable[[], World], harm: Callable[[World], Awaitable[None]], kind: Crash, step: int
) -> tuple[int, int]:
    """Crashes a repair ever later; how often the bookie then refused to start, and how often it started, in limbo."""
    refused = started = turns = 0
    is_done = False
    while not is_done:
        turns += step
        world = make()
        if turns > step:  # Another machine: its bookie is a new one.
            await CookieStore(store, PATHS).delete(US, ANY_VERSION)
        await write_and_crash(world, store)
        await harm(world)
        is_done = await crash_after(world, store, turns, kind)
        try:
            node = await start(world, store)
        except (JournalDamagedError, CookieMismatchError):
            refused += 1
            assert not is_done
            await run_repair(world, store)
            node = await start(world, store)
        else:
            started += 1
        for ledger_id in IN_LIMBO:
            flags = await node.flags(ledger_id)
            assert (flags.limbo, flags.fenced) == (True, True)
        await node.aclose()
        world.machine.release_dead()
    return refused, started


@pytest.mark.parametrize("kind", [Crash.KILL, Crash.DROP_UNSYNCED])
async def test_a_repair_of_a_damaged_journal_that_crashes_anywhere_leaves_a_refusal_or_limbo(
    store: MetadataStore, kind: Crash
) -> None:
    async def harm(world: World) -> None:
        await damage(world)

    refused, started = await crash_everywhere(store, lambda: World(journals=1), harm, kind, step=7)
    assert refused > 5
    assert started


@pytest.mark.parametrize("kind", [Crash.KILL, Crash.DROP_UNSYNCED])
@pytest.mark.parametrize("harm", [remove_files, leave_one_that_is_damaged])
async def test_a_repair_of_a_journal_without_files_that_crashes_anywhere_leaves_a_refusal_or_limbo(
    store: MetadataStore, harm: Callable[[World], Awaitable[None]], kind: Crash
) -> None:
    refused, started = await crash_everywhere(store, lambda: World(journals=1), harm, kind, step=7)
    assert refused > 5
    assert started


@pytest.mark.parametrize("path", ["/journal-0", "/ledgers-0", "/ledgers-1"])
async def test_a_repair_of_a_lost_directory_that_crashes_anywhere_leaves_a_refusal_or_limbo(
    store: MetadataStore, path: str
) -> None:
    async def harm(world: World) -> None:
        lose(world, path)

    refused, started = await crash_everywhere(
        store, lambda: World(journals=1, ledgers=2), harm, Crash.DROP_UNSYNCED, step=17
    )
    assert refused > 5
    assert started
