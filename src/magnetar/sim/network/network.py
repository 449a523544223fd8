"""SimNetwork: hosts, the links between them, and the connections along these.

Hosts:     each node has a name, which is also how others reach it ("bookie-1:3181" works), and an address. Ports belong
           to the host's kernel; those that nobody chose are counted up.
Connect:   both directions must be open. A host that is up and has no listener refuses; one that cannot be reached does
           not answer, and the connect tries again as TCP does, until its caller loses patience.
Kill:      the kernel outlives the process: it sends what it has, then an end or a reset.
Power:     nothing is sent. The peer has a half-open connection, and learns of it when it writes after the host is back.
Seeds:     delay, framing, datagrams and faults each have a generator of their own.
Read next: pipe.py, transport.py, link.py; docs/simulation.md
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import Any, Final

from magnetar.sim.loop import SimLoop
from magnetar.sim.network.link import LOOPBACK, Link, LinkDelay, NetworkCounters
from magnetar.sim.network.pipe import Pipe, Signal
from magnetar.sim.network.transport import Address, End, SimSocket, SimTransport
from magnetar.sim.process import Process
from magnetar.sim.seeds import seeded

Factory = Callable[[], asyncio.BaseProtocol]

_FIRST_PORT: Final = 32_768
_PORTS: Final = 28_000
_WINDOWS: Final = (4 * 1024, 64 * 1024, 512 * 1024)  # What two kernels take off a writer's hands; drawn per connection.
_CONNECT_RETRY_S: Final = 1.0  # Doubled each time, as Linux does it …
_CONNECT_TRIES: Final = 7  # … which makes 127 seconds.
_ANY_INTERFACE: Final = ("0.0.0.0", "::", "")  # noqa: S104 - what a wildcard looks like
_LOCAL: Final = ("127.0.0.1", "::1", "localhost")


class Host:
    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.is_up = True
        self.servers: dict[int, SimServer] = {}
        self._ports = 0

    def free_port(self) -> int:
        for _ in range(_PORTS):
            port = _FIRST_PORT + self._ports % _PORTS
            self._ports += 1
            if port not in self.servers:
                return port
        raise OSError(errno.EADDRINUSE, f"every port of {self.name} is in use")


class SimNetwork:
    def __init__(self, loop: SimLoop, seed: str, *, delay: LinkDelay | None = None) -> None:
        self.loop = loop
        self.kernel = loop.add_process("network")
        self.delay = delay if delay is not None else LinkDelay()
        self.split_rate = 0.1  # How often a read brings less than what has arrived …
        self.join_rate = 0.5  # … and how often it brings more than one write.
        self.counters = NetworkCounters()
        self.datagram_random = seeded(f"{seed}/network/datagrams")
        self._delay_random = seeded(f"{seed}/network/delay")
        self._framing_random = seeded(f"{seed}/network/framing")
        self._fault_random = seeded(f"{seed}/network/faults")
        self._hosts: dict[str, Host] = {}
        self._names: dict[str, Host] = {}  # By name and by address.
        self._links: dict[tuple[str, str], Link] = {}
        self._connections: list[tuple[SimTransport, SimTransport]] = []
        loop.network = self
        self.add_host(loop.root.name)

    def add_host(self, name: str) -> Host:
        assert name not in self._names, f"there is a host {name!r} already"
        number = len(self._hosts) + 1
        host = Host(name, f"10.0.{number // 250}.{number % 250 + 1}")
        self._hosts[name] = self._names[name] = self._names[host.address] = host
        return host

    def host(self, name: str) -> Host:
        return self._hosts[name]

    # --- faults -------------------------------------------------------------------------------------------------------

    def link(self, source: str, target: str) -> Link:
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link()
        return found

    def block(self, source: str, target: str) -> None:
        """One way. What is sent waits; nothing is lost unless a connection breaks meanwhile."""
        if source != target:
            self.loop.note(f"{source} does not reach {target}")
            self.link(source, target).is_blocked = True

    def block_both(self, one: str, other: str) -> None:
        self.block(one, other)
        self.block(other, one)

    def isolate(self, name: str) -> None:
        for other in self._hosts:
            self.block_both(name, other)

    def split(self, *groups: Sequence[str]) -> None:
        """Nothing goes between hosts of different groups."""
        for number, group in enumerate(groups):
            for other_group in groups[number + 1 :]:
                for one in group:
                    for other in other_group:
                        self.block_both(one, other)

    def split_at_random(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Two sides, neither of them empty."""
        shuffled = list(names)
        self._fault_random.shuffle(shuffled)
        at = self._fault_random.randint(1, len(shuffled) - 1)
        self.split(shuffled[:at], shuffled[at:])
        return shuffled[:at], shuffled[at:]

    def heal(self, *names: str) -> None:
        """Every link, or every link of these hosts, works again."""
        self.loop.note(f"the network heals {names}")
        for (source, target), link in self._links.items():
            if not names or source in names or target in names:
                link.is_blocked = False
        self._release_all()

    def reset(self, one: str, other: str) -> int:
        """Breaks every connection between two hosts; bytes on their way are lost. Returns how many."""
        broken = [pair for pair in self._connections if {pair[0].host.name, pair[1].host.name} == {one, other}]
        for pair in broken:
            self._reset(pair)
        return len(broken)

    def reset_at_random(self, rate: float) -> int:
        """Breaks each connection with this probability."""
        broken = [pair for pair in self._connections if self._fault_random.random() < rate]
        for pair in broken:
            self._reset(pair)
        return len(broken)

    def _reset(self, pair: tuple[SimTransport, SimTransport]) -> None:
        self.loop.note(f"reset {pair[0].host.name} {pair[1].host.name}")
        for transport in pair:
            transport.outgoing.cut(0)
            transport.send_reset()

    # --- processes come and go ----------------------------------------------------------------------------------------

    def on_killed(self, process: Process) -> None:
        """The kernel closes what the process had open."""
        self._close_servers(process)
        for transport in self._transports_of(process):
            reset = self._fault_random.random() < 0.5
            transport.die(kept_bytes=transport.kernel_bytes, reset=reset)
            self.forget(transport)

    def on_power_lost(self, name: str) -> None:
        host = self._hosts[name]
        host.is_up = False
        host.servers.clear()
        for pair in list(self._connections):
            for transport in pair:
                if transport.host is host:
                    transport.die(kept_bytes=None, reset=False)
                    self.forget(transport)

    def on_power_back(self, name: str) -> None:
        self._hosts[name].is_up = True
        self._release_all()

    def _close_servers(self, process: Process) -> None:
        host = self._hosts.get(process.name)
        if host is not None:
            host.servers = {port: server for port, server in host.servers.items() if server.process is not process}

    def _transports_of(self, process: Process) -> list[SimTransport]:
        return [transport for pair in self._connections for transport in pair if transport.process is process]

    def _release_all(self) -> None:
        for pair in self._connections:
            for transport in pair:
                transport.outgoing.release()

    def forget(self, transport: SimTransport) -> None:
        """One end is gone; when both are, the connection is."""
        for pair in self._connections:
            if transport in pair:
                if all(end.is_lost or end.is_dead for end in pair):
                    self._connections.remove(pair)
                return

    # --- servers ------------------------------------------------------------------------------------------------------

    def bind(self, factory: Factory, host: str | None, port: int, backlog: int) -> SimServer:
        own = self._own_host()
        interface = host if host is not None else ""
        if interface not in (*_ANY_INTERFACE, *_LOCAL, own.name, own.address):
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of {own.name}")
        if port in own.servers:
            raise OSError(errno.EADDRINUSE, f"{own.name}:{port} is in use")
        server = SimServer(self, own, factory, interface, port or own.free_port(), backlog)
        own.servers[server.port] = server
        return server

    def _own_host(self) -> Host:
        name = self.loop.current().name
        return self._hosts[name] if name in self._hosts else self.add_host(name)

    # --- connections --------------------------------------------------------------------------------------------------

    async def connect(self, factory: Factory, host: str, port: int) -> tuple[SimTransport, Any]:
        own = self._own_host()
        target = own if host in _LOCAL else self._names.get(host)
        if target is None:
            raise socket.gaierror(socket.EAI_NONAME, f"there is no host {host!r}")
        attempt = _Attempt(self, factory, own, target, host in _LOCAL, port)
        attempt.send()
        try:
            return await attempt.waiter
        except asyncio.CancelledError:
            attempt.give_up()
            raise

    def make_connection(self, attempt: _Attempt, server: SimServer) -> None:
        """Both kernels have agreed; the processes learn of it from the first element."""
        self.counters.connections += 1
        window = self._framing_random.choice(_WINDOWS)
        near = Address(attempt.own.address, attempt.own.free_port())
        far = Address(attempt.target.address, attempt.port)
        client = SimTransport(self, attempt.process, attempt.own, attempt, SimSocket(near, far), window)
        accepted = _Accepted(server)
        other = SimTransport(self, server.process, server.host, accepted, SimSocket(far, near), window)
        client.outgoing = other.incoming = self._pipe(client, other)
        other.outgoing = client.incoming = self._pipe(other, client)
        self._connections.append((client, other))
        client.incoming.send(Signal.MADE)
        client.outgoing.send(Signal.MADE)

    def _pipe(self, sender: SimTransport, receiver: SimTransport) -> Pipe:
        return Pipe(self, sender, receiver, self.link(sender.host.name, receiver.host.name).datagrams)

    def delay_s(self, source: Host, target: Host) -> float:
        if source is target:
            return LOOPBACK.draw(self._delay_random)
        return self.delay_along(self.link(source.name, target.name))

    def delay_along(self, link: Link) -> float:
        return (link.delay or self.delay).draw(self._delay_random)

    def is_reachable(self, one: Host, other: Host) -> bool:
        blocked = self.link(one.name, other.name).is_blocked or self.link(other.name, one.name).is_blocked
        return one.is_up and other.is_up and not blocked

    # --- framing ------------------------------------------------------------------------------------------------------

    def joins(self) -> bool:
        return self._framing_random.random() < self.join_rate

    def split_size(self, size: int) -> int:
        """How much of so many bytes one read brings."""
        if size > 1 and self._framing_random.random() < self.split_rate:
            return self._framing_random.randint(1, size - 1)
        return size

    def note_chunk(self, data: bytes) -> None:
        self.counters.chunks += 1
        self.loop.digest.add(data)


