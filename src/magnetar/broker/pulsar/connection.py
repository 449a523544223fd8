"""One client's connection: bytes in, frames out; answers in, one write per turn of the loop out.

Sides:     connection_sending.py (writes, and a client that does not read) and, on top of it, connection_receiving.py
           (reads, and who may hold the connection).
Keep-alive: a client that was silent for an interval is pinged, and gone after the next. One that is held is not
           blamed for its silence.
Read next: connection_receiving.py, connection_sending.py; dispatcher.py, session.py
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from magnetar.broker.pulsar.connection_parts import ConnectionCounters, Handler, ReceiveBuffer
from magnetar.broker.pulsar.connection_receiving import ReceivingSide
from magnetar.broker.pulsar.connection_sending import WRITE_HIGH_BYTES
from magnetar.wire.pulsar.frames import FrameDecoder

__all__ = ["Connection", "ConnectionCounters", "Handler", "ReceiveBuffer"]

log = logging.getLogger(__name__)


class Connection(ReceivingSide):
    def __init__(
        self,
        shared: ReceiveBuffer,
        counters: ConnectionCounters,
        decoder: FrameDecoder,
        *,
        unsent_bytes_max: int,
        keep_alive_s: float,
        ping: bytes,
    ) -> None:
        super().__init__(shared, counters, decoder, unsent_bytes_max)
        self._keep_alive_s = keep_alive_s
        self._ping = ping
        self._was_pinged = False
        self._keep_alive: asyncio.TimerHandle | None = None
        self.is_established = False
        """The handshake is done; else the keep-alive closes the connection."""

    def attach(self, handler: Handler) -> None:
        self._handler = handler

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, but not the base class.
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._counters.opened += 1
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "local"
        self._keep_alive = self._loop.call_later(self._keep_alive_s, self._on_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # The client is gone, for whatever reason.
        self._counters.closed += 1
        self._transport = None
        self.is_closed = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._forget_received()
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        self._wake_listener()
        if self._handler is not None:
            self._handler.on_closed()

    # --- keep-alive ---------------------------------------------------------------------------------------------------

    def _on_keep_alive(self) -> None:
        if self._transport is None:
            return
        if not self.is_established or (self._was_pinged and not self._was_heard and not self._is_excused()):
            self._counters.timed_out += 1
            log.info("connection closed: the client is silent", extra={"peer": self.peer})
            self.abort()
            return
        self._was_pinged = False
        if not self._was_heard and not self._is_excused():
            self.ping()
        self._was_heard = False
        self._keep_alive = self._loop.call_later(self._keep_alive_s, self._on_keep_alive)

    def _is_excused(self) -> bool:
        """Held by the broker: what it may have said was not read. One that does not read what we send is not."""
        return self._holds > int(self._holds_itself)

    def ping(self) -> None:
        self._was_pinged = True
        self.send(self._ping)

    async def check_alive(self, timeout_s: float) -> bool:
        """Pings, and waits for a sign of life; aborts a connection that gives none."""
        if self.is_closed:
            return False
        if self.heard is None:
            self.heard = self._loop.create_future()
            self.ping()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self.heard)
        except TimeoutError:
            if not self._holds:
                self.abort()
                return False
        return not self.is_closed
