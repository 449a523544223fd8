"""One connection to a bookie: received regions in, whole frames to a receiver; buffers out, one write per turn.

Reading:   into one buffer that is used again and again; its whole frames are taken in one go after every read, and the
           rest of an incomplete one moves to the front when there is no room behind it. A frame larger than the buffer
           is received into memory of its own, where its content can stay: no further copy.
Writing:   buffers of one turn leave together. What the transport does not take waits here; when it is more than the
           limit, the connection is unwritable until the bookie reads again.
Loss:      whatever the reason, the receiver is told once, from `connection_lost`, with an error that names the bookie.
Read next: compact_connection.py (v2), full_connection.py (v3)
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, cast

from magnetar.errors import BookieUnavailableError, MagnetarError, RemoteProtocolError
from magnetar.ids import BookieId
from magnetar.wire.bookkeeper.frames import Buffer, frame_end

RECEIVE_BYTES: Final = 256 * 1024  # One read of a busy socket brings about this much.
_TRANSPORT_BYTES_HIGH: Final = 2**20  # What the transport takes before it asks to wait: a turn's worth of adds.
_TRANSPORT_BYTES_LOW: Final = 256 * 1024
_PARTS_MAX: Final = 64  # More buffers than this cost more as buffers than joined.
_SMALL_BYTES: Final = 4096  # On average: copying such parts costs less than handing them over one by one.


class Connection(asyncio.BufferedProtocol, ABC):
    """A subclass says what the frames mean. Made by a dialler, for one transport."""

    def __init__(self, bookie_id: BookieId, *, unsent_bytes_max: int) -> None:
        self.bookie_id = bookie_id
        self.error: MagnetarError | None = None
        """Why the connection is lost, as soon as that is known."""
        self._asked_at: float | None = None  # When we sent something first since we last heard anything.
        self._unsent_bytes_max = unsent_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(RECEIVE_BYTES)
        self._start = 0  # What is not handled yet stands from here …
        self._end = 0  # … to here.
        self._large: bytearray | None = None  # A frame that does not fit there …
        self._large_end = 0  # … received up to here.
        self._unsent: list[Buffer] = []
        self._unsent_bytes = 0
        self._flush_is_due = False
        self._is_paused = False
        self.closed = asyncio.Event()

    # --- for subclasses -----------------------------------------------------------------------------------------------

    @abstractmethod
    def on_received(self, buffer: bytearray, start: int, end: int, *, is_ours: bool) -> int:
        """Takes all whole frames of the region and returns where the rest begins. RemoteProtocolError: the end.

        The buffer is only lent, unless `is_ours`: then it holds one frame, and nobody else will touch it.
        """

    @abstractmethod
    def on_lost(self, error: MagnetarError) -> None:
        """Called once."""

    @abstractmethod
    def on_writable(self) -> None:
        """There is room again, after there was none."""

    # --- the transport's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, but not the base class.
        self._transport.set_write_buffer_limits(high=_TRANSPORT_BYTES_HIGH, low=_TRANSPORT_BYTES_LOW)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._unsent.clear()
        self._unsent_bytes = 0
        self._buffer, self._large = bytearray(), None  # Whoever still knows the channel need not keep this.
        if self.error is None:
            why = "the bookie closed it" if exc is None else str(exc) or type(exc).__name__
            self.error = BookieUnavailableError(f"the connection to bookie {self.bookie_id} was lost: {why}")
        self.closed.set()
        self.on_lost(self.error)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        if self._large is not None:
            return memoryview(self._large)[self._large_end :]
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._asked_at = None
        if self.error is not None:
            return
        try:
            if self._large is not None:
                self._take_large(self._large, nbytes)
            else:
                self._end += nbytes
                self._start = self.on_received(self._buffer, self._start, self._end, is_ours=False)
                self._make_room()
        except RemoteProtocolError as error:
            lost = BookieUnavailableError(f"bookie {self.bookie_id} sent what it must not: {error}")
            lost.__cause__ = error
            self.lose(lost)

    def _take_large(self, large: bytearray, nbytes: int) -> None:
        self._large_end += nbytes
        if self._large_end == len(large):
            self._large = None
            taken = self.on_received(large, 0, len(large), is_ours=True)
            assert taken == len(large), "a whole frame is always taken"

    def _make_room(self) -> None:
        """Room for the rest of the frame that is not whole yet."""
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = 0
            return
        following = frame_end(self._buffer, start, end)
        if following is not None and following - start > len(self._buffer):
            self._large = bytearray(following - start)
            self._large_end = end - start
            self._large[: end - start] = memoryview(self._buffer)[start:end]
            self._start = self._end = 0
        elif following is None or following > len(self._buffer):
            self._buffer[: end - start] = bytes(memoryview(self._buffer)[start:end])
            self._start, self._end = 0, end - start

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        was_writable = self.is_writable
        self._is_paused = False
        self._flush()
        if not was_writable and self.is_writable:  # The transport may have asked to wait again.
            self.on_writable()

    # --- sending ------------------------------------------------------------------------------------------------------

    @property
    def silent_s(self) -> float:
        """For how long nothing at all was heard although something was sent."""
        return 0.0 if self._asked_at is None else self._loop.time() - self._asked_at

    @property
    def is_writable(self) -> bool:
        return not self._is_paused or self._unsent_bytes <= self._unsent_bytes_max

    def send(self, parts: Sequence[Buffer]) -> None:
        """Joins this turn's write. The parts may not change any more."""
        if self.error is not None:
            return
        if self._asked_at is None:
            self._asked_at = self._loop.time()
        self._unsent += parts
        self._unsent_bytes += sum(map(len, parts))
        if not self._flush_is_due and not self._is_paused:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def send_now(self, parts: Sequence[Buffer]) -> None:
        """For who has joined a turn's work already. What waits goes first."""
        if self._unsent or self._is_paused:
            self.send(parts)
        elif self._transport is not None and self.error is None:
            if self._asked_at is None:
                self._asked_at = self._loop.time()
            _write(self._transport, parts)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._transport is None or not self._unsent or self._is_paused or self.error is not None:
            return
        unsent, self._unsent = self._unsent, []
        self._unsent_bytes = 0
        _write(self._transport, unsent)

    # --- ending -------------------------------------------------------------------------------------------------------

    def lose(self, error: MagnetarError) -> None:
        """Breaks the connection; the receiver is told in a later turn of the loop."""
        if self.error is None:
            self.error = error
            if self._transport is not None:
                self._transport.abort()


def _write(transport: asyncio.Transport, parts: Sequence[Buffer]) -> None:
    if len(parts) > _PARTS_MAX and sum(map(len, parts)) < len(parts) * _SMALL_BYTES:
        transport.write(b"".join(parts))
    else:
        transport.writelines(parts)