class _Attempt(End):
    """One `create_connection`, until it is a connection."""

    def __init__(
        self, network: SimNetwork, factory: Factory, own: Host, target: Host, is_local: bool, port: int
    ) -> None:
        self.own = own
        self.target = target
        self.port = port
        self.process = network.loop.current()
        self.waiter: asyncio.Future[tuple[SimTransport, Any]] = network.loop.create_future()
        self._network = network
        self._factory = factory
        self._is_local = is_local
        self._tries = 0
        self._context: Context = copy_context()
        self._transport: SimTransport | None = None

    def send(self) -> None:
        delay_s = self._network.delay_s(self.own, self.target)
        self._network.loop.call_later(delay_s, self._arrives, context=self._network.kernel.context)

    def give_up(self) -> None:
        """If both came at once, nobody is left to use the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _arrives(self) -> None:
        if self.waiter.done() or not self.process.is_alive:
            return
        server = self.target.servers.get(self.port)
        if not self._network.is_reachable(self.own, self.target):
            self._try_again()
        elif server is None or not server.accepts(self._is_local):
            self._network.counters.refused += 1
            self._fail_later(ConnectionRefusedError(errno.ECONNREFUSED, self._text(errno.ECONNREFUSED)))
        elif server.is_full:
            self._try_again()
        else:
            server.waiting += 1
            self._network.make_connection(self, server)

    def _try_again(self) -> None:
        wait_s = _CONNECT_RETRY_S * 2**self._tries
        self._tries += 1
        if self._tries <= _CONNECT_TRIES:
            self._network.loop.call_later(wait_s, self._arrives, context=self._network.kernel.context)
        else:
            self._fail_later(TimeoutError(errno.ETIMEDOUT, self._text(errno.ETIMEDOUT)))

    def _fail_later(self, error: OSError) -> None:
        delay_s = self._network.delay_s(self.target, self.own)
        self._network.loop.call_later(delay_s, self._fail, error, context=self._context)

    def _fail(self, error: OSError) -> None:
        if not self.waiter.done():
            self.waiter.set_exception(error)

    def _text(self, code: int) -> str:
        return f"connecting {self.own.name} to {self.target.name}:{self.port}: {os.strerror(code)}"

    # --- as an end of the connection ---

    def on_made(self, transport: SimTransport) -> asyncio.BaseProtocol | None:
        del transport  # Told with `on_connected`.
        if self.waiter.done():
            return None
        try:
            return self._factory()
        except Exception as error:
            self.waiter.set_exception(error)
            return None

    def on_connected(self, transport: SimTransport) -> None:
        self._transport = transport
        if not self.waiter.done():
            self.waiter.set_result((transport, transport.get_protocol()))


class _Accepted(End):
    """A connection that waits for its server, then is one of it."""

    def __init__(self, server: SimServer) -> None:
        self._server = server

    def on_made(self, transport: SimTransport) -> asyncio.BaseProtocol | None:
        self._server.waiting -= 1
        if not self._server.is_serving():  # Closed meanwhile, with all that waited.
            return None
        self._server.connections[transport] = None
        return self._server.factory()

    def on_connected(self, transport: SimTransport) -> None:
        self._transport = transport

    def on_lost(self) -> None:
        self._server.on_lost(self._transport)


class SimServer(asyncio.AbstractServer):
    """Bound when it is made, so that the port is taken; it listens from `start_serving` on."""

    def __init__(
        self, network: SimNetwork, host: Host, factory: Factory, interface: str, port: int, backlog: int
    ) -> None:
        self.host = host
        self.factory = factory
        self.port = port
        self.process = network.loop.current()
        self.connections: dict[SimTransport, None] = {}
        self.waiting = 0
        self._loop = network.loop
        self._interface = interface
        self._backlog = backlog
        self._is_serving = False
        self._is_closed = False
        self._ended: asyncio.Future[None] = network.loop.create_future()

    @property
    def sockets(self) -> tuple[SimSocket, ...]:
        if self._is_closed:
            return ()
        names = {"": "0.0.0.0", "localhost": "127.0.0.1", self.host.name: self.host.address}  # noqa: S104
        return (SimSocket(Address(names.get(self._interface, self._interface), self.port)),)

    @property
    def is_full(self) -> bool:
        return self.waiting >= self._backlog

    def accepts(self, is_local: bool) -> bool:
        return self._is_serving and (is_local or self._interface not in _LOCAL)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self._is_serving

    async def start_serving(self) -> None:
        if self._is_closed:
            raise RuntimeError("the server is closed")
        self._is_serving = True

    async def serve_forever(self) -> None:
        await self.start_serving()
        try:
            await asyncio.shield(self._ended)
        finally:
            self.close()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed, self._is_serving = True, False
        if self.host.servers.get(self.port) is self:
            del self.host.servers[self.port]
        self._maybe_end()

    def close_clients(self) -> None:
        for transport in list(self.connections):
            transport.close()

    def abort_clients(self) -> None:
        for transport in list(self.connections):
            transport.abort()

    async def wait_closed(self) -> None:
        """Until it is closed and its connections are gone, as Python 3.12 has it."""
        await asyncio.shield(self._ended)

    def on_lost(self, transport: SimTransport) -> None:
        self.connections.pop(transport, None)
        self._maybe_end()

    def _maybe_end(self) -> None:
        if self._is_closed and not self.connections and not self._ended.done():
            self._ended.set_result(None)
