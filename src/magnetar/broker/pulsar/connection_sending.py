"""The sending side of a connection: answers and deliveries in, one write per turn of the loop out.

Writing:   what is sent in one turn leaves in one write. A client that does not read makes the connection unwritable:
           deliveries stop, and answers wait up to `unsent_bytes_max`, beyond which its requests are not read either.
Read next: connection_receiving.py
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from magnetar.broker.pulsar.connection_parts import ConnectionCounters, Handler
from magnetar.wire.pulsar.frames import Buffer

WRITE_HIGH_BYTES: Final = 1024 * 1024  # In the transport and not taken by the kernel: enough to keep a socket busy.
JOIN_BYTES_MAX: Final = 2_048  # Parts up to this are cheaper to copy together than to hand over one by one.


class SendingSide(asyncio.BufferedProtocol, ABC):
    """Of a connection, which sets `_transport` while there is one."""

    def __init__(self, counters: ConnectionCounters, unsent_bytes_max: int) -> None:
        self._counters = counters
        self._unsent_bytes_max = unsent_bytes_max
        self._loop = asyncio.get_running_loop()
        self._handler: Handler | None = None
        self._transport: asyncio.Transport | None = None
        self._unsent: list[Buffer] = []
        self._unsent_bytes = 0
        self._flush_is_due = False
        self._transport_is_full = False
        self._holds_itself = False
        self._waiting_for_room = False
        self.is_closing = False
        """Nothing more is handled: what comes in is thrown away."""

    @abstractmethod
    def hold(self) -> None:
        """No more requests are taken from this client until `release`."""

    @abstractmethod
    def release(self) -> None: ...

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
