"""What a connection has received and not handled yet: one buffer that is used again and again.

Size:      `RECEIVE_BYTES` is enough for nearly everything. A frame that is larger makes the buffer grow, but only as
           fast as the frame arrives: announced is not sent, and a length costs a client nothing. A moment after all
           was handled, it is a small one again (`shrink`): a connection that is idle has no more than that, and one
           that brings large frames all the time does not pay for new memory with each of them.
Copying:   what is left of an incomplete frame stays where it is until there is no room behind it. Then half of the
           buffer at least is free, or it is doubled: every byte is copied about once, however large its frame.
"""

from __future__ import annotations

from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX, frame_end

RECEIVE_BYTES = 256 * 1024  # One read of a busy socket brings about this much; more would only be touched in vain.


class ReceiveBuffer:
    """Filled behind `end`; `start` is moved by whoever handles what stands there."""

    __slots__ = ("data", "end", "start")

    def __init__(self) -> None:
        self.data = bytearray(RECEIVE_BYTES)
        self.start = 0  # What is not handled yet stands from here …
        self.end = 0  # … to here.

    def room(self) -> memoryview:
        """Where the next read goes; never empty."""
        if self.end == len(self.data):
            self._make_room()
        return memoryview(self.data)[self.end :]

    def rewind(self) -> None:
        """Everything was handled: the next read goes to the front again."""
        self.start = self.end = 0

    @property
    def is_large(self) -> bool:
        return len(self.data) > RECEIVE_BYTES

    def shrink(self) -> None:
        if self.start == self.end and self.is_large:
            self.start = self.end = 0
            self.data = bytearray(RECEIVE_BYTES)

    def _make_room(self) -> None:
        """Moves what is not handled yet to the front, into a larger buffer if it needs one.

        Whole frames may stand there too, if the connection is held: a transport that was told to stop may have had
        one more read under way.
        """
        rest = bytes(memoryview(self.data)[self.start : self.end])
        whole = frame_end(rest, 0, len(rest), FRAME_BYTES_MAX) or 0  # Refused already if it exceeds the limit.
        needed = max(whole, len(rest))
        if needed >= len(self.data) and len(rest) > len(self.data) // 2:
            self.data = bytearray(min(2 * len(self.data), needed + RECEIVE_BYTES))
        self.data[: len(rest)] = rest
        self.start, self.end = 0, len(rest)
