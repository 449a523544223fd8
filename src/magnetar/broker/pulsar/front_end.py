"""PulsarFrontEnd: listens for clients of Pulsar, and keeps what their connections share.

Order:     To end: no new connections; the broker unloads its topics, which disconnects every client; then the
           connections are closed.
Read next: connection.py, session.py, dispatcher.py
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from magnetar.broker.front_end import PULSAR, Endpoint, FrontEndStatistics
from magnetar.broker.publishing.publish_memory import PublishMemory
from magnetar.broker.pulsar.connection import RECEIVE_BYTES, Connection
from magnetar.broker.pulsar.dispatcher import dispatch
from magnetar.broker.pulsar.session import LookupLimit, Session, Shared
from magnetar.broker.service import BrokerService
from magnetar.config.pulsar import PulsarConfig
from magnetar.errors import NotAllowedError
from magnetar.runtime.framed_connection import ConnectionCounters, listen
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.receiving import ReceiveMemory
from magnetar.topic.entry_format.conversions import Conversions
from magnetar.wire.pulsar.encode import PING
from magnetar.wire.pulsar.frames import FRAME_PADDING_BYTES, FrameDecoder

log = logging.getLogger(__name__)

_BACKLOG: Final = 4_096  # Connections that wait to be accepted: all clients at once, after a restart.
_RELEASE_SECONDS_MAX: Final = 10.0
_RELEASED_AT_ONCE_MAX: Final = 100  # Producers and consumers that leave in one turn of the loop: about a millisecond.
_CONVERSIONS_BYTES_MAX: Final = 64 * 2**20  # Entries of Kafka producers: a tail that many consumers read together.
_NO_REQUEST: Final = 2**64 - 1


class PulsarFrontEnd:
    """Is made, bound by `bind`, and started by `start` when the broker can serve; ended by `stop_listening` and
    `aclose`."""

    protocol = PULSAR

    def __init__(self, config: PulsarConfig) -> None:
        self.config = config
        self.counters = ConnectionCounters()
        self.memory = PublishMemory(config.publish_memory_bytes_max)
        self.lookups = LookupLimit(config.lookups_in_progress_max)
        decoder = FrameDecoder(config.message_bytes_max + FRAME_PADDING_BYTES)
        self._dispatch = partial(dispatch, decoder)
        self.receiving = ReceiveMemory(
            RECEIVE_BYTES,
            bytes_max=config.receive_bytes_max,
            frame_timeout_s=config.frame_timeout_ms / 1000,
            frame_end=decoder.frame_end,
        )
        self._sessions: dict[Session, None] = {}
        self._releasing: dict[asyncio.Task[None], None] = {}
        self._server: asyncio.Server | None = None
        self._shared: Shared | None = None
        self.port = config.port

    async def bind(self) -> Endpoint:
        host, port = self.config.listens_on, self.config.port
        self._server = await listen(
            self.accept, host, port, backlog=_BACKLOG, server="broker", setting="pulsar.listen_host"
        )
        self.port = int(self._server.sockets[0].getsockname()[1])
        return Endpoint(f"pulsar://{self.config.reached_at}:{self.port}", dict(self.config.listeners()))

    async def start(self, service: BrokerService) -> None:
        assert self._server is not None, "bind first"
        conversions = Conversions(_CONVERSIONS_BYTES_MAX, self.config.message_bytes_max)
        self._shared = Shared(service, self.config, self.memory, self.lookups, conversions)
        await self._server.start_serving()

    def statistics(self) -> FrontEndStatistics:
        counters = self.counters
        return FrontEndStatistics(
            connections=self.connections,
            opened=counters.opened,
            refused=counters.turned_away,
            lookups=self.lookups.in_progress,
        )

    def observe(self, metrics: Metrics) -> None:
        counters, gauge, counter = self.counters, metrics.gauge_callback, metrics.counter_callback
        gauge("magnetar_broker_connections", "Connections of Pulsar clients.", lambda: self.connections)
        gauge(
            "magnetar_broker_publish_memory_bytes", "Entries that are not durable yet.", lambda: self.memory.used_bytes
        )
        receiving = self.receiving
        gauge(
            "magnetar_broker_receive_bytes",
            "Memory of what was received and is not handled yet.",
            lambda: receiving.kept_bytes,
        )
        counter(
            "magnetar_broker_receive_held_total",
            "Times that a connection was held for lack of receive memory.",
            lambda: receiving.held,
        )
        counter(
            "magnetar_broker_unfinished_frames_total",
            "Connections closed because a frame did not continue.",
            lambda: receiving.timed_out,
        )
        gauge("magnetar_broker_lookups", "Lookups in progress.", lambda: self.lookups.in_progress)
        counter("magnetar_broker_connections_total", "Connections that were opened.", lambda: counters.opened)
        counter(
            "magnetar_broker_connections_refused_total", "Connections beyond the limit.", lambda: counters.turned_away
        )
        counter("magnetar_broker_connections_broken_total", "Clients that broke the protocol.", lambda: counters.broken)
        counter("magnetar_broker_connections_silent_total", "Clients that went silent.", lambda: counters.timed_out)
        counter("magnetar_broker_received_bytes_total", "Bytes received from clients.", lambda: counters.received_bytes)
        counter("magnetar_broker_sent_bytes_total", "Bytes sent to clients.", lambda: counters.sent_bytes)

    @property
    def connections(self) -> int:
        return len(self._sessions)

    @property
    def sessions(self) -> list[Session]:
        return list(self._sessions)

    def accept(self) -> Connection:
        """Makes our end of a new connection."""
        assert self._shared is not None, "start first"
        config = self.config
        connection = Connection(
            self.receiving,
            self.counters,
            unsent_bytes_max=config.unsent_bytes_max,
            keep_alive_s=config.keep_alive_interval_ms / 1000,
            ping=PING,
        )
        session = Session(self._shared, connection, self._dispatch, self._on_ended)
        connection.attach(session)
        if len(self._sessions) >= config.connections_max:
            self.counters.turned_away += 1
            asyncio.get_running_loop().call_soon(self._turn_away, session)
        self._sessions[session] = None
        return connection

    def _turn_away(self, session: Session) -> None:
        limit = self.config.connections_max
        session.refuse(_NO_REQUEST, NotAllowedError(f"the broker has {limit} connections, as many as it may"))
        session.connection.close()

    def _on_ended(self, session: Session) -> None:
        self._sessions.pop(session, None)
        self.memory.forget(session)
        if session.clients <= _RELEASED_AT_ONCE_MAX:
            session.release()
            return
        task = asyncio.get_running_loop().create_task(session.release_in_slices(), name="release")
        self._releasing[task] = None
        task.add_done_callback(self._on_released)

    def _on_released(self, task: asyncio.Task[None]) -> None:
        del self._releasing[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("clients of a closed connection were not released", exc_info=error)

    # --- ending -------------------------------------------------------------------------------------------------------

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    async def aclose(self) -> None:
        self.stop_listening()
        for session in self.sessions:
            session.connection.close()
        await asyncio.sleep(0)  # What was sent last leaves in this turn.
        for session in self.sessions:
            session.connection.abort()
        await asyncio.sleep(0)  # Connections learn of their end in the next turn.
        if self._releasing:
            await asyncio.wait(list(self._releasing), timeout=_RELEASE_SECONDS_MAX)
        self.receiving.close()
