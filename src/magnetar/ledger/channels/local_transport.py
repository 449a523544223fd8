"""Two transports in one process, each the other's peer: a client and a bookie that share a process need no socket.

A pair promises the same as TCP, which is bytes in order, once; a slow reader slows the writer down (`pause_writing`); a
close lets what was written arrive, an abort does not; both ends learn of the end once.

Order:     Nothing is delivered from inside `write`: protocols are called from the loop, one buffer at a time, so that a
           busy pair leaves turns to others. There is one copy, from the writer's buffers into the reader's. Until then
           buffers are only referred to, so a buffer that can change is copied first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

Buffer = bytes | bytearray | memoryview
Accept = Callable[[], asyncio.BufferedProtocol]
"""Makes the far end of a new connection, as `Bookie.accept` does."""

_HIGH: Final = 64 * 1024  # The default of asyncio's own transports.


def connect_local(accept: Accept, make: Callable[[], asyncio.BufferedProtocol]) -> None:
    """Connects what `make` makes with what `accept` makes. `connection_made` is called on both before this returns."""
    far = accept()
    near = make()
    near_transport, far_transport = LocalTransport(near), LocalTransport(far)
    near_transport.peer, far_transport.peer = far_transport, near_transport
    far.connection_made(far_transport)
    near.connection_made(near_transport)


class LocalTransport(asyncio.Transport):
    """Is one end. `peer` is set before it is used."""

    peer: LocalTransport

    def __init__(self, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._unread: deque[memoryview] = deque()  # Written at this end; the peer has not read it yet.
        self._unread_bytes = 0
        self._high = _HIGH
        self._low = _HIGH // 4
        self._writer_waits = False
        self._is_reading = True
        self._delivery_is_due = False
        self._is_closing = False
        self._is_closed = False

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self._is_closing:
            return
        for data in list_of_data:
            if data:
                view = _lasting(data)
                self._unread.append(view)
                self._unread_bytes += view.nbytes
        self.peer._deliver_later()
        if self._unread_bytes > self._high and not self._writer_waits:
            self._writer_waits = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._unread_bytes

    def can_write_eof(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._deliver_later()

    def _deliver_later(self) -> None:
        if self._is_reading and not self._delivery_is_due and not self._is_closed:
            self._delivery_is_due = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Delivers as much as fits into the protocol's buffer once; the rest follows in a later turn."""
        self._delivery_is_due = False
        peer = self.peer
        if self._is_closing or not self._is_reading:
            return
        if peer._unread:
            self._hand_over(peer)
        if peer._unread:
            self._deliver_later()
        elif peer._is_closing and not self._is_closing:
            self._end(None)

    def _hand_over(self, peer: LocalTransport) -> None:
        try:
            self._protocol.buffer_updated(peer._take(self._protocol))
        except Exception as error:  # As asyncio's own transports do: a bug ends the connection, not the loop.
            self._loop.call_exception_handler(
                {"message": "a protocol failed", "exception": error, "transport": self, "protocol": self._protocol}
            )
            self.abort()

    def _take(self, reader: asyncio.BufferedProtocol) -> int:
        """Moves bytes to the reader, and lets our protocol write again if there is room."""
        room = cast("memoryview", reader.get_buffer(-1))
        at, end = 0, len(room)
        assert end, "a buffer without room"
        while self._unread and at < end:
            view = self._unread.popleft()
            fits = min(view.nbytes, end - at)
            room[at : at + fits] = view[:fits]
            at += fits
            if fits < view.nbytes:
                self._unread.appendleft(view[fits:])
        self._unread_bytes -= at
        if self._writer_waits and self._unread_bytes <= self._low:
            self._loop.call_soon(self._resume_writing)
        return at

    def _resume_writing(self) -> None:
        if self._writer_waits and self._unread_bytes <= self._low and not self._is_closed:
            self._writer_waits = False
            self._protocol.resume_writing()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Closes after what was written has arrived."""
        if not self._is_closing:
            self._end(None)
            self.peer._deliver_later()

    def abort(self) -> None:
        if not self._is_closing:
            self._forget_unread()
            self.peer._forget_unread()
            self._end(None)
            self.peer._break(ConnectionResetError("the other end was aborted"))

    def _break(self, error: Exception) -> None:
        if not self._is_closing:
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._is_closing = True
        self.peer._forget_unread()  # This end reads no more.
        self._loop.call_soon(self._tell_lost, error)
        self.peer._deliver_later()

    def _forget_unread(self) -> None:
        self._unread.clear()
        self._unread_bytes = 0

    def _tell_lost(self, error: Exception | None) -> None:
        self._is_closed = True
        self._protocol.connection_lost(error)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns the default: without a socket there is no information."""
        del name
        return default

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol


def _lasting(data: Buffer) -> memoryview:
    view = memoryview(data)
    if not view.readonly:
        view = memoryview(bytes(view))
    return view.cast("B") if view.format != "B" or view.ndim != 1 else view
