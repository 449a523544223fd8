"""The bookie: its parts put together, started in an order that is safe, and ended in the opposite one.

Order:     start: lock the directories → bind the port → check the cookies → open storage → replay the journal → measure
           the disks → flush what was replayed, if it is much → listen → register. No client is served before the bookie
           knows all it knew before, and none finds it before it can serve. A client that still knows its address is
           served while the registration waits for the end of an old session; so everything runs by then.
           end: unregister → stop listening → answer taken requests → flush → move the mark → close. After a kill at any
           line, replay restores the state.
Failure:   a journal that fails, a flush that fails for another reason than a full disk, a registration that is lost
           for good: the bookie stops (`wait_failed`), and nothing more is acknowledged, from that turn of the loop on:
           its owner closes it, but may first have to wait for the metadata.
Read next: connection.py, requests.py, adds.py; docs/bookie.md
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from magnetar.bookie.adds import AddLimits, Adds
from magnetar.bookie.admission import Gate
from magnetar.bookie.connection import RECEIVE_BYTES, Connection, ConnectionCounters
from magnetar.bookie.directories import DirectoryLayout, open_directories
from magnetar.bookie.housekeeping import Collector, Flushing, MetadataCatalogue
from magnetar.bookie.identity import establish, limbo_command, port_to_bind
from magnetar.bookie.journals import Journals, Records
from magnetar.bookie.ledgers import Fencing, LedgerTable
from magnetar.bookie.observation import ObservationServer, observe_bookie
from magnetar.bookie.read_only import DiskWatch, ReadOnlyReason, ReadOnlySwitch, read_operator_status
from magnetar.bookie.reads import ReadLimits, Reads
from magnetar.bookie.registration import Registration
from magnetar.bookie.requests import LongPolls, Requests
from magnetar.config.bookie import NO_HTTP
from magnetar.config.root import Config
from magnetar.errors import ClosedError, JournalDamagedError, MagnetarError
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.disk import Disk, DiskUsage
from magnetar.runtime.framed_connection import listen
from magnetar.runtime.gather import cancel_all
from magnetar.runtime.metrics import Health, Metrics
from magnetar.runtime.receiving import ReceiveMemory
from magnetar.runtime.runtime import Runtime
from magnetar.runtime.web_guard import WebGuard
from magnetar.storage.journal.mark import JournalMark
from magnetar.storage.ledger_storage import LedgerStorage, open_storage
from magnetar.wire.bookkeeper.frames import frame_end

log = logging.getLogger(__name__)

_DRAIN_SECONDS_MAX = 10.0  # For answers to taken requests; longer than any sync, shorter than a client's patience.
_STOPPING = "the bookie stops"  # The reason of holds that are never released.
_BACKLOG = 1024  # Connections that wait to be accepted: all brokers of a cluster at once, after a restart.


class Bookie:
    """Made by `open`, which returns when clients can find it; ended by `aclose`. Does not own the metadata store."""

    def __init__(self, config: Config, runtime: Runtime, store: MetadataStore, metrics: Metrics) -> None:
        """For `open` only."""
        self._config = config
        self._runtime = runtime
        self._store = store
        self.metrics = metrics
        self.http_port: int | None = None
        self.counters = ConnectionCounters()
        self.receiving = ReceiveMemory(
            RECEIVE_BYTES,
            bytes_max=config.bookie.receive_bytes_max,
            frame_timeout_s=config.bookie.frame_timeout_ms / 1000,
            frame_end=frame_end,
        )
        self.switch = ReadOnlySwitch()
        self._closing = contextlib.AsyncExitStack()
        self._closing.callback(self.receiving.close)
        self._failed: asyncio.Future[MagnetarError] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._registration: Registration | None = None

    @classmethod
    async def open(
        cls, config: Config, runtime: Runtime, store: MetadataStore, metrics: Metrics, *, base: str
    ) -> Bookie:
        """`base` is the directory to which relative directories are relative."""
        bookie = cls(config, runtime, store, metrics)
        try:
            await bookie._start(base)
        except BaseException:
            await bookie.aclose()
            raise
        return bookie

    @property
    def bookie_id(self) -> str:
        return self.identity.bookie_id

    @property
    def port(self) -> int:
        return self.identity.port

    async def wait_failed(self) -> MagnetarError:
        """Returns when the bookie cannot continue; the owner closes it and reports the reason."""
        return await asyncio.shield(self._failed)

    # --- starting -----------------------------------------------------------------------------------------------------

    async def _start(self, base: str) -> None:
        layout = DirectoryLayout.from_config(self._config.bookie, base=base)
        self._directories = await open_directories(self._runtime, layout)
        self._closing.push_async_callback(self._directories.aclose)
        server = await self._bind()
        paths = BookKeeperPaths(self._config.metadata.ledgers_root)
        port = int(server.sockets[0].getsockname()[1])
        self.identity = await establish(self._directories, self._store, paths, self._config.bookie, port=port)
        await self._open_storage(layout)
        await self._watch_disks()
        self._make_collector(paths)
        await self._flushing.flush_replayed()
        self._spawn(self._flushing.run(), "bookie-flush")
        self._spawn(self._flushing.open_gate(), "bookie-room")
        await self._serve_http()
        await self._unless_failed(server.start_serving())
        self._closing.push_async_callback(self._drain)
        await self._register(paths)
        self._spawn(self.collector.run(), "bookie-collector")
        self._spawn(self._follow_failures(), "bookie-failures")

    async def _bind(self) -> asyncio.Server:
        config = self._config.bookie
        port = await port_to_bind(self._directories, config)
        server = await listen(
            self._new_connection,
            config.listens_on,
            port,
            backlog=_BACKLOG,
            server="bookie",
            setting="bookie.listen_host",
        )
        self._server = server
        self._closing.callback(server.close)
        return server

    def _new_connection(self) -> Connection:
        wait_s = self._config.bookie.unwritable_wait_ms / 1000
        connection = Connection(self._requests, self.counters, self.receiving, unwritable_wait_s=wait_s)
        self._requests.connections[connection] = None
        return connection

    def accept(self) -> Connection:
        """Returns our end of a connection that does not come through the port: of a client in this process."""
        if not self._server.is_serving():
            raise ClosedError(f"bookie {self.bookie_id} accepts no more connections")
        return self._new_connection()

    async def _open_storage(self, layout: DirectoryLayout) -> None:
        mark_disks = {directory.path: directory.disk for directory in self._directories.ledger}
        marks = await JournalMark.open(mark_disks, layout.journal)
        self._records = Records()
        self.journals = Journals(layout.journal, marks, self._records.on_durable, self._fail)
        self._storage = await open_storage(
            self._runtime,
            layout.ledger,
            self._config.storage,
            submitted=self.journals.submitted,
            journal_mark=marks.sequence,
        )
        self._closing.push_async_callback(self._storage.aclose)
        self._wire(self._storage)
        self._closing.push_async_callback(self.journals.aclose)
        await self._open_journals()
        self._flushing = Flushing(self._storage, self.journals, self.adds.cache_gate)
        self._closing.push_async_callback(self._flushing.aclose)

    async def _open_journals(self) -> None:
        try:
            await self.journals.open(self._runtime, self._config.journal, self._storage)
        except JournalDamagedError as error:
            remedy = limbo_command(self.identity.cookie, self._config.metadata.url)
            raise JournalDamagedError(
                error.path,
                error.offset,
                f"{error.what}. Otherwise acknowledged entries and fences may be lost; to start without them, "
                f"safely: {remedy}",
            ) from error
        self._records.open_with(self.journals)

    def _wire(self, storage: LedgerStorage) -> None:
        config, entropy = self._config.bookie, self._runtime.entropy
        self.table = LedgerTable(storage, config.ledgers_in_memory_max)
        cache_gate = Gate("write cache", self._config.storage.max_throttle_ms / 1000)
        writer_wait_s = config.pending_adds_per_writer_wait_ms / 1000
        add_limits = AddLimits(config.adds_in_progress_max, config.pending_adds_per_writer_max, writer_wait_s)
        self.adds = Adds(self.table, storage, self._records, cache_gate, self.switch, add_limits, entropy.wall_ms)
        self._records.adds = self.adds
        read_limits = ReadLimits(config.reads_in_progress_max, config.pending_reads_per_reader_max)
        self.reads = Reads(self.table, storage, read_limits)
        self.fencing = Fencing(self.table, self._records)
        self.polls = LongPolls(config.long_polls_waiting_max)
        self._requests = Requests(
            self.table,
            storage,
            self._records,
            self.adds,
            self.reads,
            self.fencing,
            self.polls,
            self.switch,
            self._usage,
            entropy.wall_ms,
        )
        self._closing.push_async_callback(self.table.aclose)
        self._closing.push_async_callback(self.adds.aclose)
        self._closing.push_async_callback(self.reads.aclose)

    async def _watch_disks(self) -> None:
        directories = self._directories
        self.disk_watch = DiskWatch(
            directories.all, self._config.bookie, self.switch, lambda: read_operator_status(directories)
        )
        self.switch.set(ReadOnlyReason.CONFIGURED, self._config.bookie.force_read_only)
        self.switch.set(ReadOnlyReason.OPERATOR, await read_operator_status(directories))
        await self.disk_watch.check()
        self.disk_watch.start()
        self._closing.push_async_callback(self.disk_watch.aclose)

    def _make_collector(self, paths: BookKeeperPaths) -> None:
        ledgers = LedgerMetadataStore(self._store, paths, self._runtime.entropy)
        catalogue = MetadataCatalogue(self._store, ledgers)
        config = self._config.storage
        self.collector = Collector(self._storage, catalogue, self.table, config, lambda: self.disk_watch.verdict)

    async def _serve_http(self) -> None:
        observe_bookie(self.metrics, self)
        if self._config.bookie.http_port == NO_HTTP:
            return
        config = self._config.bookie
        guard = WebGuard(self._config.http, config.listens_on, [config.reached_at])
        server = ObservationServer(self.metrics, self.health, guard)
        self.http_port = await server.start(config.listens_on, config.http_port)
        self._closing.push_async_callback(server.aclose)

    async def _register(self, paths: BookKeeperPaths) -> None:
        host = self._config.bookie.reached_at
        endpoints = [Endpoint(id="bookie", host=host, port=self.port, protocol=BOOKIE_RPC)]
        if self.http_port is not None:
            endpoints.append(Endpoint(id="httpserver", host=host, port=self.http_port, protocol="http"))
        self._registration = Registration(
            self._store,
            paths,
            self.identity.bookie_id,
            BookieServiceInfo(tuple(endpoints)),
            read_only=self.switch.is_read_only,
        )
        self.switch.listen(self._registration.set_read_only)
        # Before it starts: a failure may come in the same turn as the node, and no node outlives its bookie.
        self._closing.push_async_callback(self._registration.aclose)
        await self._unless_failed(self._registration.start())

    async def _unless_failed(self, work: Coroutine[Any, Any, None]) -> None:
        """Does the work, unless the bookie fails before or during it; then the work is cancelled, and the failure
        raised."""
        if self._failed.done():
            work.close()
            raise self._failed.result()
        task = asyncio.ensure_future(work)
        either: list[asyncio.Future[Any]] = [task, self._failed]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                raise self._failed.result()
            await task
        finally:
            if not task.done():
                await cancel_all([task])

    # --- running ------------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Makes all taken entries durable in entry logs and index, so that the journals need them no more."""
        await self._flushing.flush()

    async def _follow_failures(self) -> None:
        assert self._registration is not None
        watched = [
            asyncio.ensure_future(self._registration.wait_failed()),
            asyncio.ensure_future(self.disk_watch.wait_failed()),
        ]
        try:
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                self._fail(future.result())
        finally:
            for future in watched:
                future.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("a part of the bookie failed", extra={"part": task.get_name()}, exc_info=error)
        self._fail(error if isinstance(error, MagnetarError) else MagnetarError(f"{task.get_name()}: {error!r}"))

    def _fail(self, error: MagnetarError) -> None:
        if self._failed.done():
            return
        self._failed.set_result(error)
        self._records.fail(error)
        self._server.close()
        for connection in self._requests.connections:
            connection.hold(_STOPPING)

    async def _usage(self) -> DiskUsage:
        """Returns the room for entries: over all ledger directories, each device once."""
        disks: list[Disk] = [directory.disk for directory in self._directories.ledger]
        usages = dict.fromkeys([await disk.usage() for disk in disks])
        return DiskUsage(sum(usage.total_bytes for usage in usages), sum(usage.free_bytes for usage in usages))

    def health(self) -> Health:
        failed = self._failed.done()
        return Health(
            not failed,
            {
                "bookie_id": self.bookie_id,
                "read_only": self.switch.is_read_only,
                "reasons": [reason.value for reason in self.switch.reasons],
                "registration": self._registration.state.value if self._registration is not None else "starting",
                "failure": str(self._failed.result()) if failed else None,
            },
        )

    # --- ending -------------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Refuses new connections, answers the taken requests, closes the connections and flushes everything."""
        self._server.close()
        for connection in list(self._requests.connections):
            connection.hold(_STOPPING)
        with contextlib.suppress(TimeoutError, MagnetarError):  # If it has failed, there is no answer.
            async with asyncio.timeout(_DRAIN_SECONDS_MAX):
                await self._unless_failed(self._answer_what_was_taken())
        for connection in list(self._requests.connections):
            connection.close()
        if not self._failed.done():
            await self.flush()

    async def _answer_what_was_taken(self) -> None:
        """Waits for answers, except those of readers that wait for a LAC to move."""
        while self.adds.in_progress:
            await self._records.write_nothing()
        await self.reads.wait_idle()

    async def aclose(self) -> None:
        tasks, self._tasks = self._tasks, []
        await cancel_all(tasks)
        await self._closing.aclose()
        if not self._failed.done():
            self._failed.cancel()
