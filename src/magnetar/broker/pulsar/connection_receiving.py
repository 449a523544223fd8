"""The receiving side of a connection: bytes in, whole frames to its handler, and who may hold it.

Reading:   into one buffer that all connections share, because a read is handled before the next one begins. What is
           left of an incomplete frame is kept by the connection; a frame larger than the shared buffer gets a buffer
           of its own. So an idle connection costs next to nothing, and thousands of them are no burden.
Holding:   whoever cannot take more holds the connection: the socket is not read, TCP slows the client down, and what
           was read already waits. Several may hold it; the last one to let go resumes it.
Read next: dispatcher.py, connection_sending.py
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from magnetar.broker.pulsar.connection_parts import ConnectionCounters, ReceiveBuffer
from magnetar.broker.pulsar.connection_sending import SendingSide
from magnetar.errors import MagnetarError, RemoteProtocolError
from magnetar.wire.pulsar.frames import FrameDecoder

log = logging.getLogger(__name__)

_NOTHING: Final = bytearray()


class ReceivingSide(SendingSide):
    """Of a connection, which says when `is_closed`, and who the `peer` is."""

    def __init__(
        self, shared: ReceiveBuffer, counters: ConnectionCounters, decoder: FrameDecoder, unsent_bytes_max: int
    ) -> None:
        super().__init__(counters, unsent_bytes_max)
        self._shared = shared
        self._decoder = decoder
        self._rest = _NOTHING  # Received and not handled; of it the first `_rest_bytes` count.
        self._rest_bytes = 0
        self._target = shared.memory  # Where the read that is under way goes.
        self._holds = 0
        self._is_paused = False
        self._parsing = False
        self._was_heard = True
        self.is_closed = False
        self.heard: asyncio.Future[None] | None = None
        """Done at the next sign of life, for who waits for one."""
        self.peer = ""

    def get_buffer(self, sizehint: int) -> memoryview:
        """May be called in vain, when there was nothing to read after all: nothing is given up before the read."""
        del sizehint
        rest, have = self._rest, self._rest_bytes
        if not have:
            self._target = self._shared.memory
            return self._shared.view
        if have == len(rest) and have * 2 <= len(self._shared.memory):
            self._shared.memory[:have] = rest
            self._target = self._shared.memory
            return self._shared.view[have:]
        if have == len(rest):
            self._rest = rest = self._grown(rest)
        self._target = rest  # A large frame's own buffer.
        return memoryview(rest)[have:]

    def _grown(self, rest: bytearray) -> bytearray:
        """With room for the whole of a large frame, or for one more read of a transport that was told to stop."""
        have = len(rest)
        try:
            whole = self._decoder.frame_end(rest, 0, have) or 0
        except RemoteProtocolError:  # Whoever handles it says so.
            whole = 0
        larger = bytearray(max(whole, have) + len(self._shared.memory) // 4)
        larger[:have] = rest
        return larger

    def buffer_updated(self, nbytes: int) -> None:
        self._counters.received_bytes += nbytes
        self._was_heard = True
        if self.heard is not None:
            self._wake_listener()
        have = self._rest_bytes + nbytes
        self._rest, self._rest_bytes = _NOTHING, 0
        self._handle(self._target, have)

    def _wake_listener(self) -> None:
        heard, self.heard = self.heard, None
        if heard is not None and not heard.done():
            heard.set_result(None)

    def _forget_received(self) -> None:
        self._rest, self._rest_bytes = _NOTHING, 0

    # --- requests -----------------------------------------------------------------------------------------------------

    def _handle(self, buffer: bytearray, end: int) -> None:
        """What is left afterwards is kept."""
        start = 0
        if not self._holds and not self._parsing:
            start = self._give(buffer, end)
        if self.is_closed or self._transport is None:
            return
        if start < end:
            self._keep(buffer, start, end)

    def _give(self, buffer: bytearray, end: int) -> int:
        assert self._handler is not None
        self._parsing = True
        try:
            return self._handler.on_received(buffer, 0, end)
        except RemoteProtocolError as error:
            self._counters.broken += 1
            log.warning(
                "connection closed: the client broke the protocol", extra={"peer": self.peer, "why": str(error)}
            )
            self.close()
        except MagnetarError as error:
            log.error("connection closed", extra={"peer": self.peer, "why": str(error)})
            self.abort()
        finally:
            self._parsing = False
        return end

    def _keep(self, buffer: bytearray, start: int, end: int) -> None:
        is_own = buffer is not self._shared.memory
        if is_own and start == 0 and len(buffer) > end:
            self._rest = buffer  # A large frame that is still coming in: stays where it is.
        else:
            self._rest = bytearray(memoryview(buffer)[start:end])
        self._rest_bytes = end - start

    # --- holding ------------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """No more requests are taken from this client until `release`."""
        self._holds += 1
        if self._holds == 1 and self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def release(self) -> None:
        assert self._holds > 0, "released more often than held"
        self._holds -= 1
        if self._holds == 0 and self._transport is not None:
            self._was_heard = True  # Its silence was ours.
            if self._rest_bytes or self._parsing:
                self._loop.call_soon(self._handle_rest)  # Not from inside whoever lets go.
            else:
                self._resume_reading()

    @property
    def is_held(self) -> bool:
        return self._holds > 0

    def _handle_rest(self) -> None:
        """Before more is read: else a client that is held again and again makes it grow without end."""
        if self._rest_bytes and not self._holds:
            rest, have = self._rest, self._rest_bytes
            self._rest, self._rest_bytes = _NOTHING, 0
            self._handle(rest, have)
        if not self._holds:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
