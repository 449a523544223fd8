"""SimTransport: one end of a simulated connection, as a protocol sees it.

Buffer:    the first `window_bytes` that have not arrived are the kernel's; what goes beyond them is the transport's own
           write buffer, which pauses the protocol at its high-water mark, and is lost with the process.
Closing:   `close` ends when the write buffer is empty; then the peer gets an end, or a reset if it has sent something
           that nobody read. Whatever it sends afterwards is answered with a reset.
Read next: pipe.py
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from magnetar.sim.network.pipe import Pipe, Signal
from magnetar.sim.process import Process

if TYPE_CHECKING:
    from magnetar.sim.network.network import Host, SimNetwork

_HIGH_BYTES: Final = 64 * 1024  # asyncio's own default.


class Address(NamedTuple):
    host: str
    port: int


class SimSocket:
    """What `sockets` and `get_extra_info("socket")` give: names, nothing to read or write."""

    def __init__(self, name: Address, peer: Address | None = None) -> None:
        self._name = name
        self._peer = peer

    def getsockname(self) -> Address:
        return self._name

    def getpeername(self) -> Address:
        if self._peer is None:
            raise OSError("the socket is not connected")
        return self._peer


class End:
    """What is told of an end when it is made: by the network, before there is a protocol."""

    def on_made(self, transport: SimTransport) -> asyncio.BaseProtocol | None:
        """The protocol, its `connection_made` not called yet; None: nobody wants the connection any more."""
        raise NotImplementedError

    def on_connected(self, transport: SimTransport) -> None:
        """Behind `connection_made`."""

    def on_lost(self) -> None:
        """Behind `connection_lost`."""


class SimTransport(asyncio.Transport):
    def __init__(
        self, network: SimNetwork, process: Process, host: Host, end: End, socket: SimSocket, window_bytes: int
    ) -> None:
        super().__init__({"sockname": socket.getsockname(), "peername": socket.getpeername(), "socket": socket})
        self.process = process
        self.host = host
        self.is_dead = False  # Its process has crashed.
        self.is_lost = False  # `connection_lost` was called, or will never be.
        self.outgoing: Pipe
        self.incoming: Pipe
        self._network = network
        self._end = end
        self._window_bytes = window_bytes
        self._protocol: asyncio.BaseProtocol | None = None
        self._is_closing = False
        self._is_reading = True
        self._has_unread = False
        self._has_ended = False  # We have said that no more comes.
        self._is_protocol_paused = False
        self._losing: asyncio.Handle | None = None
        self._high_bytes, self._low_bytes = _HIGH_BYTES, _HIGH_BYTES // 4

    # --- what the protocol calls --------------------------------------------------------------------------------------

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        if not self._is_closing:
            self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_closing and not self._is_reading:
            self._is_reading = True
            self.incoming.release_to_reader()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}) must be >= 0")
        self._high_bytes, self._low_bytes = high, low
        self._maybe_pause_protocol()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def get_write_buffer_size(self) -> int:
        return max(0, self.outgoing.unsent_bytes - self._window_bytes)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._has_ended:
            raise RuntimeError("write() after write_eof()")
        if data and not self._is_closing:
            self.outgoing.send(bytes(data))
            self._maybe_pause_protocol()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._is_closing and not self._has_ended:
            self._has_ended = True
            self.outgoing.send(Signal.END)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._maybe_lose()

    def abort(self) -> None:
        if self.is_lost or self.is_dead:
            return
        self._is_closing = True
        self.outgoing.cut(self._window_bytes)
        self._maybe_lose()

    # --- what the network calls ---------------------------------------------------------------------------------------

    @property
    def holds_reading(self) -> bool:
        return not self._is_reading and not self._is_closing

    def on_made(self) -> None:
        self._protocol = self._end.on_made(self)
        if self._protocol is None:
            self.is_lost = self._is_closing = True
            self.send_reset()
            self._network.forget(self)
            return
        self._protocol.connection_made(self)
        self._end.on_connected(self)

    def on_data(self, data: bytes) -> int:
        """How many bytes were taken."""
        protocol = self._protocol
        if self._is_closing:
            self._has_unread = True
        elif isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1)).cast("B")
            size = min(len(buffer), len(data))
            assert size, "get_buffer() returned an empty buffer"
            buffer[:size] = data[:size]
            protocol.buffer_updated(size)
            return size
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(data)
        return len(data)

    def on_end(self) -> None:
        if self._is_closing:
            return
        protocol = self._protocol
        assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        if not protocol.eof_received():
            self.close()

    def on_reset(self) -> None:
        self._is_closing = True
        self.outgoing.cut(0)
        if self._losing is not None:
            self._losing.cancel()
        self._lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def on_sent(self) -> None:
        """Bytes have arrived at the peer."""
        if self.is_dead or self.is_lost:
            return
        if self._is_protocol_paused and self.get_write_buffer_size() <= self._low_bytes:
            self._is_protocol_paused = False
            self._network.loop.call_soon(self._resume_protocol, context=self.process.context)
        if self._is_closing:
            self._maybe_lose()

    def send_reset(self) -> None:
        self.outgoing.send(Signal.RESET)

    def die(self, *, kept_bytes: int | None, reset: bool) -> None:
        """The process has crashed. `kept_bytes`: what its kernel still sends before the end; None: neither of them."""
        self.is_dead = self._is_closing = True
        if kept_bytes is None:
            self.outgoing.cut(0)
        elif not self.is_lost:
            self.outgoing.cut(kept_bytes)
            if reset or not self._has_ended:
                self.outgoing.send(Signal.RESET if reset else Signal.END)
        self.incoming.on_receiver_died()

    @property
    def kernel_bytes(self) -> int:
        return self._window_bytes

    # --- inside -------------------------------------------------------------------------------------------------------

    def _maybe_pause_protocol(self) -> None:
        if not self._is_protocol_paused and self.get_write_buffer_size() > self._high_bytes:
            self._is_protocol_paused = True
            self.get_protocol().pause_writing()

    def _resume_protocol(self) -> None:
        if not self.is_lost:
            self.get_protocol().resume_writing()

    def _maybe_lose(self) -> None:
        if self._losing is None and not self.get_write_buffer_size():
            self._losing = self._network.loop.call_soon(self._lose, None, context=self.process.context)

    def _lose(self, error: Exception | None) -> None:
        self.is_lost = True
        if error is None and not self._has_ended:
            self.outgoing.send(Signal.RESET if self._has_unread else Signal.END)
        self._network.forget(self)
        assert self._protocol is not None
        self._protocol.connection_lost(error)
        self._end.on_lost()
