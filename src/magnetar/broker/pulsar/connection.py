"""One client's connection: whole frames to its session; answers and deliveries back.

Limits:    A client that does not read makes the connection unwritable: deliveries stop, and answers wait up to
           `unsent_bytes_max`, beyond which its requests are not read either.
Failure:   A client that was silent for an interval is pinged, and considered dead after the next. One that is held is
           not blamed for its silence. A client that breaks the protocol gets the answers that it has earned so far.
Read next: runtime/framed_connection.py; dispatcher.py, session.py
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from magnetar.errors import MagnetarError, RemoteProtocolError
from magnetar.runtime.framed_connection import ConnectionCounters, FramedConnection
from magnetar.runtime.receiving import Received, ReceiveMemory
from magnetar.wire.pulsar.frames import Buffer

log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 1024 * 1024  # One read of a busy socket brings at most this much.
WRITE_HIGH_BYTES: Final = 1024 * 1024  # In the transport and not taken by the kernel: enough to keep a socket busy.


class Handler(Protocol):
    """Takes what a connection received. Called on the loop; never blocks. The buffer is only lent."""

    def on_received(self, buffer: Buffer, start: int, end: int) -> int:
        """Handles whole frames from `start` on; returns where it stopped: at an incomplete one, or because it held the
        connection. RemoteProtocolError ends the connection."""

    def on_writable(self) -> None:
        """Reports that what is unsent has shrunk enough for more deliveries."""

    def on_closed(self) -> None: ...


class Connection(FramedConnection):
    """Is made by the front end, which attaches the handler before the loop brings a transport."""

    __slots__ = (
        "_handler",
        "_keep_alive_s",
        "_ping_frame",
        "peer",
    )

    def __init__(
        self,
        memory: ReceiveMemory,
        counters: ConnectionCounters,
        *,
        unsent_bytes_max: int,
        keep_alive_s: float,
        ping: bytes,
    ) -> None:
        super().__init__(
            Received(memory, self),
            counters,
            server="broker",
            unsent_bytes_max=unsent_bytes_max,
            transport_bytes_high=WRITE_HIGH_BYTES,
        )
        self.peer = ""
        self._handler: Handler | None = None
        self._keep_alive_s = keep_alive_s
        self._ping_frame = ping

    def attach(self, handler: Handler) -> None:
        self._handler = handler

    def on_connected(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "local"
        self.keep_alive(self._keep_alive_s, self._ping_frame, self._on_silent)

    # --- requests -----------------------------------------------------------------------------------------------------

    def on_received(self, buffer: bytearray, start: int, end: int) -> int:
        assert self._handler is not None
        return self._handler.on_received(buffer, start, end)

    def on_failed(self, error: MagnetarError) -> None:
        about = {"peer": self.peer, "why": str(error)}
        if isinstance(error, RemoteProtocolError):
            self._counters.broken += 1
            log.warning("connection closed: the client broke the protocol", extra=about)
            self.close()
        else:
            log.error("connection closed", extra=about)
            self.abort()

    # --- deliveries ---------------------------------------------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        """Whether there is room for deliveries. If not, the handler is called when there is."""
        if self._unsent_bytes <= WRITE_HIGH_BYTES and not self._transport_is_full:
            return True
        self._waits_for_room = True
        return False

    def on_progress(self) -> None:
        super().on_progress()
        has_room = self._unsent_bytes <= WRITE_HIGH_BYTES and not self._transport_is_full
        if self._waits_for_room and has_room and self._handler is not None:
            self._waits_for_room = False
            self._loop.call_soon(self._handler.on_writable)

    # --- ending -------------------------------------------------------------------------------------------------------

    def _on_silent(self) -> None:
        self._counters.timed_out += 1
        log.info("connection closed: the client is silent", extra={"peer": self.peer})
        self.abort()

    def give_up(self, why: str) -> None:
        log.warning("connection closed by the broker", extra={"peer": self.peer, "why": why})
        self.abort()

    def on_closed(self, exc: Exception | None) -> None:
        del exc  # Any reason ends the session in the same way.
        if self._handler is not None:
            self._handler.on_closed()
