"""Links: the network between the members of a test's cluster, which a test can interrupt.

Each connection consists of two, one to the side that connects and one to the side that accepts. A relay between them
passes bytes on. `LocalLink` joins a client and a bookie of this process without a socket; `Door` is a TCP port that
leads to another one.

Order:     While a link is held, no byte passes in either direction, and neither side learns that the other one has
           closed its connection: packets are dropped. Connections can be made, and wait. After the release everything
           that was sent arrives, as after TCP's retransmissions.
Limits:    A held link reads nothing. The writer's transport fills up, and asks to wait, as with TCP.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from magnetar.ledger.channels.local_transport import Accept, connect_local

_READ_BYTES: Final = 256 * 1024
_CONNECT_S_MAX: Final = 5.0


class Link:
    """Relays connections until `drop` or `close`."""

    def __init__(self) -> None:
        self.relays: dict[Relay, None] = {}
        self._holds: dict[str, None] = {}
        self._is_closed = False

    @property
    def flows(self) -> bool:
        return not self._holds

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def hold(self, reason: str) -> None:
        """Lets nothing pass until `release` is called with the same reason. Each reason counts once."""
        self._holds[reason] = None
        self._update()

    def release(self, reason: str) -> None:
        self._holds.pop(reason, None)
        self._update()

    def _update(self) -> None:
        for relay in list(self.relays):
            relay.update()

    def drop(self) -> None:
        """Breaks every connection, as the end of a process does."""
        for relay in list(self.relays):
            relay.abort()

    def close(self) -> None:
        """Breaks every connection, and refuses new ones until `open`."""
        self._is_closed = True
        self.drop()

    def open(self) -> None:
        self._is_closed = False


class Relay:
    """One connection: `near` faces the side that connects, `far` the side that accepts."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.near, self.far = _End(self), _End(self)
        self.near.other, self.far.other = self.far, self.near
        self.is_aborted = False
        link.relays[self] = None

    def update(self) -> None:
        if self.link.flows:
            for end in (self.near, self.far):
                end.pass_on()
        for end in (self.near, self.far):
            end.update()

    def abort(self) -> None:
        self.is_aborted = True
        for end in (self.near, self.far):
            if end.transport is not None:
                end.transport.abort()
        self.forget()

    def forget(self) -> None:
        self.link.relays.pop(self, None)


class _End(asyncio.BufferedProtocol):
    other: _End

    def __init__(self, relay: Relay) -> None:
        self.transport: asyncio.Transport | None = None
        self._relay = relay
        self._buffer = bytearray(_READ_BYTES)
        self._kept = b""
        """What came although this end did not read: uvloop's transports read once after `connection_made`."""
        self._is_full = False
        self._is_reading = True
        self._is_lost = False
        self._lost_by: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, but not the class.
        if self._relay.is_aborted:
            self.transport.abort()
        else:
            self._relay.update()

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        received = bytes(memoryview(self._buffer)[:nbytes])
        if self._relay.link.flows and self.other.transport is not None:
            self.other.transport.write(received)
        else:
            self._kept += received
            self._is_reading = False
            if self.transport is not None:
                self.transport.pause_reading()

    def pause_writing(self) -> None:
        self._is_full = True
        self.other.update()

    def resume_writing(self) -> None:
        self._is_full = False
        self.other.update()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport, self._is_lost, self._lost_by = None, True, exc
        if self._relay.link.flows:
            self.pass_on()

    def pass_on(self) -> None:
        """Passes on what was kept; and the end of this connection, if it has ended: after what was sent has left, or at
        once after an error."""
        other = self.other.transport
        if other is not None and self._kept:
            other.write(self._kept)
            self._kept = b""
        if not self._is_lost:
            return
        self._relay.forget()
        if other is not None and self._lost_by is None:
            other.close()
        elif other is not None:
            other.abort()

    def update(self) -> None:
        """Reads if what is read can be passed on."""
        if self.transport is None or self.transport.is_closing():
            return
        other = self.other
        reads = self._relay.link.flows and other.transport is not None and not other._is_full
        if reads != self._is_reading:
            self._is_reading = reads
            if reads:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()


class LocalLink(Link):
    """Leads to a bookie of this process."""

    def __init__(self, accept: Accept) -> None:
        super().__init__()
        self._accept = accept

    def accept(self) -> asyncio.BufferedProtocol:
        """Raises ConnectionRefusedError if the link is closed, or no bookie accepts."""
        if self.is_closed:
            raise ConnectionRefusedError("the process at this end of the link was killed")
        relay = Relay(self)
        try:
            connect_local(self._accept, lambda: relay.far)
        except BaseException:
            relay.forget()
            raise
        return relay.near


class Door(Link):
    """A TCP port that stays the same while the process after it comes and goes."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self.target = 0
        """The port of the process; 0: none, so that connections are broken."""
        self.port = 0
        self._host = host
        self._server: asyncio.Server | None = None
        self._dialling: dict[asyncio.Task[None], None] = {}

    async def listen(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(self._accept, self._host, 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def _accept(self) -> asyncio.BufferedProtocol:
        relay = Relay(self)
        task = asyncio.get_running_loop().create_task(self._dial(relay), name="door")
        self._dialling[task] = None
        task.add_done_callback(self._dialling.pop)
        return relay.near

    async def _dial(self, relay: Relay) -> None:
        """The operating system accepts connections for a process that stands still; so it is done while held, too."""
        try:
            if self.is_closed or not self.target:
                raise ConnectionRefusedError("no process has the port")
            async with asyncio.timeout(_CONNECT_S_MAX):
                await asyncio.get_running_loop().create_connection(lambda: relay.far, self._host, self.target)
        except OSError:  # TimeoutError is one.
            relay.abort()

    async def aclose(self) -> None:
        self.close()
        if self._server is not None:
            self._server.close()
        for task in list(self._dialling):
            task.cancel()
        if self._dialling:
            await asyncio.wait(list(self._dialling))
        self.drop()
