"""A connection that carries frames: received bytes in, whole frames to its protocol; buffers out, one write per turn.

Purpose:   All protocols share what is written here: the inbox, holds, the outbox, keep-alive, the end, and how
           connections are made (`listen`, `dial`). A protocol's own connection is a subclass. It finds and handles
           frames in `on_received`, and chooses its inbox and its limits.
           Every server of frames starts in `listen`, every client in `dial`, and every byte leaves through `_write`.
           TLS belongs here and nowhere else: a context that is passed to those two, and small buffers that `_write`
           joins before they are encrypted.
Order:     Frames are handled in the order in which they came, and buffers leave in the order in which they were sent.
           After a hold, what was received already is handled before more is read: otherwise a peer that is held again
           and again makes the rest grow without end.
Limits:    An inbox bounds what a connection keeps of unfinished frames: `receiving.Received` for the many connections
           of a server, `PrivateInbox` for those that this process opened.
           A hold has a reason. While there is any, the socket is not read, and TCP slows the peer down.
           More than `unsent_bytes_max` that the transport has not taken is such a reason, until half of it has left.
           The transport itself takes up to its high-water mark, `transport_bytes_high`, and then asks to wait.
Failure:   `abort` ends a connection at once, `close` when what was sent has left. After either, nothing more is
           handled. `on_closed` is called once, whatever the end was.
Read next: receiving.py; bookie/connection.py, broker/pulsar/connection.py, ledger/channels/connection.py,
           client/connection.py
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from magnetar.errors import ListenError, MagnetarError, RemoteProtocolError
from magnetar.runtime.descriptors import note_refused, takes_from_reserve
from magnetar.runtime.receiving import FrameEnd, Received

Buffer: TypeAlias = bytes | bytearray | memoryview
Make: TypeAlias = Callable[[], asyncio.BufferedProtocol]

UNSENT: Final = "unsent"
"""Reason of a hold: too much waits for the transport."""
UNDELIVERED: Final = "undelivered"
"""Reason of a hold: the transport waits for the peer, and the protocol has decided to stop reading until it takes
more."""
_SLOW_PEER: Final = frozenset({UNSENT, UNDELIVERED})
_UNLIMITED: Final = sys.maxsize
_JOIN_BYTES_MAX: Final = 2_048  # On average: copying such parts together costs less than handing them over one by one.


class PrivateInbox:
    """A buffer of one connection, used again and again. For connections that this process opened: there are few.

    The rest of an incomplete frame moves to the front when there is no room after it. A frame larger than the buffer is
    received into memory of its own, where its content can stay: no further copy.
    """

    def __init__(self, receive_bytes: int, frame_end: FrameEnd) -> None:
        self.data = self._reused = bytearray()
        self.start = 0
        self.end = 0
        self.is_large = False
        """Whether `data` is for one large frame alone, and will not be written again once that is whole."""
        self._receive_bytes = receive_bytes
        self._frame_end = frame_end

    def room(self) -> memoryview:
        if not self.data:
            self.data = self._reused = bytearray(self._receive_bytes)
        return memoryview(self.data)[self.end :]

    def add(self, size: int) -> None:
        self.end += size

    def settle(self) -> None:
        start, end = self.start, self.end
        if start == end:
            self.start = self.end = 0
            if self.is_large:
                self.data, self.is_large = self._reused, False
        elif self.is_large:
            assert end < len(self.data), "a whole frame is always taken"
        else:
            self._make_room(start, end)

    def _make_room(self, start: int, end: int) -> None:
        following = self._following(start, end)
        if following is not None and following - start > len(self.data):
            self.data, self.is_large = bytearray(following - start), True
            self.data[: end - start] = memoryview(self._reused)[start:end]
        elif following is None or following > len(self.data):
            self.data[: end - start] = bytes(memoryview(self.data)[start:end])
        else:
            return
        self.start, self.end = 0, end - start

    def _following(self, start: int, end: int) -> int | None:
        try:
            return self._frame_end(self.data, start, end)
        except RemoteProtocolError:  # The protocol finds the same, and ends the connection.
            return None

    def forget(self) -> None:
        self.data = self._reused = bytearray()
        self.start = self.end = 0
        self.is_large = False


Inbox: TypeAlias = Received | PrivateInbox
"""The received bytes that are not handled yet: `data` from `start` to `end`. The protocol moves `start`."""


@dataclass(slots=True)
class ConnectionCounters:
    """Counts of all connections of one server together."""

    opened: int = 0
    closed: int = 0
    turned_away: int = 0
    """Connections closed at once: the maximum is reached, or no descriptors are left."""
    received_bytes: int = 0
    sent_bytes: int = 0
    broken: int = 0
    """Connections closed because the client broke the protocol."""
    timed_out: int = 0
    """Connections closed because the client was silent for too long."""


class FramedConnection(asyncio.BufferedProtocol, ABC):
    """One end of a connection. The loop makes it with a transport; it ends with `connection_lost`."""

    __slots__ = (
        "_closed",
        "_counters",
        "_flush_is_due",
        "_heard",
        "_holds",
        "_inbox",
        "_is_handling",
        "_is_reading",
        "_keep_alive",
        "_loop",
        "_ping",
        "_server",
        "_transport",
        "_transport_bytes_high",
        "_transport_is_full",
        "_unsent",
        "_unsent_bytes",
        "_unsent_bytes_max",
        "_waits_for_room",
        "_was_heard",
        "_was_pinged",
        "is_closed",
        "is_closing",
        "is_established",
    )

    def __init__(
        self,
        inbox: Inbox,
        counters: ConnectionCounters,
        *,
        server: str = "",
        unsent_bytes_max: int = _UNLIMITED,
        transport_bytes_high: int | None = None,
    ) -> None:
        """`server`: the name of the server that accepted it, such as "bookie"; empty if this process opened it.
        `transport_bytes_high`: None for the transport's own default."""
        self.is_established = False
        """The handshake is done. A connection without it ends when keep-alive looks at it first."""
        self.is_closing = False
        """Nothing more is handled: what comes in is dropped."""
        self.is_closed = False
        self._inbox = inbox
        self._counters = counters
        self._server = server
        self._unsent_bytes_max = unsent_bytes_max
        self._transport_bytes_high = transport_bytes_high
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None] | None = None
        self._holds: dict[str, None] = {}
        self._is_reading = True
        self._is_handling = False
        self._unsent: list[Buffer] = []
        self._unsent_bytes = 0
        self._flush_is_due = False
        self._transport_is_full = False
        self._waits_for_room = False
        self._ping = b""
        self._keep_alive: asyncio.TimerHandle | None = None
        self._was_heard = True
        self._was_pinged = False
        self._heard: asyncio.Future[None] | None = None

    # --- for subclasses -----------------------------------------------------------------------------------------------

    @abstractmethod
    def on_received(self, buffer: bytearray, start: int, end: int) -> int:
        """Handles the whole frames of the region and returns where the rest begins: at an incomplete frame, or at one
        that it may not handle yet because it has held the connection. The buffer is only lent."""

    @abstractmethod
    def on_failed(self, error: MagnetarError) -> None:
        """Ends the connection, because `on_received` raised this."""

    @abstractmethod
    def on_closed(self, exc: Exception | None) -> None:
        """Called once, at the end. `exc`: what the transport failed with."""

    def on_connected(self, transport: asyncio.Transport) -> None:
        """Called once, at the beginning."""

    def on_progress(self) -> None:
        """Called after a write, and when the transport takes more after it was full, if the connection is held or
        `_waits_for_room`."""
        if not self._transport_is_full and self._unsent_bytes <= self._unsent_bytes_max // 2:
            self.release(UNSENT)

    def take_unsent(self) -> tuple[list[Buffer], int]:
        """Removes what the next write is to contain from the front of `_unsent`, and returns it with its size."""
        unsent, self._unsent = self._unsent, []
        return unsent, self._unsent_bytes

    # --- the transport's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = self._transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, but not the class.
        if self._transport_bytes_high is not None:
            made.set_write_buffer_limits(high=self._transport_bytes_high)
        self._counters.opened += 1
        if self._server and takes_from_reserve(transport):
            self._counters.turned_away += 1
            note_refused(self._counters.turned_away, self._server)
            self.abort()
        self.on_connected(made)

    def connection_lost(self, exc: Exception | None) -> None:
        self._counters.closed += 1
        self._transport = None
        self.is_closing = self.is_closed = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._inbox.forget()
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        _wake(self._heard)
        _wake(self._closed)
        self.on_closed(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._inbox.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._counters.received_bytes += nbytes
        self._was_heard = True
        if self._heard is not None:
            self._wake_listener()
        self._inbox.add(nbytes)
        self._handle()

    def pause_writing(self) -> None:
        self._transport_is_full = True

    def resume_writing(self) -> None:
        self._transport_is_full = False
        if self._holds or self._waits_for_room:
            self.on_progress()
        self._flush()

    # --- frames -------------------------------------------------------------------------------------------------------

    def _handle(self) -> None:
        inbox = self._inbox
        if not self._holds and not self.is_closing:
            self._is_handling = True
            try:
                inbox.start = self.on_received(inbox.data, inbox.start, inbox.end)
            except MagnetarError as error:
                self.on_failed(error)
            finally:
                self._is_handling = False
        if self.is_closing:
            inbox.forget()
        else:
            inbox.settle()

    def hold(self, reason: str) -> None:
        """Handles and reads nothing more until `release` is called with the same reason. Each reason counts once."""
        self._holds[reason] = None
        if self._is_reading and self._transport is not None and not self.is_closing:
            self._is_reading = False
            self._transport.pause_reading()

    def release(self, reason: str) -> None:
        """Ends a hold. Ignores a reason that does not hold the connection."""
        if reason not in self._holds:
            return
        del self._holds[reason]
        if self._holds or self._transport is None:
            return
        self._was_heard = True  # It was not read, so it could not be heard.
        if self._inbox.start < self._inbox.end or self._is_handling:
            self._loop.call_soon(self._handle_rest)  # Not inside the caller.
        else:
            self._resume_reading()

    def _handle_rest(self) -> None:
        if self._inbox.start < self._inbox.end and not self._holds:
            self._handle()
        if not self._holds:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._is_reading and not self.is_closing:
            self._is_reading = True
            self._transport.resume_reading()

    @property
    def is_held(self) -> bool:
        return bool(self._holds)

    @property
    def is_excused(self) -> bool:
        """Whether this process has reasons of its own to hold the connection, so that the peer may not have been heard.
        A peer that does not read what it is sent is not excused."""
        return not self._holds.keys() <= _SLOW_PEER

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, parts: Sequence[Buffer]) -> None:
        """Joins this turn's write. The parts may not change any more."""
        if self._transport is None or self.is_closing:
            return
        self._unsent += parts
        self._unsent_bytes += len(parts[0]) if len(parts) == 1 else sum(map(len, parts))  # One is by far most common.
        if not self._flush_is_due and not self._transport_is_full:  # A full transport asks for more by itself.
            self._flush_is_due = True
            self._loop.call_soon(self._flush)
        if self._unsent_bytes > self._unsent_bytes_max:
            self.hold(UNSENT)

    def send_now(self, parts: Sequence[Buffer]) -> None:
        """Sends at once, for a caller that has collected a turn's work already. Waiting parts leave first."""
        if self._unsent or self._transport_is_full:
            self.send(parts)
        elif self._transport is not None and not self.is_closing:
            size = sum(map(len, parts))
            self._counters.sent_bytes += size
            _write(self._transport, parts, size)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._transport is None or self._transport_is_full or not self._unsent:
            return
        parts, size = self.take_unsent()
        self._unsent_bytes -= size
        self._counters.sent_bytes += size
        _write(self._transport, parts, size)
        if self._unsent:
            self._flush_later()
        if self._holds or self._waits_for_room:
            self.on_progress()

    def _flush_later(self) -> None:
        if not self._flush_is_due and not self._transport_is_full:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    # --- keep-alive ---------------------------------------------------------------------------------------------------

    def keep_alive(self, interval_s: float, ping: bytes, on_silent: Callable[[], None]) -> None:
        """From now on, sends `ping` to a peer that was silent for an interval, and calls `on_silent` after another: the
        peer has gone. Does nothing on a connection that was lost before its owner came to this."""
        if self.is_closing:
            return
        self._ping = ping
        self._keep_alive = self._loop.call_later(interval_s, self._look_alive, interval_s, on_silent)

    def _look_alive(self, interval_s: float, on_silent: Callable[[], None]) -> None:
        if self.is_closing:
            return
        is_silent = not self._was_heard and not self.is_excused
        if not self.is_established or (is_silent and self._was_pinged):
            on_silent()
            return
        self._was_pinged = is_silent
        if is_silent:
            self.send((self._ping,))
        self._was_heard = False
        self._keep_alive = self._loop.call_later(interval_s, self._look_alive, interval_s, on_silent)

    async def check_alive(self, timeout_s: float) -> bool:
        """Pings, and waits for a sign of life; aborts a connection that gives none."""
        if self.is_closed:
            return False
        if self._heard is None:
            self._heard = self._loop.create_future()
            self._was_pinged = True
            self.send((self._ping,))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._heard)
        except TimeoutError:
            if not self._holds:
                self.abort()
                return False
        return not self.is_closed

    def _wake_listener(self) -> None:
        heard, self._heard = self._heard, None
        _wake(heard)

    # --- ending -------------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Closes at once; nothing more is handled or sent."""
        self._stop_handling()
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Closes when what was sent has left."""
        self._stop_handling()
        if self._transport is not None:
            while self._unsent:
                self._transport_is_full = False  # It keeps all that it is given, and is given no more.
                self._flush()
            self._transport.close()

    def _stop_handling(self) -> None:
        self.is_closing = True
        if not self._is_handling:  # Otherwise the frames that are handled now are still lent from it.
            self._inbox.forget()

    async def wait_closed(self) -> None:
        """Returns after `on_closed`. The caller brings the timeout."""
        if not self.is_closed:
            if self._closed is None:
                self._closed = self._loop.create_future()
            await asyncio.shield(self._closed)


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _write(transport: asyncio.Transport, parts: Sequence[Buffer], size: int) -> None:
    if len(parts) == 1:
        transport.write(parts[0])
    elif size <= _JOIN_BYTES_MAX * len(parts):
        transport.write(b"".join(parts))
    else:
        transport.writelines(parts)


async def listen(make: Make, host: str, port: int, *, backlog: int, server: str, setting: str) -> asyncio.Server:
    """Takes the port, but no connection before `start_serving`. ListenError, which names the server and the setting of
    its address. `backlog`: connections that wait to be accepted."""
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(make, host, port, backlog=backlog, start_serving=False)
    except OSError as error:
        raise ListenError(
            f"the {server} cannot listen on {host}:{port} ({error.strerror or error}): stop what uses the port or "
            f"name another (--port); {setting} must be an address of this machine"
        ) from error


async def dial(make: Make, host: str, port: int) -> None:
    """Gives the connection that `make` makes a transport. Raises OSError. The caller brings the timeout."""
    await asyncio.get_running_loop().create_connection(make, host, port)
