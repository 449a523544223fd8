"""What the connections of a front end share, and whom a connection tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.wire.pulsar.frames import Buffer

RECEIVE_BYTES: Final = 1024 * 1024  # One read of a busy socket brings at most this much.


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
