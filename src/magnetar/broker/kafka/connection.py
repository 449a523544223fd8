"""One Kafka client's connection: whole requests to its session; answers back, in the order of the requests.

Limits:    A client that does not read its answers is held beyond `unsent_bytes_max`: its requests are not read either.
Failure:   A client that was silent for `connection_idle_ms` is disconnected: Kafka's protocol has no ping. One that
           breaks the protocol is disconnected after the answers that it has earned so far.
Read next: runtime/framed_connection.py; session.py
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from magnetar.errors import MagnetarError, RemoteProtocolError
from magnetar.runtime.framed_connection import ConnectionCounters, FramedConnection
from magnetar.runtime.receiving import Received, ReceiveMemory

log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 1024 * 1024
_WRITE_HIGH_BYTES: Final = 1024 * 1024


class Handler(Protocol):
    def on_received(self, buffer: bytearray, start: int, end: int) -> int:
        """Handles whole frames from `start` on; returns where it stopped."""

    def on_closed(self) -> None: ...


class Connection(FramedConnection):
    """Is made by the front end, which attaches the handler before the loop brings a transport."""

    __slots__ = ("_handler", "_idle_s", "peer")

    def __init__(
        self, memory: ReceiveMemory, counters: ConnectionCounters, *, unsent_bytes_max: int, idle_s: float
    ) -> None:
        super().__init__(
            Received(memory, self),
            counters,
            server="broker",
            unsent_bytes_max=unsent_bytes_max,
            transport_bytes_high=_WRITE_HIGH_BYTES,
        )
        self.peer = ""
        self._handler: Handler | None = None
        self._idle_s = idle_s

    def attach(self, handler: Handler) -> None:
        self._handler = handler

    def on_connected(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "local"
        self.keep_alive(self._idle_s / 2, b"", self._on_silent)  # It looks twice before a peer is silent.

    def on_received(self, buffer: bytearray, start: int, end: int) -> int:
        assert self._handler is not None
        return self._handler.on_received(buffer, start, end)

    def on_failed(self, error: MagnetarError) -> None:
        about = {"peer": self.peer, "why": str(error)}
        if isinstance(error, RemoteProtocolError):
            self._counters.broken += 1
            log.warning("connection closed: the Kafka client broke the protocol", extra=about)
            self.close()
        else:
            log.error("connection closed", extra=about)
            self.abort()

    def _on_silent(self) -> None:
        self._counters.timed_out += 1
        log.info("connection closed: the Kafka client is silent", extra={"peer": self.peer})
        self.abort()

    def give_up(self, why: str) -> None:
        log.warning("connection closed by the broker", extra={"peer": self.peer, "why": why})
        self.abort()

    def on_closed(self, exc: Exception | None) -> None:
        del exc
        if self._handler is not None:
            self._handler.on_closed()
