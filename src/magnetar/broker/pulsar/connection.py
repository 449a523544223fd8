"""One client's connection: bytes in, frames out; answers in, one write per turn of the loop out.

Reading:   into one buffer that all connections share, because a read is handled before the next one begins. What is
           left of an incomplete frame is kept by the connection; a frame larger than the shared buffer gets a buffer
           of its own. So an idle connection costs next to nothing, and thousands of them are no burden.
Holding:   whoever cannot take more holds the connection: the socket is not read, TCP slows the client down, and what
           was read already waits. Several may hold it; the last one to let go resumes it.
Writing:   what is sent in one turn leaves in one write. A client that does not read makes the connection unwritable:
           deliveries stop, and answers wait up to `unsent_bytes_max`, beyond which its requests are not read either.
Keep-alive: a client that was silent for an interval is pinged, and gone after the next. One that is held is not
           blamed for its silence.
Read next: dispatcher.py, session.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from magnetar.errors import MagnetarError, RemoteProtocolError
from magnetar.wire.pulsar.frames import Buffer, FrameDecoder

log = logging.getLogger(__name__)

RECEIVE_BYTES = 1024 * 1024  # One read of a busy socket brings at most this much.
WRITE_HIGH_BYTES = 1024 * 1024  # In the transport and not taken by the kernel: enough to keep a socket busy.
_NOTHING = bytearray()
JOIN_BYTES_MAX = 2_048  # Parts up to this are cheaper to copy together than to hand over one by one.


class Handler(Protocol):
    """Takes what a connection received. Called on the loop; never blocks. The buffer is only lent."""

    def on_received(self, buffer: Buffer, start: int, end: int) -> int:
        """Handles whole frames from `start` on; returns where it stopped: at an incomplete one, or because it held the
        connection. RemoteProtocolError ends the connection."""

    def on_writable(self) -> None:
        """What is unsent has shrunk enough for more deliveries."""

    def on_closed(self) -> None: ...


@dataclass(slots=True)
class ConnectionCounters:
    """Of all connections of a front end together."""

    opened: int = 0
    closed: int = 0
    refused: int = 0
    """Closed at once, because there are as many as there may be."""
    received_bytes: int = 0
    sent_bytes: int = 0
    broken: int = 0
    """Closed because the client broke the protocol."""
    timed_out: int = 0
    """Closed because the client was silent for too long."""


class ReceiveBuffer:
    """Shared by the connections of one loop."""

    __slots__ = ("memory", "view")

    def __init__(self, size: int = RECEIVE_BYTES) -> None:
        self.memory = bytearray(size)
        self.view = memoryview(self.memory)


class Connection(asyncio.BufferedProtocol):
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
        self._shared = shared
        self._counters = counters
        self._decoder = decoder
        self._unsent_bytes_max = unsent_bytes_max
        self._keep_alive_s = keep_alive_s
        self._ping = ping
        self._loop = asyncio.get_running_loop()
        self._handler: Handler | None = None
        self._transport: asyncio.Transport | None = None
        self._rest = _NOTHING  # Received and not handled; of it the first `_rest_bytes` count.
        self._rest_bytes = 0
        self._target = shared.memory  # Where the read that is under way goes.
        self._holds = 0
        self._is_paused = False
        self._parsing = False
        self._unsent: list[Buffer] = []
        self._unsent_bytes = 0
        self._flush_is_due = False
        self._transport_is_full = False
        self._holds_itself = False
        self._waiting_for_room = False
        self._was_heard = True
        self._was_pinged = False
        self._keep_alive: asyncio.TimerHandle | None = None
        self.is_closed = False
        self.is_closing = False
        """Nothing more is handled: what comes in is thrown away."""
        self.is_established = False
        """The handshake is done; else the keep-alive closes the connection."""
        self.heard: asyncio.Future[None] | None = None
        """Done at the next sign of life, for who waits for one."""
        self.peer = ""

    def attach(self, handler: Handler) -> None:
        self._handler = handler

    # --- the transport's side -----------------------------------------------------------------------------------------

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
        self._rest, self._rest_bytes = _NOTHING, 0
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        self._wake_listener()
        if self._handler is not None:
            self._handler.on_closed()

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

    # --- answers ------------------------------------------------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        """For deliveries: whether there is room. If not, the handler hears when there is."""
        if self._unsent_bytes <= WRITE_HIGH_BYTES and not self._transport_is_full:
            return True
        self._waiting_for_room = True
        return False

    def send(self, *parts: Buffer) -> None:
        """Joins this turn's write. The parts may not change any more."""
        self.send_all(parts)

    def send_all(self, parts: Sequence[Buffer]) -> None:
        if self._transport is None:
            return
        self._unsent += parts
        self._unsent_bytes += sum(map(len, parts))
        if not self._flush_is_due and not self._transport_is_full:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)
        if self._unsent_bytes > self._unsent_bytes_max and not self._holds_itself:
            self._holds_itself = True
            self.hold()

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._transport is None or not self._unsent:
            return
        unsent, self._unsent = self._unsent, []
        size, self._unsent_bytes = self._unsent_bytes, 0
        self._counters.sent_bytes += size
        if len(unsent) == 1:
            self._transport.write(unsent[0])
        elif size <= JOIN_BYTES_MAX * len(unsent):
            self._transport.write(b"".join(unsent))
        else:
            self._transport.writelines(unsent)
        if not self._transport_is_full:
            self._on_room()

    def pause_writing(self) -> None:
        self._transport_is_full = True

    def resume_writing(self) -> None:
        self._transport_is_full = False
        if self._unsent and not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)
        self._on_room()

    def _on_room(self) -> None:
        if self._holds_itself and self._unsent_bytes <= self._unsent_bytes_max // 2:
            self._holds_itself = False
            self.release()
        if self._waiting_for_room and self._unsent_bytes <= WRITE_HIGH_BYTES and self._handler is not None:
            self._waiting_for_room = False
            self._loop.call_soon(self._handler.on_writable)

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

    def _wake_listener(self) -> None:
        heard, self.heard = self.heard, None
        if heard is not None and not heard.done():
            heard.set_result(None)

    # --- ending -------------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Closes at once; nothing more is handled or sent."""
        self.is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Closes when what was sent has left."""
        self.is_closing = True
        self._transport_is_full = False
        self._flush()
        if self._transport is not None:
            self._transport.close()
