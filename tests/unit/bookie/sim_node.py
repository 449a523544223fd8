"""A whole bookie on simulated disks: started, crashed and started again on the same machine, with metadata in memory.

Purpose:   a bookie with one device for the journal and one for each of two ledger directories, so that a mark is in two
           places, and a log in either.
Limits:    RocksDB cannot run here. Its twin is MemoryStore, bound to the directory that RocksDB would have made: what
           it was given is durable at once, as RocksDB's own is, but it is lost with the name of that directory.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.directories import BookieDirectories, DirectoryLayout, open_directories
from magnetar.config.bookie import NO_HTTP, BookieConfig
from magnetar.config.root import Config
from magnetar.errors import RemoteProtocolError
from magnetar.metadata.local import LocalStore
from magnetar.metadata.memory import MemoryServer
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.runtime import Runtime
from magnetar.sim.device import Crash, DiskTiming, SimDevice, SyncSites
from magnetar.sim.loop import SimLoop
from magnetar.sim.machine import SimMachine, SimRuntime
from magnetar.sim.process import Process
from magnetar.sim.seeds import Delay
from magnetar.storage.entry_log.format import LOGS
from magnetar.storage.index.location_index import LocationIndex
from magnetar.storage.index.ordered_store import MemoryImage, MemoryStore
from magnetar.wire.bookkeeper.ends import decode_response, encode_request
from magnetar.wire.bookkeeper.messages import V3, AnyRequest, AnyResponse

T = TypeVar("T")

JOURNAL = "/journal"
LEDGERS = ("/ledgers-0", "/ledgers-1")
TIMING = DiskTiming(operation=Delay(0.0001, 0.001), sync=Delay(0.001, 0.004))


def bookie_config(*, journals: int = 1, **changes: object) -> BookieConfig:
    """Directories below the mounts: a bookie's own directory is made by itself."""
    journal_dirs = ",".join(f"{JOURNAL}/d{number}" for number in range(journals))
    ledger_dirs = ",".join(f"{path}/d" for path in LEDGERS)
    config = BookieConfig(journal_dirs=journal_dirs, ledger_dirs=ledger_dirs, port=0, http_port=NO_HTTP)
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]


class SimIndexes:
    """What `open_rocksdb_index` is replaced by."""

    def __init__(self) -> None:
        self._images: dict[tuple[SimDevice, int], MemoryImage] = {}

    async def open(self, runtime: Runtime, path: str) -> LocationIndex:
        device, place = cast("SimRuntime", runtime)._find_device(path)
        reading, writing = runtime.offload(name="index-read"), runtime.offload(name="index-write")
        image = await writing(self._image, device, place)
        return LocationIndex(MemoryStore(image), reading, writing)

    def _image(self, device: SimDevice, place: str) -> MemoryImage:
        device.tree.make_dir(place)
        return self._images.setdefault((device, device.tree.directory(place).number), MemoryImage())


@contextmanager
def small_steps() -> Iterator[pytest.MonkeyPatch]:
    """Production's names for the index, and sizes that a few entries exceed: a crash finds everything half done."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("magnetar.storage.ledger_storage.open_rocksdb_index", SimIndexes().open)
        patch.setattr("magnetar.storage.write_cache.SLICE_BYTES", 600)
        patch.setattr("magnetar.storage.entry_log.compaction.SLICE_BYTES", 600)
        patch.setattr("magnetar.storage.entry_log.compaction._MOVES_MAX", 6)
        yield patch


def virtual() -> SimLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop), "a simulated bookie needs virtual time"
    return loop


class SimNode:
    """One machine. At most one bookie runs on it."""

    def __init__(self, seed: str, server: MemoryServer, config: Config, sites: SyncSites) -> None:
        self.machine = SimMachine(seed, disk_timing=TIMING, offload_delay=Delay(0.0, 0.001))
        self.journal = self.machine.mount(JOURNAL)
        self.ledgers = [self.machine.mount(path) for path in LEDGERS]
        for device in (self.journal, *self.ledgers):
            device.sites = sites
        self.config = config
        self._server = server
        self._store: LocalStore | None = None
        self._bookie: Bookie | None = None
        self._process: Process | None = None

    @property
    def bookie(self) -> Bookie:
        assert self._bookie is not None, "not started"
        return self._bookie

    async def start(self) -> Bookie:
        loop = virtual()
        self._process = loop.add_process(loop.root.name)  # On the clients' host, where it is 127.0.0.1.
        self._store = self._process.context.run(self._server.connect)
        runtime = self.machine.start()
        opening = Bookie.open(self.config, runtime, self._store, Metrics(), base="/")
        self._bookie = await self._in_process(opening)
        return self._bookie

    async def _in_process(self, work: Coroutine[Any, Any, T]) -> T:
        """It stands still when the process crashes, and so does the caller until it is cancelled."""
        assert self._process is not None
        task = virtual().create_task(work, context=self._process.context.copy())
        await asyncio.wait([task])
        return task.result()

    async def stop(self) -> None:
        """In order. What it raises comes after everything was closed."""
        bookie, self._bookie = self.bookie, None
        try:
            await self._in_process(bookie.aclose())
        finally:
            assert self._store is not None
            await self._store.aclose()

    def crash(self, kind: Crash) -> None:
        """The process, its connections and its session stand still from here on."""
        loop, process = virtual(), self._process
        if process is not None:
            loop.crash(process)
            assert loop.network is not None
            loop.network.on_killed(process)
        self._process = None
        if self._store is not None:
            self._server.cut(self._store)
        self._bookie = self._store = None
        self.machine.crash(kind)

    def bury(self) -> None:
        """The test is over."""
        self.crash(Crash.KILL)
        self.machine.release_dead()

    async def open_directories(self) -> BookieDirectories:
        """As a command does it on a stopped bookie."""
        layout = DirectoryLayout.from_config(self.config.bookie, base="/")
        return await open_directories(self.machine.start(), layout, create=False)

    def journal_names(self) -> set[str]:
        """Paths on the journal's device."""
        directories = [f"{name}/journal" for name in self.journal.tree.root.entries]
        return {f"{directory}/{name}" for directory in directories for name in _names(self.journal, directory)}

    def log_names(self) -> set[str]:
        return {name for device in self.ledgers for name in _names(device, f"d/{LOGS}")}


def _names(device: SimDevice, directory: str) -> set[str]:
    return set(device.tree.directory(directory).entries) if device.tree.find(directory) is not None else set()


class Client(asyncio.Protocol):
    """One connection, one protobuf request at a time. Not asyncio's streams: a crash leaves them half closed."""

    def __init__(self) -> None:
        self._received = b""
        self._answer: asyncio.Future[AnyResponse] | None = None
        self._txn_ids = itertools.count(1)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, port: int) -> Client:
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return client

    async def ask(self, request: AnyRequest) -> AnyResponse:
        assert self._transport is not None, "the connection is lost"
        asked = dataclasses.replace(request, txn_id=next(self._txn_ids))
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(encode_request(asked))
        answer = await self._answer
        assert answer.txn_id == asked.txn_id
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        decoded = decode_response(self._received, 0, len(self._received), V3)
        if decoded is not None and self._answer is not None and not self._answer.done():
            self._received = self._received[decoded.end :]
            self._answer.set_result(decoded.response)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RemoteProtocolError("the connection was lost"))
