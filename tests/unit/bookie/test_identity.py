"""A bookie's identity: the same after any crash, and refused with a disk that is not its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from magnetar.bookie.directories import (
    COOKIE_FILE,
    PORT_FILE,
    DirectoryLayout,
    keep_port,
    kept_port,
    open_directories,
)
from magnetar.bookie.identity import Identity, establish, make_cookie, port_to_bind
from magnetar.config.bookie import BookieConfig
from magnetar.errors import ClusterMissingError, ConfigError, CookieMismatchError, DiskError, FileLockedError
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.cluster import init_cluster, read_cluster
from magnetar.metadata.bookkeeper.cookies import CookieStore, encode_cookie
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.local import Fate, Link
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import ANY_VERSION, Create, MetadataStore, Request
from magnetar.runtime.runtime import Runtime
from magnetar.runtime.system import SystemRuntime
from magnetar.sim.device import Crash, Fault, SyncSites
from magnetar.sim.machine import SimMachine
from magnetar.testing.waiting import until

PATHS = BookKeeperPaths()
CONFIG = BookieConfig(dir="/bookie")
LAYOUT = DirectoryLayout.from_config(CONFIG, base="/")
ID = BookieId("127.0.0.1:3181")
OTHER_PORT = 40_000  # What "the system" chose.


async def start(
    runtime: Runtime, store: MetadataStore, config: BookieConfig = CONFIG, *, paths: BookKeeperPaths = PATHS
) -> Identity:
    """All that a bookie does about its identity on start, and a clean stop."""
    directories = await open_directories(runtime, DirectoryLayout.from_config(config, base="/"))
    try:
        port = await port_to_bind(directories, config) or OTHER_PORT
        return await establish(directories, store, paths, config, port=port)
    finally:
        await directories.aclose()


async def put_data(runtime: Runtime, directory: str, name: str = "0.log") -> None:
    disk = runtime.disk(directory, name="data")
    await disk.make_dir("")
    file = await disk.open(name, create=True)
    await file.append_and_sync([b"entries"])
    await file.aclose()
    await disk.sync_dir()
    await disk.aclose()


async def remove(runtime: Runtime, directory: str, name: str) -> None:
    disk = runtime.disk(directory, name="remover")
    await disk.remove(name)
    await disk.sync_dir()
    await disk.aclose()


async def names(runtime: Runtime, directory: str) -> list[str]:
    disk = runtime.disk(directory, name="reader")
    try:
        return await disk.list()
    finally:
        await disk.aclose()


# --- first start and later ones ---------------------------------------------------------------------------------------


async def test_a_first_start_stamps_every_directory_and_the_metadata(server: MemoryServer, tmp_path: Path) -> None:
    config = BookieConfig(dir=str(tmp_path))
    async with server.connect() as store:
        identity = await start(SystemRuntime(), store, config)
        stored = await CookieStore(store, PATHS).read(ID)
        cluster = await read_cluster(store, PATHS)
    assert identity.is_first_start
    assert identity.bookie_id == ID
    assert stored is not None
    assert stored.value == identity.cookie
    assert stored.value.instance_id == cluster.instance_id
    for name in ("journal", "ledgers"):
        assert (tmp_path / name / COOKIE_FILE).read_bytes() == encode_cookie(identity.cookie)


async def test_a_later_start_is_the_same_bookie_and_writes_no_cookie(server: MemoryServer) -> None:
    machine = SimMachine("later")
    runtime = machine.start()
    async with server.connect() as store:
        first = await start(runtime, store)
        for directory in LAYOUT.all:
            await put_data(runtime, directory)
        again = await start(runtime, store)
        stored = await CookieStore(store, PATHS).read(ID)
    assert again.cookie == first.cookie
    assert not again.is_first_start
    assert stored is not None
    assert stored.version == 0


async def test_a_first_start_without_a_cluster_says_how_to_make_one() -> None:
    from magnetar.config.metadata import MetadataConfig
    from magnetar.runtime.system import SystemEntropy

    empty = MemoryServer(SystemEntropy(), MetadataConfig(url="memory:"))
    async with empty.connect() as store:
        with pytest.raises(ClusterMissingError, match="magnetar metadata init"):
            await start(SimMachine("no cluster").start(), store)
    await empty.aclose()


async def test_a_fresh_file_systems_lost_and_found_is_no_data(server: MemoryServer) -> None:
    runtime = SimMachine("mkfs").start()
    disk = runtime.disk("/bookie/journal", name="mkfs")
    await disk.make_dir("lost+found")
    await disk.aclose()
    async with server.connect() as store:
        assert (await start(runtime, store)).is_first_start


# --- the port and the id ----------------------------------------------------------------------------------------------


async def test_a_port_chosen_by_the_system_is_kept_and_used_again(server: MemoryServer) -> None:
    runtime = SimMachine("port").start()
    config = BookieConfig(dir="/bookie", port=0)
    async with server.connect() as store:
        first = await start(runtime, store, config)
        directories = await open_directories(runtime, LAYOUT)
        assert await port_to_bind(directories, config) == OTHER_PORT
        await directories.aclose()
        again = await start(runtime, store, config)
    assert first.bookie_id == again.bookie_id == f"127.0.0.1:{OTHER_PORT}"


async def test_a_configured_port_wins_over_the_kept_one_and_is_kept_in_turn(server: MemoryServer) -> None:
    runtime = SimMachine("port").start()
    async with server.connect() as store:
        await start(runtime, store, BookieConfig(dir="/bookie", bookie_id="b1", port=0))
        moved = await start(runtime, store, BookieConfig(dir="/bookie", bookie_id="b1", port=5000))
        again = await start(runtime, store, BookieConfig(dir="/bookie", bookie_id="b1", port=0))
    assert moved.port == again.port == 5000


async def test_a_refused_start_does_not_change_the_kept_port(server: MemoryServer) -> None:
    runtime = SimMachine("port").start()
    async with server.connect() as store:
        await start(runtime, store)
        with pytest.raises(CookieMismatchError, match=r"bookie id is '127\.0\.0\.1:5000'"):
            await start(runtime, store, BookieConfig(dir="/bookie", port=5000))
    directories = await open_directories(runtime, LAYOUT)
    assert await kept_port(directories) == 3181
    await directories.aclose()


@pytest.mark.parametrize("content", [b"", b"many\n", b"0\n", b"65536\n", b"-1\n", b"123456789\n", b"\xff"])
async def test_a_damaged_port_file_is_named(content: bytes) -> None:
    runtime = SimMachine("port").start()
    directories = await open_directories(runtime, LAYOUT)
    await directories.first_ledger.write(PORT_FILE, content)
    with pytest.raises(DiskError, match="/bookie/ledgers/port does not hold a port"):
        await kept_port(directories)
    await directories.aclose()


async def test_the_id_is_as_configured_or_the_advertised_host_and_port(server: MemoryServer) -> None:
    async with server.connect() as store:
        one = await start(SimMachine("1").start(), store, BookieConfig(dir="/b", bookie_id="bookie-1"))
        two = await start(SimMachine("2").start(), store, BookieConfig(dir="/b", advertised_host="bk2.example.org"))
    assert (one.bookie_id, two.bookie_id) == ("bookie-1", "bk2.example.org:3181")


# --- one process at a time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", ["journal", "ledger"])
async def test_two_bookies_never_use_one_directory(shared: str, tmp_path: Path) -> None:
    dirs = {name: (f"{tmp_path}/a-{name}",) for name in ("journal", "ledger")}
    others = {name: (f"{tmp_path}/b-{name}",) for name in dirs} | {shared: dirs[shared]}
    first = await open_directories(SystemRuntime(), DirectoryLayout(**dirs))
    with pytest.raises(FileLockedError, match=f"a-{shared}/lock is locked by process"):
        await open_directories(SystemRuntime(), DirectoryLayout(**others))
    await first.aclose()
    second = await open_directories(SystemRuntime(), DirectoryLayout(**others))
    await second.aclose()


def test_directories_that_share_a_place_are_refused() -> None:
    for journal, ledger in (("/a", "/a"), ("/a", "/a/ledgers"), ("/a/journal", "/a")):
        with pytest.raises(ConfigError, match="must be apart"):
            DirectoryLayout((journal,), (ledger,))
    DirectoryLayout(("/a",), ("/a-b", "/ab"))


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/with,comma", "/with\ttab", "/with\nline"])
def test_a_directory_that_a_cookie_cannot_hold_is_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        DirectoryLayout((path,), ("/ledgers",))


def test_directories_are_below_the_one_or_as_named() -> None:
    assert DirectoryLayout.from_config(BookieConfig(dir="data"), base="/home/me").all == (
        "/home/me/data/journal",
        "/home/me/data/ledgers",
    )
    named = BookieConfig(journal_dirs="/nvme/j1, /nvme/j2", ledger_dirs="/hdd1,hdd2/")
    layout = DirectoryLayout.from_config(named, base="/home/me")
    assert layout.journal == ("/nvme/j1", "/nvme/j2")
    assert layout.ledger == ("/hdd1", "/home/me/hdd2")
    assert make_cookie(ID, layout, None).index_dirs is None, "the index is with the entry logs"


# --- crashes during the first start -----------------------------------------------------------------------------------


class Steps:
    """Lets the first `allowed` steps of a start happen. A step is a change of a disk or of the metadata."""

    def __init__(self, allowed: int) -> None:
        self.taken = 0
        self.crashed = asyncio.Event()
        self._allowed = allowed

    async def take(self) -> None:
        if self.taken == self._allowed:
            self.crashed.set()
            await asyncio.Event().wait()  # Forever: the process is dead.
        self.taken += 1


def stepped(target: object, methods: Sequence[str], steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in methods:
        original: Callable[..., Awaitable[object]] = getattr(target, method)

        def counted(*args: object, _original: Callable[..., Awaitable[object]] = original, **options: object) -> object:
            async def run() -> object:
                await steps.take()
                return await _original(*args, **options)

            return run()

        monkeypatch.setattr(target, method, counted)


async def crash_after(
    count: int, kind: Crash, server: MemoryServer, machine: SimMachine, config: BookieConfig, patch: pytest.MonkeyPatch
) -> bool:
    """Runs a first start up to its step `count`; whether it was cut short."""
    from magnetar.sim.disk import SimDisk, SimFile

    steps = Steps(count)
    store = server.connect()
    with patch.context() as patched:
        stepped(SimDisk, ("open", "make_dir", "rename", "remove", "lock", "sync_dir"), steps, patched)
        stepped(SimFile, ("append_and_sync", "truncate"), steps, patched)
        stepped(store, ("create", "put", "delete", "transact"), steps, patched)
        starting = asyncio.ensure_future(start(machine.start(), store, config))
        stopped = asyncio.ensure_future(steps.crashed.wait())
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        was_cut = not starting.done()
        machine.crash(kind)
    stopped.cancel()

    def is_over() -> bool:
        starting.cancel()  # What it does in its last moments, it does to dead disks.
        machine.release_dead()
        return starting.done()

    await until(is_over, "the dead process has left the test")
    await store.aclose()
    return was_cut


@pytest.mark.parametrize("kind", list(Crash))
@pytest.mark.parametrize("port", [3181, 0])
async def test_a_crash_between_any_two_steps_of_the_first_start_is_finished_by_the_next(
    kind: Crash, port: int, server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0
    while True:
        machine = SimMachine(f"{count}/{kind.value}")
        config = BookieConfig(dir="/bookie", port=port, bookie_id=f"b-{count}")
        was_cut = await crash_after(count, kind, server, machine, config, monkeypatch)
        async with server.connect() as store:
            await start(machine.start(), store, config)
            assert not (await start(machine.start(), store, config)).is_first_start
        if not was_cut:
            break
        count += 1
    assert count > 15, "the first start has more steps than that"


async def test_a_second_crash_while_a_first_start_is_being_finished_is_finished_too(
    server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in (9, 13, 17):
        for second in range(6, 24, 2):
            machine = SimMachine(f"{first}/{second}")
            config = BookieConfig(dir="/bookie", bookie_id=f"twice-{first}-{second}")
            await crash_after(first, Crash.POWER_LOSS, server, machine, config, monkeypatch)
            await crash_after(second, Crash.POWER_LOSS, server, machine, config, monkeypatch)
            async with server.connect() as store:
                await start(machine.start(), store, config)


async def test_every_sync_of_the_first_start_is_needed(server: MemoryServer) -> None:
    sites = await _sites_of_a_first_start(server)
    assert len(sites.counts) >= 2
    for number, site in enumerate(sites.counts):
        machine = SimMachine(f"ignored {site}")
        machine.sites.ignored.add(site)
        config = BookieConfig(dir="/bookie", bookie_id=f"unsynced-{number}")
        async with server.connect() as store:
            await start(machine.start(), store, config)
            machine.crash(Crash.DROP_UNSYNCED)
            with pytest.raises((CookieMismatchError, DiskError)):
                await start(machine.start(), store, config)
        machine.release_dead()


async def _sites_of_a_first_start(server: MemoryServer) -> SyncSites:
    machine = SimMachine("sites")
    async with server.connect() as store:
        await start(machine.start(), store, BookieConfig(dir="/bookie", bookie_id="sites"))
    return machine.sites


@pytest.mark.parametrize("fate", [Fate.ANSWER_LOST, Fate.REQUEST_LOST])
async def test_a_lost_answer_to_the_metadata_stamp_is_looked_up(fate: Fate, server: MemoryServer) -> None:
    class LoseCreate(Link):
        lost = 0

        def fate(self, request: Request) -> Fate:
            if isinstance(request, Create) and not self.lost:
                self.lost += 1
                return fate
            return Fate.DELIVERED

    link = LoseCreate()
    runtime = SimMachine("lost answer").start()
    async with server.connect(link=link) as store:
        identity = await start(runtime, store)
        stored = await CookieStore(store, PATHS).read(ID)
        assert not (await start(runtime, store)).is_first_start
    assert link.lost == 1
    assert stored is not None
    assert stored.value == identity.cookie


async def test_a_failing_sync_of_a_stamp_stops_the_start(server: MemoryServer) -> None:
    machine = SimMachine("bad disk")
    machine.device().faults.strike_next(Fault.SYNC_ERROR)
    async with server.connect() as store:
        with pytest.raises(DiskError):
            await start(machine.start(), store)
        assert await CookieStore(store, PATHS).read(ID) is None


async def test_of_two_first_starts_with_one_id_at_one_moment_only_one_passes_ever(server: MemoryServer) -> None:
    machines = [SimMachine("twin 1"), SimMachine("twin 2")]
    stores = [server.connect(), server.connect()]
    outcomes = await asyncio.gather(
        *(start(machine.start(), store) for machine, store in zip(machines, stores, strict=True)),
        return_exceptions=True,
    )
    failed = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, CookieMismatchError)]
    assert len(failed) == 1, outcomes
    with pytest.raises(CookieMismatchError):
        await start(machines[failed[0]].start(), stores[failed[0]])
    await start(machines[1 - failed[0]].start(), stores[1 - failed[0]])
    for store in stores:
        await store.aclose()


# --- mismatches -------------------------------------------------------------------------------------------------------


async def refusal(runtime: Runtime, store: MetadataStore, config: BookieConfig = CONFIG) -> str:
    with pytest.raises(CookieMismatchError) as caught:
        await start(runtime, store, config)
    text = str(caught.value)
    assert "Configured: [id " in text, "both cookies are named"
    assert "cookie" in text.partition("Configured: [id ")[2], "both cookies are named"
    assert "magnetar bookie " in text or "--id" in text, "what to do is named"
    return text


@pytest.mark.parametrize("lost", LAYOUT.all)
async def test_a_directory_that_lost_its_cookie_stops_the_bookie(lost: str, server: MemoryServer) -> None:
    runtime = SimMachine("lost").start()
    async with server.connect() as store:
        await start(runtime, store)
        for directory in LAYOUT.all:
            await put_data(runtime, directory)
        await remove(runtime, lost, COOKIE_FILE)
        text = await refusal(runtime, store)
        assert lost in text
        assert f"magnetar bookie cookie delete {ID}" in text
        assert "magnetar bookie format --dir /bookie --yes" in text
        assert COOKIE_FILE not in await names(runtime, lost), "a refused start stamps nothing"


async def test_a_bookie_whose_disks_were_all_emptied_serves_nothing(server: MemoryServer) -> None:
    machine = SimMachine("emptied")
    async with server.connect() as store:
        await start(machine.start(), store)
        machine.crash(Crash.KILL)
        machine.device().empty()
        text = await refusal(machine.start(), store)
    machine.release_dead()
    assert all(directory in text for directory in LAYOUT.all)


async def test_a_journal_disk_that_is_not_mounted_stops_the_bookie(server: MemoryServer) -> None:
    machine = SimMachine("mounts")
    nvme = machine.mount("/nvme")
    config = BookieConfig(journal_dirs="/nvme/journal", ledger_dirs="/hdd", bookie_id="b1")
    async with server.connect() as store:
        await start(machine.start(), store, config)
        machine.crash(Crash.KILL)
        nvme.empty()
        text = await refusal(machine.start(), store, config)
    machine.release_dead()
    assert "none in /nvme/journal:" in text
    assert "--set bookie.journal_dirs=/nvme/journal --set bookie.ledger_dirs=/hdd" in text


async def test_a_directory_of_another_bookie_stops_this_one(server: MemoryServer) -> None:
    runtime = SimMachine("swapped").start()
    one = BookieConfig(dir="/a", bookie_id="one")
    two = BookieConfig(journal_dirs="/b/journal", ledger_dirs="/a/ledgers", bookie_id="two")
    async with server.connect() as store:
        await start(runtime, store, one)
        text = await refusal(runtime, store, two)
    assert "bookie id is 'two', the cookie says 'one'" in text
    assert "journal directories is '/b/journal', the cookie says '/a/journal'" in text
    assert "[id two; journal /b/journal;" in text
    assert "[id one; journal /a/journal;" in text


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"journal_dirs": "/other/journal"}, "journal directories"),
        ({"ledger_dirs": "/other/ledgers"}, "ledger directories"),
        ({"ledger_dirs": "/bookie/ledgers,/more"}, "ledger directories"),
    ],
)
async def test_a_changed_directory_is_named_with_both_values(
    changed: dict[str, str], field: str, server: MemoryServer
) -> None:
    runtime = SimMachine("changed").start()
    async with server.connect() as store:
        await start(runtime, store)
        text = await refusal(runtime, store, BookieConfig(dir="/bookie", **changed))  # type: ignore[arg-type]
    assert f"does not match the cookie in the metadata: {field} is " in text


async def test_a_bookie_of_another_cluster_is_told_so(server: MemoryServer) -> None:
    runtime = SimMachine("clusters").start()
    other = BookKeeperPaths("/other")
    async with server.connect() as store:
        await init_cluster(store, other, runtime.entropy)
        await start(runtime, store)
        with pytest.raises(CookieMismatchError, match=r"belongs to another cluster: check metadata\.url"):
            await start(runtime, store, paths=other)
        assert await CookieStore(store, other).read(ID) is None


async def test_data_without_a_cookie_in_the_metadata_is_refused_with_the_way_to_restore_it(
    server: MemoryServer,
) -> None:
    runtime = SimMachine("deleted").start()
    async with server.connect() as store:
        await start(runtime, store)
        await put_data(runtime, "/bookie/journal")
        await CookieStore(store, PATHS).delete(ID, ANY_VERSION)
        text = await refusal(runtime, store)
        assert f"magnetar bookie cookie create {ID} --file /bookie/journal/VERSION" in text
        assert await CookieStore(store, PATHS).read(ID) is None


async def test_data_with_a_lost_disk_and_no_cookie_in_the_metadata_is_refused(server: MemoryServer) -> None:
    runtime = SimMachine("deleted and lost").start()
    async with server.connect() as store:
        await start(runtime, store)
        await put_data(runtime, "/bookie/journal")
        await remove(runtime, "/bookie/ledgers", COOKIE_FILE)
        await CookieStore(store, PATHS).delete(ID, ANY_VERSION)
        assert "no cookie in /bookie/ledgers and none in the metadata" in await refusal(runtime, store)


@pytest.mark.parametrize("used", LAYOUT.all)
async def test_a_new_bookie_wants_empty_directories(used: str, server: MemoryServer) -> None:
    runtime = SimMachine("not empty").start()
    await put_data(runtime, used, "holiday.jpg")
    async with server.connect() as store:
        text = await refusal(runtime, store)
        assert f"{used} is not empty" in text
        assert "holiday.jpg" in text
        assert await CookieStore(store, PATHS).read(ID) is None


async def test_a_damaged_cookie_file_stops_the_bookie(server: MemoryServer) -> None:
    runtime = SimMachine("damaged").start()
    async with server.connect() as store:
        await start(runtime, store)
        directories = await open_directories(runtime, LAYOUT)
        await directories.first_ledger.write(COOKIE_FILE, b"5\nbookieHost: \x00\xff")
        await directories.aclose()
        with pytest.raises(CookieMismatchError, match="/bookie/ledgers/VERSION is damaged"):
            await start(runtime, store)


async def test_a_damaged_cookie_in_the_metadata_stops_the_bookie(server: MemoryServer) -> None:
    runtime = SimMachine("damaged").start()
    async with server.connect() as store:
        await start(runtime, store)
        await store.put(PATHS.cookie(ID), b"nonsense")
        with pytest.raises(CookieMismatchError, match=f"magnetar bookie cookie create {ID}"):
            await start(runtime, store)


async def test_the_port_is_written_only_when_it_changes() -> None:
    machine = SimMachine("port")
    directories = await open_directories(machine.start(), LAYOUT)
    await keep_port(directories, 3181)
    syncs = sum(machine.sites.counts.values())
    await keep_port(directories, 3181)
    assert sum(machine.sites.counts.values()) == syncs
    await directories.aclose()
    await until(lambda: not directories.all, "nothing is open")
