"""One connection to a bookie: whole frames to its receiver, buffers of a turn out.

Limits:    Buffers that the transport does not take wait here. When they are more than `unsent_bytes_max`, the
           connection is unwritable until the bookie reads again.
Failure:   Whatever the reason, the receiver is called once for the loss, with an error that names the bookie.
Read next: runtime/framed_connection.py; v2_connection.py, v3_connection.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from magnetar.errors import BookieUnavailableError, MagnetarError, RemoteProtocolError
from magnetar.ids import BookieId
from magnetar.runtime.framed_connection import ConnectionCounters, FramedConnection, PrivateInbox
from magnetar.wire.bookkeeper.frames import Buffer, frame_end

RECEIVE_BYTES: Final = 256 * 1024  # One read of a busy socket brings about this much.
_TRANSPORT_BYTES_HIGH: Final = 2**20  # What the transport takes before it asks to wait: a turn's worth of adds.


class Receiver(Protocol):
    """Knows what the frames of a connection mean."""

    def on_received(self, buffer: bytearray, start: int, end: int, *, is_ours: bool) -> int:
        """Takes all whole frames of the region and returns where the rest begins. RemoteProtocolError: the end.

        The buffer is only lent, unless `is_ours`: then it holds one frame, and nothing else will touch it.
        """

    def on_lost(self, error: MagnetarError) -> None:
        """Called once."""

    def on_writable(self) -> None:
        """Called when there is room again, after there was none."""


class Connection(FramedConnection):
    """Is made for one receiver, and gets its transport from a dialler."""

    __slots__ = (
        "_asked_at",
        "_buffer",
        "_receiver",
        "_writable_bytes_max",
        "bookie_id",
        "error",
    )

    def __init__(self, bookie_id: BookieId, receiver: Receiver, *, unsent_bytes_max: int) -> None:
        self._buffer = PrivateInbox(RECEIVE_BYTES, frame_end)
        super().__init__(self._buffer, ConnectionCounters(), transport_bytes_high=_TRANSPORT_BYTES_HIGH)
        self.bookie_id = bookie_id
        self.error: MagnetarError | None = None
        """The reason for the loss, as soon as it is known."""
        self._receiver = receiver
        self._writable_bytes_max = unsent_bytes_max
        self._asked_at: float | None = None  # When the first bytes were sent since the bookie was last heard.

    # --- frames -------------------------------------------------------------------------------------------------------

    def on_received(self, buffer: bytearray, start: int, end: int) -> int:
        self._asked_at = None
        return self._receiver.on_received(buffer, start, end, is_ours=self._buffer.is_large)

    def on_failed(self, error: MagnetarError) -> None:
        if not isinstance(error, RemoteProtocolError):
            raise error
        lost = BookieUnavailableError(f"bookie {self.bookie_id} sent what it must not: {error}")
        lost.__cause__ = error
        self.lose(lost)

    # --- sending ------------------------------------------------------------------------------------------------------

    @property
    def silent_s(self) -> float:
        """Seconds since something was sent, if nothing at all was heard since."""
        return 0.0 if self._asked_at is None else self._loop.time() - self._asked_at

    @property
    def is_writable(self) -> bool:
        return not self._transport_is_full or self._unsent_bytes <= self._writable_bytes_max

    def send(self, parts: Sequence[Buffer]) -> None:
        if self._asked_at is None:
            self._asked_at = self._loop.time()
        super().send(parts)

    def send_now(self, parts: Sequence[Buffer]) -> None:
        if self._asked_at is None:
            self._asked_at = self._loop.time()
        super().send_now(parts)

    def resume_writing(self) -> None:
        was_writable = self.is_writable
        super().resume_writing()
        if not was_writable and self.is_writable:  # The transport may have asked to wait again.
            self._receiver.on_writable()

    # --- ending -------------------------------------------------------------------------------------------------------

    def lose(self, error: MagnetarError) -> None:
        """Breaks the connection; the receiver is called in a later turn of the loop."""
        if self.error is None:
            self.error = error
            self.abort()

    def on_closed(self, exc: Exception | None) -> None:
        if self.error is None:
            why = "the bookie closed it" if exc is None else str(exc) or type(exc).__name__
            self.error = BookieUnavailableError(f"the connection to bookie {self.bookie_id} was lost: {why}")
        self._receiver.on_lost(self.error)
