"""A cluster of real bookies in this process: real sockets and files, metadata in memory, no process to start.

    async with BookieCluster(4) as cluster:
        ... LedgerClient(cluster.store, cluster.config, cluster.runtime) ...
        await cluster.kill(1)

Sessions:  every bookie has a session of its own with the metadata, as a process of its own would have, so one can be
           killed and its registration with it, and the others stay.
Kill:      connections break without an answer and nothing is flushed, so a restart replays the journal. What the file
           system has, it keeps: the loss of a machine's power is the simulator's business.
Hang:      a stopped process: its connections stay open and new ones are accepted, but no request is taken until
           `wake`. What was taken before is still answered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.connection import Connection
from magnetar.bookie.read_only import ReadOnlyReason
from magnetar.config.bookie import NO_HTTP
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.config.storage import StorageConfig
from magnetar.errors import MagnetarError
from magnetar.ids import BookieId
from magnetar.ledger.local_transport import Accept
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.local import LocalStore
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.runtime import Runtime
from magnetar.runtime.system import SystemRuntime

_TAKING = ("on_adds", "on_reads", "on_request")
_CACHE_BYTES = 2**20  # Small: a dozen bookies fit into a test's memory, and caches are swapped in tests too.


def small_config(**sections: Any) -> Config:
    """For a bookie or a client of a test's cluster. A section that is given replaces the one here."""
    return Config(
        **{
            "metadata": MetadataConfig(url="memory:", session_timeout_ms=2_000, operation_timeout_ms=5_000),
            "storage": StorageConfig(write_cache_bytes_max=_CACHE_BYTES, read_cache_bytes_max=_CACHE_BYTES),
            **sections,
        }
    )


class BookieNode:
    """One bookie of the cluster: its directory and settings stay, its incarnations come and go."""

    def __init__(self, directory: Path, config: Config, runtime: Runtime, server: MemoryServer) -> None:
        self._config = dataclasses.replace(
            config, bookie=dataclasses.replace(config.bookie, dir=str(directory), port=0, http_port=NO_HTTP)
        )
        self._runtime = runtime
        self._server = server
        self._store: LocalStore | None = None
        self._held: dict[Connection, None] = {}
        self._taking: dict[str, Any] = {}  # While it hangs: how it takes requests otherwise.
        self.bookie: Bookie | None = None
        self.bookie_id = BookieId("")
        """Known from the first start on; it stays the same."""
        self.port = 0

    @property
    def is_running(self) -> bool:
        return self.bookie is not None

    @property
    def running(self) -> Bookie:
        assert self.bookie is not None, f"bookie {self.bookie_id} is not running"
        return self.bookie

    async def start(self) -> None:
        assert self.bookie is None, "it runs already"
        self._store = self._server.connect()
        try:
            self.bookie = await Bookie.open(self._config, self._runtime, self._store, Metrics(), base="/")
        except BaseException:
            await self._store.aclose()
            raise
        self.bookie_id = BookieId(self.bookie.bookie_id)
        self.port = self.bookie.port

    def accept(self) -> Connection:
        """For clients of this process."""
        if self.bookie is None:
            raise ConnectionRefusedError(f"bookie {self.bookie_id} is not running")
        return self.bookie.accept()

    async def stop(self) -> None:
        """In order: what was taken is answered, everything is flushed."""
        bookie, self.bookie = self.bookie, None
        if bookie is not None:
            self._let_go(bookie)
            await bookie.aclose()
        if self._store is not None:
            await self._store.aclose()

    async def kill(self) -> None:
        bookie = self.running
        self._let_go(bookie)
        assert self._store is not None
        for connection in list(bookie._requests.connections):
            connection.abort()
        bookie._fail(MagnetarError("killed by a test"))  # So that closing it flushes nothing.
        await self._store.aclose()
        await self.stop()

    def hang(self) -> None:
        requests: Any = self.running._requests

        def take_nothing(connection: Connection, *_: object) -> bool:
            if connection not in self._held:
                self._held[connection] = None
                connection.hold()
            return False

        if not self._taking:
            self._taking = {name: getattr(requests, name) for name in _TAKING}
            for name in _TAKING:
                setattr(requests, name, take_nothing)

    def wake(self) -> None:
        """Ends `hang`: everything that came meanwhile is taken now."""
        self._let_go(self.running)

    def _let_go(self, bookie: Bookie) -> None:
        taking, self._taking = self._taking, {}
        for name, take in taking.items():
            setattr(bookie._requests, name, take)
        held, self._held = self._held, {}
        for connection in held:
            connection.release()


class BookieCluster:
    """`async with BookieCluster(n) as cluster`; everything it started ends with it."""

    def __init__(
        self,
        bookies: int,
        *,
        directory: Path | None = None,
        config: Config | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """Without a directory, a temporary one; `config` is the bookies' and the clients'."""
        self.config = config or small_config()
        self.runtime = runtime or SystemRuntime()
        self.paths = BookKeeperPaths(self.config.metadata.ledgers_root)
        self.nodes: list[BookieNode] = []
        self.local: dict[BookieId, Accept] = {}
        """For a client that reaches the bookies without a socket: `Bookies(…, local=cluster.local)`."""
        self._wanted = bookies
        self._directory = directory
        self._closing = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._closing.aclose()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._closing.aclose()

    async def _start(self) -> None:
        if self._directory is None:
            self._directory = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="magnetar-")))
        self.server = MemoryServer(self.runtime.entropy, self.config.metadata)
        self._closing.push_async_callback(self.server.aclose)
        self.store: MetadataStore = self.server.connect()
        """The clients' session."""
        await init_cluster(self.store, self.paths, self.runtime.entropy)
        for _ in range(self._wanted):
            await self.add_bookie()

    async def add_bookie(self, **settings: Any) -> BookieNode:
        """One more, with these settings of its section `bookie` beside the cluster's."""
        assert self._directory is not None
        config = dataclasses.replace(self.config, bookie=dataclasses.replace(self.config.bookie, **settings))
        node = BookieNode(self._directory / f"bookie-{len(self.nodes)}", config, self.runtime, self.server)
        self._closing.push_async_callback(node.stop)
        await node.start()
        self.nodes.append(node)
        self.local[node.bookie_id] = node.accept
        return node

    # --- what happens to bookies --------------------------------------------------------------------------------------

    @property
    def bookie_ids(self) -> list[BookieId]:
        return [node.bookie_id for node in self.nodes]

    def index_of(self, bookie_id: str) -> int:
        return self.bookie_ids.index(BookieId(bookie_id))

    def node(self, bookie: int | str) -> BookieNode:
        """By its number or by its id."""
        return self.nodes[bookie if isinstance(bookie, int) else self.index_of(bookie)]

    async def stop(self, bookie: int | str) -> None:
        await self.node(bookie).stop()

    async def kill(self, bookie: int | str) -> None:
        await self.node(bookie).kill()

    async def restart(self, bookie: int | str) -> None:
        """On the same directory, port and id; a running one is stopped in order first."""
        await self.node(bookie).stop()
        await self.node(bookie).start()

    def hang(self, bookie: int | str) -> None:
        self.node(bookie).hang()

    def wake(self, bookie: int | str) -> None:
        self.node(bookie).wake()

    def set_read_only(self, bookie: int | str, read_only: bool) -> None:
        """As an operator does; the registration follows."""
        self.node(bookie).running.switch.set(ReadOnlyReason.OPERATOR, read_only)

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[MetadataStore]:
        """Another client's session."""
        async with self.server.connect() as store:
            yield store
