"""BrokerNode: one broker of a test's cluster. Its addresses stay, its incarnations come and go.

It has a session with the metadata, connections to bookies and ports of its own, as a process would have. Clients and
other brokers reach it through doors (links.py), so its addresses survive a restart, and its network can be held.

Failure:   A broker that is killed breaks its connections without an answer and stores nothing from that moment on. Its
           session ends at once: a test need not wait for its timeout. A broker that is paused exchanges nothing with
           clients, bookies, the metadata and other brokers that call it, and connections to it stay open. Its session
           ends after the timeout. Unlike a process that was stopped, it notices that.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from magnetar.admin.server import AdminServer
from magnetar.broker.broker import Broker
from magnetar.broker.front_end import Endpoint
from magnetar.broker.kafka.front_end import KafkaFrontEnd
from magnetar.broker.ownership import Ownership, OwnershipContext
from magnetar.broker.pulsar.front_end import PulsarFrontEnd
from magnetar.config.kafka import KafkaConfig
from magnetar.config.pulsar import PulsarConfig
from magnetar.config.root import Config
from magnetar.ids import BookieId
from magnetar.ledger.channels.local_transport import Accept
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.local import LocalStore
from magnetar.metadata.memory import MemoryServer
from magnetar.runtime.metrics import Health, Metrics
from magnetar.runtime.runtime import Runtime
from magnetar.runtime.web_guard import WebGuard
from magnetar.testing.links import Door, LocalLink

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
_PAUSE: Final = "pause"
_STEP_S_MAX: Final = 1.0  # A part of a killed broker that waits longer for what it cannot reach is interrupted.


class BrokerNode:
    """Begun by `open`, ended by `aclose`."""

    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        server: MemoryServer,
        bookies: Mapping[BookieId, Accept],
        ownership: Callable[[OwnershipContext], Ownership],
        health: Callable[[], Health],
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._server = server
        self._ownership = ownership
        self._health = health
        self._links = _BookieLinks(bookies)
        self._clients, self._http, self._kafka = Door(HOST), Door(HOST), Door(HOST)
        self._doors = (self._clients, self._http, self._kafka)
        self._store: LocalStore | None = None
        self._cuts: dict[str, None] = {}
        self._closing = contextlib.AsyncExitStack()
        self._watching: asyncio.Task[None] | None = None
        self.broker: Broker | None = None
        self.front_end: PulsarFrontEnd | None = None

    async def open(self) -> None:
        for door in self._doors:
            await door.listen()
        await self.start()

    async def aclose(self) -> None:
        self.resume()
        await self.stop()
        for door in self._doors:
            await door.aclose()

    # --- addresses ----------------------------------------------------------------------------------------------------

    @property
    def broker_id(self) -> str:
        return f"{HOST}:{self._http.port}"

    @property
    def pulsar_url(self) -> str:
        return f"pulsar://{HOST}:{self._clients.port}"

    @property
    def kafka_address(self) -> str:
        """`host:port` for Kafka clients; empty if they are not served."""
        return f"{HOST}:{self._kafka.port}" if self._config.kafka.enabled else ""

    @property
    def admin_url(self) -> str:
        return f"http://{self.broker_id}"

    @property
    def http_port(self) -> int:
        """The port of the broker itself, after the door."""
        return self._http.target

    @property
    def is_running(self) -> bool:
        return self.broker is not None

    @property
    def is_reached(self) -> bool:
        """Whether it runs, and reaches the metadata."""
        return self.is_running and not self._cuts

    @property
    def running(self) -> Broker:
        assert self.broker is not None, f"broker {self.broker_id} is not running"
        return self.broker

    # --- its life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        assert self.broker is None, "it runs already"
        closing = contextlib.AsyncExitStack()
        try:
            await self._start(closing)
        except BaseException:
            await closing.aclose()
            raise
        self._closing = closing
        self._watching = asyncio.get_running_loop().create_task(self._stop_if_failed(), name="broker-node")

    async def _start(self, closing: contextlib.AsyncExitStack) -> None:
        config, metrics = self._config, Metrics()
        for link in (*self._doors, self._links):
            link.open()
        store = self._store = self._server.connect()
        closing.push_async_callback(store.aclose)
        client = LedgerClient(store, config, self._runtime, local=self._links)
        await closing.enter_async_context(client)
        guard = WebGuard(config.http, HOST, config.pulsar.names())
        admin = AdminServer(metrics, self._health, guard, self._runtime)
        self._http.target = await admin.start(HOST, 0)
        closing.push_async_callback(admin.aclose)
        front_end = self.front_end = _FrontEnd(config.pulsar, self._clients)
        broker = await Broker.open(
            config,
            self._runtime,
            store,
            client,
            metrics,
            front_ends=[front_end, _KafkaFrontEnd(config.kafka, self._kafka)] if config.kafka.enabled else [front_end],
            http_address=self.broker_id,
            ownership=self._ownership,
        )
        closing.push_async_callback(broker.aclose)
        admin.attach(broker)
        self.broker = broker

    async def stop(self) -> None:
        """In order: clients are sent elsewhere, cursors are stored."""
        self._stop_watching()
        self.broker = None
        closing, self._closing = self._closing, contextlib.AsyncExitStack()
        await closing.aclose()
        self._cuts.clear()

    async def kill(self) -> None:
        assert self._store is not None
        self.resume()
        self._stop_watching()
        self.broker = None
        for door in self._doors:
            door.target = 0
        for link in (self._links, *self._doors):
            link.close()
        await self._store.aclose()
        stopping = asyncio.ensure_future(self.stop())
        while not stopping.done():  # Nothing can be stored: each part only gives up what it has in this process.
            await asyncio.wait([stopping], timeout=_STEP_S_MAX)
            stopping.cancel()
        if not stopping.cancelled() and (error := stopping.exception()) is not None:
            log.info("a killed broker gave up", extra={"why": str(error)})
        self._cuts.clear()

    def _stop_watching(self) -> None:
        if self._watching is not None and self._watching is not asyncio.current_task():
            self._watching.cancel()
        self._watching = None

    async def _stop_if_failed(self) -> None:
        """Ends the broker as its process would end."""
        error = await self.running.wait_failed()
        log.warning("a broker of the test's cluster stops", extra={"why": str(error)})
        await self.stop()

    # --- what happens to it -------------------------------------------------------------------------------------------

    async def expire_session(self) -> None:
        """Ends its session with the metadata, as a ZooKeeper that heard nothing for too long does."""
        assert self._store is not None
        assert self.is_running, f"broker {self.broker_id} is not running"
        await self._server.expire(self._store)

    def pause(self) -> None:
        assert self.is_running, f"broker {self.broker_id} is not running"
        for link in (*self._doors, self._links):
            link.hold(_PAUSE)
        self.cut_metadata(_PAUSE)

    def resume(self) -> None:
        for link in (*self._doors, self._links):
            link.release(_PAUSE)
        self.mend_metadata(_PAUSE)

    def cut_metadata(self, reason: str) -> None:
        """Breaks the connection to the metadata until `mend_metadata` is called with the same reason."""
        self._cuts[reason] = None
        if self._store is not None:
            self._server.cut(self._store)

    def mend_metadata(self, reason: str) -> None:
        if reason in self._cuts:
            del self._cuts[reason]
            if not self._cuts and self._store is not None:
                self._server.mend(self._store)

    def cut_bookie(self, bookie_id: BookieId, reason: str) -> None:
        """Drops what this broker and the bookie send to each other."""
        self._links.link(bookie_id).hold(reason)

    def mend_bookie(self, bookie_id: BookieId, reason: str) -> None:
        self._links.link(bookie_id).release(reason)


class _FrontEnd(PulsarFrontEnd):
    """Is reached through a door."""

    def __init__(self, config: PulsarConfig, door: Door) -> None:
        super().__init__(config)
        self._door = door

    async def bind(self) -> Endpoint:
        endpoint = await super().bind()
        self._door.target = self.port
        return Endpoint(f"pulsar://{HOST}:{self._door.port}", endpoint.listeners)


class _KafkaFrontEnd(KafkaFrontEnd):
    """The same for Kafka clients."""

    def __init__(self, config: KafkaConfig, door: Door) -> None:
        super().__init__(dataclasses.replace(config, port=0))
        self._door = door

    async def bind(self) -> Endpoint:
        await super().bind()
        self._door.target = self.port
        return Endpoint(f"kafka://{HOST}:{self._door.port}")


class _BookieLinks(Mapping[BookieId, Accept]):
    """The links of one broker to all bookies. A bookie that joins later gets one, too."""

    def __init__(self, bookies: Mapping[BookieId, Accept]) -> None:
        self._bookies = bookies
        self._links: dict[BookieId, LocalLink] = {}
        self._holds: dict[str, None] = {}
        self._is_closed = False

    def link(self, bookie_id: BookieId) -> LocalLink:
        link = self._links.get(bookie_id)
        if link is None:
            link = self._links[bookie_id] = LocalLink(self._bookies[bookie_id])
            for reason in self._holds:
                link.hold(reason)
            if self._is_closed:
                link.close()
        return link

    def __getitem__(self, bookie_id: BookieId) -> Accept:
        return self.link(bookie_id).accept

    def __iter__(self) -> Iterator[BookieId]:
        return iter(self._bookies)

    def __len__(self) -> int:
        return len(self._bookies)

    def hold(self, reason: str) -> None:
        self._holds[reason] = None
        for link in self._links.values():
            link.hold(reason)

    def release(self, reason: str) -> None:
        self._holds.pop(reason, None)
        for link in self._links.values():
            link.release(reason)

    def open(self) -> None:
        self._is_closed = False
        for link in self._links.values():
            link.open()

    def close(self) -> None:
        self._is_closed = True
        for link in self._links.values():
            link.close()
