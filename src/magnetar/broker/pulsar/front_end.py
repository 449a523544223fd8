"""The front end: listens for clients of Pulsar, and keeps what their connections share.

Ending:    no new connections; the broker unloads its topics, which tells every client; then the connections are closed.
Read next: connection.py, session.py, dispatcher.py
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from magnetar.broker.pulsar.connection import Connection, ConnectionCounters, ReceiveBuffer
from magnetar.broker.pulsar.dispatcher import dispatch
from magnetar.broker.pulsar.publish_memory import PublishMemory
from magnetar.broker.pulsar.session import Session
from magnetar.broker.service import BrokerService
from magnetar.config.pulsar import PulsarConfig
from magnetar.errors import ConfigError, NotAllowedError
from magnetar.wire.pulsar.encode import PING
from magnetar.wire.pulsar.frames import Buffer, FrameDecoder
from magnetar.wire.pulsar.limits import FRAME_PADDING_BYTES

log = logging.getLogger(__name__)

_BACKLOG: Final = 4_096  # Connections that wait to be accepted: all clients at once, after a restart.
_NO_REQUEST: Final = 2**64 - 1


class FrontEnd:
    """Made, then `start`ed when the broker can serve; ended by `stop_listening` and `aclose`."""

    service: BrokerService

    def __init__(self, config: PulsarConfig) -> None:
        self.config = config
        self.counters = ConnectionCounters()
        self.memory = PublishMemory(config.publish_memory_bytes_max)
        self.decoder = FrameDecoder(config.message_bytes_max + FRAME_PADDING_BYTES)
        self.frame_bytes_max = config.message_bytes_max + FRAME_PADDING_BYTES
        self.lookups = 0
        """In progress, of all connections."""
        self._shared = ReceiveBuffer()
        self._sessions: dict[Session, None] = {}
        self._server: asyncio.Server | None = None
        self.port = config.port

    async def bind(self) -> int:
        """Takes the port, but no connection yet; returns it."""
        host, port = self.config.listens_on, self.config.port
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self.accept, host, port, backlog=_BACKLOG, start_serving=False
            )
        except OSError as error:
            raise ConfigError(
                f"the broker cannot listen on {host}:{port} ({error.strerror or error}): stop what uses the port or "
                "name another (--port); pulsar.listen_host must be an address of this machine"
            ) from error
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self.port

    async def start(self, service: BrokerService) -> None:
        assert self._server is not None, "bind first"
        self.service = service
        await self._server.start_serving()

    @property
    def connections(self) -> int:
        return len(self._sessions)

    @property
    def sessions(self) -> list[Session]:
        return list(self._sessions)

    def accept(self) -> Connection:
        """Our end of a new connection."""
        config = self.config
        connection = Connection(
            self._shared,
            self.counters,
            self.decoder,
            unsent_bytes_max=config.unsent_bytes_max,
            keep_alive_s=config.keep_alive_interval_ms / 1000,
            ping=PING,
        )
        session = Session(self, connection)
        connection.attach(session)
        if len(self._sessions) >= config.connections_max:
            self.counters.refused += 1
            asyncio.get_running_loop().call_soon(self._turn_away, session)
        self._sessions[session] = None
        return connection

    def _turn_away(self, session: Session) -> None:
        limit = self.config.connections_max
        session.refuse(_NO_REQUEST, NotAllowedError(f"the broker has {limit} connections, as many as it may"))
        session.connection.close()

    def dispatch(self, session: Session, buffer: Buffer, start: int, end: int) -> int:
        return dispatch(session, buffer, start, end)

    def forget(self, session: Session) -> None:
        self._sessions.pop(session, None)
        self.memory.forget(session)

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
