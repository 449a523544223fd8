"""Clusters in this process, on real sockets and files: bookies alone, or with brokers and their admin interfaces.

    async with BookieCluster(4) as cluster:
        ... LedgerClient(cluster.store, cluster.config, cluster.runtime) ...
        await cluster.kill(1)

    async with PulsarCluster(3, brokers=2) as cluster:
        ... PulsarClient(cluster.pulsar_url, cluster.runtime.entropy) ...
        await cluster.kill(cluster.brokers[0].broker_id)

Metadata is in memory. The system chooses the ports. Nothing remains after the `async with`. Every bookie and broker has
a session of its own with the metadata, as a process of its own would have, so one can be killed with its registration,
and the others stay.

Failure:   When a bookie is killed, connections break without an answer and nothing is flushed, so a restart replays the
           journal. What the file system has, it keeps: the simulator tests the loss of a machine's power. A bookie that
           hangs is like a stopped process: its connections stay open and new ones are accepted, but no request is taken
           until `wake`. What was taken before is still answered.
Read next: broker_node.py, links.py; cluster_thread.py (the same for tests that are not asynchronous), plugin.py
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final, Self

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.connection import Connection
from magnetar.bookie.read_only import ReadOnlyReason
from magnetar.broker.broker import Broker
from magnetar.broker.cluster.assemble import cluster_ownership
from magnetar.broker.ownership import SoleOwnership
from magnetar.broker.pulsar.front_end import PulsarFrontEnd
from magnetar.broker.resources.bundles import Bundles
from magnetar.broker.resources.namespaces import new_policies
from magnetar.broker.service import BrokerService
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.config.bookie import NO_HTTP
from magnetar.config.load import Assignment, load
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.config.storage import StorageConfig
from magnetar.errors import MagnetarError, ServiceNotReadyError
from magnetar.ids import BookieId
from magnetar.ledger.channels.local_transport import Accept
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.local import LocalStore
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import MetadataStore
from magnetar.names import Domain, NamespaceName, TopicName
from magnetar.runtime.metrics import Health, Metrics
from magnetar.runtime.runtime import Runtime
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.broker_node import BrokerNode

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

    async def expire_session(self) -> None:
        """Ends its session with the metadata, as a ZooKeeper that heard nothing for too long does."""
        assert self._store is not None
        assert self.bookie is not None, f"bookie {self.bookie_id} is not running"
        await self._server.expire(self._store)

    def cut_metadata(self) -> None:
        """Breaks the connection to the metadata until `mend_metadata`."""
        if self._store is not None:
            self._server.cut(self._store)

    def mend_metadata(self) -> None:
        if self._store is not None:
            self._server.mend(self._store)

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


METADATA: Final = "metadata"
"""The name of the metadata store in `partition`."""
_ORIGIN: Final = "settings of the test cluster (magnetar_settings)"  # How errors name them.
REPLICAS_MAX: Final = 2  # For each entry: one bookie can be lost, and with three there is one to take its place.
_OWNER_S_MAX: Final = 20.0
_OWNER_PAUSE_S: Final = 0.02
_LOOKUPS_MAX: Final = 10
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

    def __init__(
        self,
        bookies: int = 1,
        *,
        brokers: int = 1,
        directory: Path | None = None,
        settings: Iterable[str] = (),
    ) -> None:
        """Without a directory, a temporary one. One broker owns every topic, as in standalone; several brokers own
        bundles of topics."""
        self._closing = contextlib.AsyncExitStack()
        self.config = cluster_config(bookies, settings)
        self.bookies = BookieCluster(bookies, directory=directory, config=self.config)
        self.runtime = self.bookies.runtime
        self.brokers: list[BrokerNode] = []
        self.pulsar_url = ""
        """Leads to all brokers, for clients."""
        self.kafka_bootstrap = ""
        """Leads Kafka clients to all brokers; empty without `kafka.enabled`."""
        self.admin_url = ""
        """The first broker's."""
        self._wanted = brokers
        self._partitions: dict[tuple[str, str], None] = {}

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
        bookies = await self._closing.enter_async_context(self.bookies)
        ownership = SoleOwnership if self._wanted == 1 else cluster_ownership
        for _ in range(self._wanted):
            node = BrokerNode(self.config, self.runtime, bookies.server, bookies.local, ownership, self._health)
            self._closing.push_async_callback(node.aclose)
            await node.open()
            self.brokers.append(node)
        self._closing.callback(self.heal)  # First: brokers close in order.
        self.pulsar_url = "pulsar://" + ",".join(node.pulsar_url.removeprefix("pulsar://") for node in self.brokers)
        self.kafka_bootstrap = ",".join(filter(None, (node.kafka_address for node in self.brokers)))
        self.admin_url = self.brokers[0].admin_url

    def _health(self) -> Health:
        running = sum(node.is_running for node in self.bookies.nodes)
        return Health(running > 0, {"bookies": running})

    @property
    def broker(self) -> Broker:
        """The first one."""
        return self.brokers[0].running

    @property
    def front_end(self) -> PulsarFrontEnd:
        """That of the first broker."""
        front_end = self.brokers[0].front_end
        assert front_end is not None, "the first broker was not started"
        return front_end

    # --- what happens to members --------------------------------------------------------------------------------------

    def member(self, name: int | str) -> BookieNode | BrokerNode:
        """A number is a bookie's; an id is a bookie's or a broker's. LookupError says which members there are."""
        broker = next((node for node in self.brokers if node.broker_id == name), None)
        if broker is not None:
            return broker
        try:
            return self.bookies.node(name)
        except LookupError as error:
            brokers = ", ".join(node.broker_id for node in self.brokers)
            raise LookupError(f"{error}; its brokers are {brokers}") from None

    def broker_node(self, name: str) -> BrokerNode:
        found = self.member(name)
        if not isinstance(found, BrokerNode):
            raise LookupError(f"{name} is a bookie, and this is for brokers: {', '.join(self._broker_ids())}")
        return found

    def _broker_ids(self) -> list[str]:
        return [node.broker_id for node in self.brokers]

    async def kill(self, name: int | str) -> None:
        await self.member(name).kill()

    async def restart(self, name: int | str) -> None:
        """A running one is stopped in order first."""
        await self.member(name).stop()
        await self.member(name).start()

    async def expire_session(self, name: int | str) -> None:
        await self.member(name).expire_session()

    def pause(self, broker: str) -> None:
        self.broker_node(broker).pause()

    def resume(self, broker: str) -> None:
        self.broker_node(broker).resume()

    def partition(self, one: int | str, other: int | str) -> None:
        """Lets nothing pass between two members until `heal`. LookupError for two that have no connection."""
        pair = self._pair(one, other)
        self._partitions[pair] = None
        self._set_partition(pair, is_cut=True)

    def heal(self) -> None:
        """Ends all partitions."""
        partitions, self._partitions = self._partitions, {}
        for pair in partitions:
            self._set_partition(pair, is_cut=False)

    def _pair(self, one: int | str, other: int | str) -> tuple[str, str]:
        """Returns ids: a broker and a bookie, or a member and METADATA."""
        if METADATA in (one, other):
            member = self.member(other if one == METADATA else one)
            return _id_of(member), METADATA
        members = [self.member(one), self.member(other)]
        brokers = [each for each in members if isinstance(each, BrokerNode)]
        bookies = [each for each in members if isinstance(each, BookieNode)]
        if len(brokers) != 1:
            why = "have no connections to each other" if bookies else "are separated by `pause` only"
            what = "bookies" if bookies else "brokers"
            raise LookupError(f"{what} {why}: partition takes a broker and a bookie, or a member and {METADATA!r}")
        return brokers[0].broker_id, str(bookies[0].bookie_id)

    def _set_partition(self, pair: tuple[str, str], *, is_cut: bool) -> None:
        member, other = self.member(pair[0]), pair[1]
        reason = f"partition from {other}"
        if isinstance(member, BookieNode):
            member.cut_metadata() if is_cut else member.mend_metadata()
        elif other == METADATA:
            member.cut_metadata(reason) if is_cut else member.mend_metadata(reason)
        elif is_cut:
            member.cut_bookie(BookieId(other), reason)
        else:
            member.mend_bookie(BookieId(other), reason)

    async def make_whole(self) -> None:
        """Ends partitions and pauses, and starts the members that have ended."""
        self.heal()
        for broker in self.brokers:
            broker.resume()
        nodes: list[BookieNode | BrokerNode] = [*self.bookies.nodes, *self.brokers]
        for node in nodes:
            if not node.is_running:
                await node.start()

    # --- topics and namespaces ----------------------------------------------------------------------------------------

    async def owner_of(self, topic: TopicName) -> BrokerNode:
        """Follows lookups until the owner is known. The topic gets one by this."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _OWNER_S_MAX
        while True:
            try:
                return await self._follow_lookups(topic)
            except (ServiceNotReadyError, LookupError):
                if loop.time() > deadline_s:
                    raise
            await asyncio.sleep(_OWNER_PAUSE_S)

    async def _follow_lookups(self, topic: TopicName) -> BrokerNode:
        asked = next((node for node in self.brokers if node.is_reached), None)
        if asked is None:
            raise LookupError("no broker of the cluster runs")
        is_authoritative = False
        for _ in range(_LOOKUPS_MAX):
            if not asked.is_reached:
                break
            owner = await asked.running.service.ownership.owner_of(topic, is_authoritative=is_authoritative)
            if owner.is_here:
                return asked
            is_authoritative = owner.is_candidate and owner.is_authoritative
            asked = self.broker_node(owner.address.broker_id)
        raise ServiceNotReadyError(f"topic {topic} has no owner that runs: look it up again")

    async def create_namespace(self, name: str) -> None:
        broker = self.config.broker
        policies = new_policies([broker.cluster], Bundles.equal(broker.namespace_bundles))
        await self._any_service().resources.namespaces.create(NamespaceName.parse(name), policies)

    def _any_service(self) -> BrokerService:
        found = next((node for node in self.brokers if node.is_reached), None)
        if found is None:
            raise LookupError("no broker of the cluster runs: start one with restart")
        return found.running.service

    async def delete_unused_topics(self, namespace: str) -> None:
        """Deletes all but those with clients, which would only complain."""
        for name in await self._topics_of(namespace):
            service = (await self.owner_of(name)).running.service
            loaded = service.topics.find(name)
            if loaded is None or not loaded.is_in_use:
                await service.delete_topic(name, force=True)

    async def subscriptions_of(self, namespace: str) -> list[tuple[str, Subscription]]:
        """Topic and subscription, of all persistent topics there."""
        names = await self._topics_of(namespace)
        topics = [
            await (await self.owner_of(name)).running.service.persistent_topic(name, create=False) for name in names
        ]
        return [(str(topic.name), subscription) for topic in topics for subscription in topic.subscriptions.values()]

    async def _topics_of(self, namespace: str) -> list[TopicName]:
        return await self._any_service().topics_of(NamespaceName.parse(namespace), [Domain.PERSISTENT])


def _id_of(member: BookieNode | BrokerNode) -> str:
    return str(member.bookie_id) if isinstance(member, BookieNode) else member.broker_id
