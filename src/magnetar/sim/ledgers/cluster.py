"""The cluster of one seed: bookies and clients as processes, each with its supervisor, and the metadata.

- bookie: node bookie-0, bookie-1 … with a device for each directory. Its supervisor starts it again after a moment,
  whatever ended it; one whose disks were emptied or damaged refuses, and `operator` decides what happens then.
- repair: as `magnetar bookie limbo` does it: ledgers of which something may be missing are fenced and in limbo, damaged
  journal files are set aside, the index is made anew if a ledger directory was lost, and the cookie is written again.
  It runs as a process on the bookie's node, so it can be cut short as well.
- client: node client-0 …; work runs as tasks of its process (`spawn`), so a crash takes it along.
- down: a node in `down` stays down until it is taken out of it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.connection import Connection
from magnetar.bookie.directories import BookieDirectories, DirectoryLayout, open_directories
from magnetar.bookie.identity import identify_for_repair, restore_port
from magnetar.bookie.limbo import find_suspects, repair
from magnetar.config.root import Config
from magnetar.errors import MagnetarError
from magnetar.ids import BookieId
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.metrics import Metrics
from magnetar.sim.device import Crash
from magnetar.sim.ledgers.durable import DurableImage
from magnetar.sim.ledgers.observe import watched
from magnetar.sim.ledgers.options import PORT, Options, journal_dirs, ledger_dirs
from magnetar.sim.ledgers.watch import BookieWatch, Watch
from magnetar.sim.machine import SimMachine, SimRuntime
from magnetar.sim.metadata import ProcessStore, WatchedMetadata
from magnetar.sim.process import Process
from magnetar.sim.seeds import Delay, seeded
from magnetar.sim.world import World
from magnetar.storage.entry_log.format import LOGS
from magnetar.storage.entry_log.ledger_dirs import LedgerDirs
from magnetar.storage.entry_log.reader import EntryLogReader
from magnetar.storage.index.ordered_store import Changes, MemoryImage, MemoryStore
from magnetar.storage.index.rebuild import rebuild_index
from magnetar.storage.journal.mark import JournalMark
from magnetar.storage.ledger_storage import INDEX, LedgerStorage, open_rocksdb_index, open_storage

# --- the repair of a bookie that refuses to start ---------------------------------------------------------------------


_NEW = ".new"


async def put_in_limbo(config: Config, runtime: SimRuntime, store: MetadataStore, machine: SimMachine) -> None:
    """When it returns, the bookie may start. MagnetarError if this bookie is beyond repair."""
    layout = DirectoryLayout.from_config(config.bookie, base="/")
    directories = await open_directories(runtime, layout)
    try:
        await _repair(config, runtime, store, machine, directories)
    finally:
        await directories.aclose()


async def _repair(
    config: Config, runtime: SimRuntime, store: MetadataStore, machine: SimMachine, directories: BookieDirectories
) -> None:
    paths = BookKeeperPaths(config.metadata.ledgers_root)
    found = await identify_for_repair(directories, store, paths, config.bookie)
    ledgers = LedgerMetadataStore(store, paths, runtime.entropy)
    suspects = await find_suspects(ledgers, found.cookie.bookie_id)
    await restore_port(directories, config.bookie, found.cookie.bookie_id)

    async def open_it(submitted: Callable[[], int], mark: int) -> LedgerStorage:
        return await open_storage(
            runtime, directories.layout.ledger, config.storage, submitted=submitted, journal_mark=mark
        )

    async def rebuild_it() -> None:
        for directory in directories.ledger:
            await directory.disk.make_dir(LOGS)
        await _rebuild(config, runtime, machine, directories)

    await repair(
        directories,
        found.cookie,
        found.lost,
        suspects,
        entropy=runtime.entropy,
        open_storage=open_it,
        rebuild_index=rebuild_it,
    )


async def _rebuild(config: Config, runtime: SimRuntime, machine: SimMachine, directories: BookieDirectories) -> None:
    """Beside the old one, whose place it takes when it is complete. The flags of the old one are not trusted."""
    roots = directories.layout.ledger
    current, new = f"{roots[0]}/{INDEX}", f"{roots[0]}/{INDEX}{_NEW}"
    machine.put_index(new, MemoryImage())
    disks = {directory.path: directory.disk for directory in directories.ledger}
    mark = (await JournalMark.open(disks, directories.layout.journal)).sequence
    dirs = await LedgerDirs.open(runtime, roots)
    try:
        logs = EntryLogReader(dirs, config.storage.open_logs_max)
        index = await open_rocksdb_index(runtime, new)
        try:
            await rebuild_index(dirs, logs, index, old=None, mark=mark)
        finally:
            await index.aclose()
            await logs.aclose()
    finally:
        await dirs.aclose()
    machine.put_index(current, machine.index_image(new))


# --- nodes and the cluster --------------------------------------------------------------------------------------------


START_LIMIT_S: Final = 60.0
SETTLE_LIMIT_S: Final = 60.0


@dataclass(slots=True)
class BookieNode:
    name: str
    config: Config
    watch: BookieWatch
    bookie: Bookie | None = None
    """While it serves."""
    starts: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Node(ABC):
    """A process that is not a bookie. A subclass says what it does, and what it has while it runs."""

    name: str
    config: Config
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    work: list[asyncio.Task[None]] = field(default_factory=list)
    is_done: bool = False
    """It has ended by itself, and is not started again."""
    can_own: ClassVar[bool] = False
    """It may take a topic over."""

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """It does what it is for, so it may be killed, and given work."""

    @abstractmethod
    async def main(self, runtime: SimRuntime) -> None:
        """The process."""

    @abstractmethod
    def on_gone(self) -> None:
        """It has ended or crashed: what it had is of no use any more."""

    def may_return(self) -> bool:
        """True unless it has to stop for good."""
        return not self.stopping.is_set()

    async def end_work(self) -> None:
        for task in self.work:
            task.cancel()
        await asyncio.gather(*self.work, return_exceptions=True)


@dataclass(slots=True, kw_only=True)
class ClientNode(Node):
    """It has a ledger client, and waits for work."""

    metadata: WatchedMetadata
    client: LedgerClient | None = None
    can_own: ClassVar[bool] = True

    @property
    def is_running(self) -> bool:
        return self.client is not None

    async def main(self, runtime: SimRuntime) -> None:
        store = self.metadata.connect()
        try:
            async with LedgerClient(store, self.config, runtime) as client:
                self.client = client
                try:
                    await self.live(client)
                finally:
                    self.client = None
                    await self.end_work()
        finally:
            await store.aclose()

    async def live(self, client: LedgerClient) -> None:
        del client
        await self.stopping.wait()

    def on_gone(self) -> None:
        self.client = None


class WatchedIndex(MemoryStore):
    """The index's twin, which reports to the watch what is written."""

    def __init__(self, image: MemoryImage, seen: BookieWatch, watch: Watch) -> None:
        super().__init__(image)
        self._seen = seen
        self._watch = watch

    def write(self, changes: Changes) -> None:
        self._watch.tell("on_index_write", self._seen, changes)
        super().write(changes)
        self._seen.image.on_index_written(changes)


