"""Clusters in this process, on real sockets and files: bookies alone, or with a broker and its admin interface.

    async with BookieCluster(4) as cluster:
        ... LedgerClient(cluster.store, cluster.config, cluster.runtime) ...
        await cluster.kill(1)

    async with PulsarCluster(3) as cluster:
        ... PulsarClient(cluster.pulsar_url, cluster.runtime.entropy) ...
        await cluster.bookies.kill(0)

Metadata is in memory. The system chooses the ports. Nothing remains after the `async with`. Every bookie has a session
of its own with the metadata, as a process of its own would have, so one can be killed with its registration, and the
others stay.

Failure:   When a bookie is killed, connections break without an answer and nothing is flushed, so a restart replays the
           journal. What the file system has, it keeps: the simulator tests the loss of a machine's power. A bookie that
           hangs is like a stopped process: its connections stay open and new ones are accepted, but no request is taken
           until `wake`. What was taken before is still answered.
Read next: cluster_thread.py (the same for tests that are not asynchronous), plugin.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final, Self

from magnetar.admin.server import AdminServer
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.connection import Connection
from magnetar.bookie.read_only import ReadOnlyReason
from magnetar.broker.broker import Broker
from magnetar.broker.pulsar.front_end import PulsarFrontEnd
from magnetar.broker.resources.bundles import Bundles
from magnetar.broker.resources.namespaces import new_policies
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.config.bookie import NO_HTTP
from magnetar.config.load import Assignment, load
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.config.storage import StorageConfig
from magnetar.errors import MagnetarError
from magnetar.ids import BookieId
from magnetar.ledger.channels.local_transport import Accept
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.local import LocalStore
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import MetadataStore
from magnetar.names import Domain, NamespaceName
from magnetar.runtime.metrics import Health, Metrics
from magnetar.runtime.runtime import Runtime
from magnetar.runtime.system import SystemRuntime
from magnetar.runtime.web_guard import WebGuard

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
                connection.hold("hang")
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
            connection.release("hang")


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
        """By its number or by its id. LookupError says which there are."""
        ids = self.bookie_ids
        number = bookie if isinstance(bookie, int) else ids.index(BookieId(bookie)) if bookie in ids else -1
        if not 0 <= number < len(ids):
            known = ", ".join(f"{at} ({each})" for at, each in enumerate(ids))
            raise LookupError(f"the cluster has no bookie {bookie!r}: it has {known}")
        return self.nodes[number]

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


HOST: Final = "127.0.0.1"
_ORIGIN: Final = "settings of the test cluster (magnetar_settings)"  # How errors name them.
REPLICAS_MAX: Final = 2  # For each entry: one bookie can be lost, and with three there is one to take its place.
_SMALL: Final = (
    "metadata.url=memory:",
    "metadata.session_timeout_ms=2_000",
    "pulsar.port=0",
    "storage.write_cache_bytes_max=1_048_576",
    "storage.read_cache_bytes_max=1_048_576",
)


def cluster_config(bookies: int, settings: Iterable[str] = ()) -> Config:
    """Returns a small configuration with quorums for this number of bookies; `settings` are SECTION.KEY=VALUE, and
    win."""
    replicas = min(bookies, REPLICAS_MAX)
    quorums = [f"topic.{name}={replicas}" for name in ("ensemble_size", "write_quorum", "ack_quorum")]
    return load(flags=[Assignment.parse(each, _ORIGIN) for each in (*_SMALL, *quorums, *settings)]).config


class PulsarCluster:
    """`async with` starts and ends it."""

    def __init__(self, bookies: int = 1, *, directory: Path | None = None, settings: Iterable[str] = ()) -> None:
        """Without a directory, a temporary one."""
        self._closing = contextlib.AsyncExitStack()
        self.config = cluster_config(bookies, settings)
        self.bookies = BookieCluster(bookies, directory=directory, config=self.config)
        self.runtime = self.bookies.runtime
        self.pulsar_url = ""
        self.admin_url = ""

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
        metrics = Metrics()
        bookies = await self._closing.enter_async_context(self.bookies)
        client = LedgerClient(bookies.store, self.config, self.runtime, local=bookies.local)
        await self._closing.enter_async_context(client)
        guard = WebGuard(self.config.http, HOST, self.config.pulsar.names())
        admin = AdminServer(metrics, self._health, guard, self.runtime)
        http_port = await admin.start(HOST, 0)
        self._closing.push_async_callback(admin.aclose)
        self.front_end = PulsarFrontEnd(self.config.pulsar)
        self.broker = await Broker.open(
            self.config,
            self.runtime,
            bookies.store,
            client,
            metrics,
            front_ends=[self.front_end],
            http_address=f"{HOST}:{http_port}",
        )
        self._closing.push_async_callback(self.broker.aclose)
        admin.attach(self.broker)
        self.pulsar_url = f"pulsar://{HOST}:{self.front_end.port}"
        self.admin_url = f"http://{HOST}:{http_port}"

    def _health(self) -> Health:
        running = sum(node.is_running for node in self.bookies.nodes)
        return Health(running > 0, {"bookies": running})

    # --- namespaces ---------------------------------------------------------------------------------------------------

    async def create_namespace(self, name: str) -> None:
        broker = self.config.broker
        policies = new_policies([broker.cluster], Bundles.equal(broker.namespace_bundles))
        await self.broker.service.resources.namespaces.create(NamespaceName.parse(name), policies)

    async def delete_unused_topics(self, namespace: str) -> None:
        """Deletes all but those with clients, which would only complain."""
        service = self.broker.service
        for name in await service.topics_of(NamespaceName.parse(namespace), [Domain.PERSISTENT]):
            loaded = service.topics.find(name)
            if loaded is None or not loaded.is_in_use:
                await service.delete_topic(name, force=True)

    async def subscriptions_of(self, namespace: str) -> list[tuple[str, Subscription]]:
        """Topic and subscription, of all persistent topics there."""
        service = self.broker.service
        names = await service.topics_of(NamespaceName.parse(namespace), [Domain.PERSISTENT])
        topics = [await service.persistent_topic(name, create=False) for name in names]
        return [(str(topic.name), subscription) for topic in topics for subscription in topic.subscriptions.values()]