class Cluster:
    """Made on the running loop of the world."""

    def __init__(self, world: World, options: Options, watch: Watch) -> None:
        self.world = world
        self.options = options
        self.watch = watch
        self.random = seeded(f"{options.seed}/cluster")
        self.down: dict[str, None] = {}
        self.bookies: dict[str, BookieNode] = {}
        self.clients: dict[str, Node] = {}
        self.operator: Callable[[BookieNode, BaseException], None] = lambda _node, _error: None
        """Told of a bookie that refused to start, or could not be repaired; it is started again unless it is down."""
        self.is_over = False
        self.metadata = WatchedMetadata(world.entropy, options.client_config().metadata, watch)
        world.on_crash.append(self.metadata.on_crash)
        self._nodes_by_address: dict[str, str] = {}
        self._cut: list[ProcessStore] = []
        self._to_repair: dict[str, None] = {}

    async def start(self) -> None:
        """Returns when every bookie and every other node has started once."""
        self.store = self.metadata.connect()
        await init_cluster(self.store, self.metadata.paths, self.world.entropy)
        for number in range(self.options.bookies):
            self._add_bookie(f"bookie-{number}")
        self.add_nodes()
        end = self.world.loop.now + START_LIMIT_S
        while not self._is_up():
            assert self.world.loop.now < end, "the cluster did not start"
            await asyncio.sleep(0.005)

    def add_nodes(self) -> None:
        """Those that exist from the beginning, besides bookies."""
        for number in range(self.options.clients):
            self.add_client(f"client-{number}")

    def _is_up(self) -> bool:
        return all(node.bookie for node in self.bookies.values()) and all(
            node.is_running for node in self.clients.values()
        )

    # --- bookies ------------------------------------------------------------------------------------------------------

    def _add_bookie(self, name: str) -> None:
        options = self.options
        machine = self.world.add_node(
            name, disk_timing=options.disk_timing, offload_delay=Delay(0.0, 0.000_5), **self._clocks()
        )
        for path in (*journal_dirs(options.journals), *ledger_dirs(options.ledger_dirs)):
            machine.mount(path)
        image = DurableImage(machine, options.journals, options.ledger_dirs)
        bookie_id = BookieId(f"{name}:{PORT}")
        seen = self.watch.bookies[bookie_id] = BookieWatch(name, bookie_id, machine, image)
        self.bookies[name] = BookieNode(name, options.bookie_config(name), seen)
        self.know_address(name)
        self._watch_disks(seen)
        self.start_bookie(name)

    def _clocks(self) -> dict[str, Any]:
        """What is wrong with the clocks of a node, as `World.add_node` takes it."""
        if "clock" not in self.options.faults:
            return {}
        uniform = self.random.uniform
        return {
            "clock_offset_ms": uniform(-5_000, 5_000),
            "clock_drift": uniform(-0.01, 0.01),
            "rate": uniform(0.99, 1.01),
        }

    def _watch_disks(self, seen: BookieWatch) -> None:
        def on_synced(path: str) -> None:
            if path == "":
                self.watch.tell("on_mark_moved", seen)
            elif path == "logs":
                self.watch.tell("on_log_names_synced", seen)

        for device in seen.image.directories:
            device.on_synced.append(on_synced)

    def start_bookie(self, name: str) -> None:
        if name in self.down or self.is_over or self.world.process(name) is not None:
            return
        node = self.bookies[name]
        node.starts += 1
        node.stopping.clear()
        node.watch.sync_failed_s = None
        image = node.watch.image
        image.forget()
        node.watch.durable_before = image.needed()
        self.watch.counters["torn tails cut"] += image.torn_tails()
        main = self._repair_main if name in self._to_repair else self._bookie_main
        self.world.start(name, lambda runtime: main(node, runtime), on_exit=self._on_bookie_exit)

    async def _bookie_main(self, node: BookieNode, runtime: SimRuntime) -> None:
        seen = node.watch
        machine = seen.machine

        def open_index(path: str) -> MemoryStore:
            seen.image.index_path = path
            return WatchedIndex(machine.index_image(path), seen, self.watch)

        runtime.ordered_store = open_index
        store = self.metadata.connect()
        kind = watched(seen, self.watch, self._client_of)
        try:
            bookie = await kind.open(node.config, runtime, store, Metrics(), base="/")
        except MagnetarError as error:
            self.watch.note(f"{node.name} refuses to start: {error}")
            self.watch.tell("on_bookie_refused", seen, error)
            await store.aclose()
            raise
        node.bookie = bookie
        bookie.table.ledgers_max = self.options.ledgers_in_memory
        self.watch.note(f"{node.name} serves")
        self.watch.tell("on_bookie_open", seen, bookie)
        try:
            await self._wait_end(node, bookie)
        finally:
            node.bookie = None
            await bookie.aclose()
            await store.aclose()
        self.watch.tell("on_bookie_closed", seen)

    async def _wait_end(self, node: BookieNode, bookie: Bookie) -> None:
        failed = asyncio.ensure_future(bookie.wait_failed())
        stopped = asyncio.ensure_future(node.stopping.wait())
        try:
            await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                self.watch.note(f"{node.name} fails: {failed.result()}")
        finally:
            for task in (failed, stopped):
                task.cancel()
            await asyncio.gather(failed, stopped, return_exceptions=True)

    def stop_bookie(self, name: str) -> None:
        """In order; it is not started again."""
        self.down[name] = None
        self.bookies[name].stopping.set()

    def repair_bookie(self, name: str) -> None:
        """Instead of the next start: an operator's command runs on its node."""
        self._to_repair[name] = None

    async def _repair_main(self, node: BookieNode, runtime: SimRuntime) -> None:
        seen = node.watch
        store = self.metadata.connect()
        try:
            await put_in_limbo(node.config, runtime, store, seen.machine)
        finally:
            await store.aclose()
        self.watch.note(f"{node.name} is repaired")
        self.watch.counters["bookies repaired"] += 1
        self._to_repair.pop(node.name, None)
        seen.emptied = False

    def _on_bookie_exit(self, process: Process, error: BaseException | None) -> None:
        node = self.bookies[process.name]
        node.bookie = None
        if error is not None and not isinstance(error, MagnetarError):
            self.world.loop.fail(f"{process.name} ended with {error!r}", error)
            return
        if error is not None:
            self.operator(node, error)
        self._restart_later(process.name)

    def _restart_later(self, name: str, delay_s: float | None = None) -> None:
        if delay_s is None:
            delay_s = self.random.choice((0.002, 0.02, 0.1, 0.4, 1.0)) * self.random.uniform(0.5, 1.0)
        start = self.start_bookie if name in self.bookies else self.start_client
        self.world.loop.call_later(delay_s, start, name, context=self.world.loop.root.context)

    def crash(self, name: str, kind: Crash, *, restart_s: float | None = None) -> None:
        """A bookie or a client; it comes back after a moment unless it is `down`."""
        if name in self.bookies:
            self.bookies[name].bookie = None
        else:
            self.clients[name].on_gone()
        had_process = self.world.process(name) is not None
        self.world.crash(name, kind)
        if name in self.bookies:
            self.bookies[name].watch.image.forget()
        if had_process or name not in self.bookies:
            self._restart_later(name, restart_s)

    def know_address(self, name: str) -> None:
        """So that observers can say which node is at the other end of a connection."""
        self._nodes_by_address[self.world.network.host(name).address] = name

    def _client_of(self, connection: Connection) -> str:
        peer = getattr(connection, "peer", None)
        return self._nodes_by_address.get(peer.host, "") if peer is not None else ""

    # --- clients ------------------------------------------------------------------------------------------------------

    def running_bookies(self) -> list[str]:
        return [node.name for node in self.bookies.values() if node.bookie is not None]

    def running_clients(self) -> list[str]:
        """Those that can be killed now."""
        return [node.name for node in self.clients.values() if node.is_running]

    def ledger_clients(self) -> list[ClientNode]:
        return [node for node in self.clients.values() if isinstance(node, ClientNode) and node.client is not None]

    def running_owners(self) -> list[str]:
        """Those that can take a topic over now."""
        return [node.name for node in self.clients.values() if node.is_running and node.can_own]

    def add_client(self, name: str, *, config: Config | None = None) -> ClientNode:
        node = ClientNode(name, config or self.options.client_config(), metadata=self.metadata)
        self.add_node(node)
        return node

    def add_node(self, node: Node) -> None:
        self.world.add_node(node.name, **self._clocks())
        self.know_address(node.name)
        self.clients[node.name] = node
        self.start_client(node.name)

    def start_client(self, name: str) -> None:
        node = self.clients[name]
        if node.is_done or not node.may_return() or self.is_over or self.world.process(name) is not None:
            return
        node.work = []
        self.world.start(name, lambda runtime: self._client_main(node, runtime), on_exit=self._on_client_exit)

    async def _client_main(self, node: Node, runtime: SimRuntime) -> None:
        await node.main(runtime)
        self.watch.tell("on_client_closed", node.name)

    def _on_client_exit(self, process: Process, error: BaseException | None) -> None:
        node = self.clients[process.name]
        node.on_gone()
        if error is not None and not isinstance(error, MagnetarError):
            self.world.loop.fail(f"{process.name} ended with {error!r}", error)
        elif node.may_return():
            self._restart_later(process.name)

    def spawn(self, node: Node, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """As a task of the client's process. What it raises beyond expected errors fails the seed."""
        process = self.world.process(node.name)
        assert process is not None, f"{node.name} is not running"
        task = self.world.loop.create_task(work, name=name, context=process.context.copy())
        task.add_done_callback(self._on_work_done)
        node.work.append(task)
        return task

    def _on_work_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.loop.fail(f"{task.get_name()} failed: {error!r}", error)

    # --- when everything is healed ------------------------------------------------------------------------------------

    def bookies_up(self) -> bool:
        return all(node.bookie is not None for node in self.bookies.values() if node.name not in self.down)

    async def wait_healed(self, condition: Callable[[], bool], invariant: str, what: str) -> bool:
        """In a healed world it must become true; otherwise the invariant is violated, and False is returned."""
        end = self.world.loop.now + SETTLE_LIMIT_S
        while not condition():
            if self.world.loop.now >= end:
                self.watch.violated(invariant, f"{what} within {SETTLE_LIMIT_S:g} s")
                return False
            await asyncio.sleep(0.01)
        return True

    async def wait_exit(self, name: str) -> None:
        try:
            async with asyncio.timeout(SETTLE_LIMIT_S):
                await self.world.wait_exit(name)
        except TimeoutError:
            self.watch.violated("V2", f"{name} does not end within {SETTLE_LIMIT_S:g} s")

    async def end_bookies(self) -> None:
        """No client is left, so a bookie has nothing to be busy with."""
        for node in self.bookies.values():
            bookie = node.bookie
            if bookie is None:
                continue
            if bookie._requests.connections or bookie.adds.in_progress or bookie.reads.in_progress:
                self.watch.violated("V5", f"{node.name} has connections or requests, and there is no client")
            self.stop_bookie(node.name)
            await self.wait_exit(node.name)

    # --- faults that several cause ------------------------------------------------------------------------------------

    def pause(self, name: str, pause_s: float) -> bool:
        """The process stands still. Its metadata session ends meanwhile if the pause is longer than its timeout."""
        process = self.world.process(name)
        if process is None or process.is_paused:
            return False
        self.world.pause(name)
        loop = self.world.loop
        timeout_s = self.options.session_timeout_ms / 1000
        if pause_s > timeout_s:
            loop.call_later(timeout_s, self._expire, process, context=loop.root.context)
        loop.call_later(pause_s, loop.resume, process, context=loop.root.context)
        return True

    def _expire(self, process: Process) -> None:
        if process.is_alive and process.is_paused:
            for store in self.metadata.stores_of(process):
                self.world.loop.create_task(self.metadata.expire(store), context=self.world.loop.root.context)

    def resume_all(self) -> None:
        for name in (*self.bookies, *self.clients):
            self.world.resume(name)

    def cut_metadata(self, name: str) -> None:
        for store in self.metadata.stores_of(self.world.process(name)):
            self.metadata.cut(store)
            self._cut.append(store)

    def mend_metadata(self) -> None:
        """Of all that were cut."""
        stores, self._cut = self._cut, []
        for store in stores:
            if store.process is None or store.process.is_alive:
                self.metadata.mend(store)
