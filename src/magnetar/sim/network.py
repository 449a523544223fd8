"""SimNetwork: hosts, the links between them, and the connections along these.

- hosts: each node has a name, which is also how others reach it ("bookie-1:3181" works), and an address. Ports belong
  to the host's kernel; those that were not chosen are counted up.
- connect: both directions must be open. A host that is up and has no listener refuses; one that cannot be reached does
  not answer, and the connect tries again as TCP does, until its caller loses patience.
- kill: the kernel outlives the process: it sends what it has, then an end or a reset.
- power: nothing is sent. The peer has a half-open connection, and learns of it when it writes after the host is back.
- seeds: delay, framing, datagrams and faults each have a generator of their own.
- parts: `Link` is the way from one host to another. A connection has two `Pipe`s, one for each direction, and two
  `SimTransport`s, its ends as protocols see them.

Read next: docs/simulation.md
"""

from __future__ import annotations

import asyncio
import enum
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias

from magnetar.sim.loop import SimLoop
from magnetar.sim.process import Process
from magnetar.sim.seeds import seeded

# --- links ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkDelay:
    """Mostly between the first two; now and then, with no upper bound but the last, much longer."""

    min_s: float = 0.000_05
    max_s: float = 0.000_5
    tail: float = 0.01
    """Probability of the long kind."""
    tail_max_s: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.min_s <= self.max_s <= self.tail_max_s or not 0 <= self.tail <= 1:
            raise ValueError(f"{self} is not a delay: 0 <= min_s <= max_s <= tail_max_s, and tail is a probability")

    def draw(self, random: Random) -> float:
        delay = self.min_s + (self.max_s - self.min_s) * random.random()
        if self.tail and random.random() < self.tail:
            delay = min(self.tail_max_s, delay * random.paretovariate(0.7))
        return delay


@dataclass(frozen=True, slots=True)
class DatagramFaults:
    """Each write is one datagram, and each of these is a probability."""

    loss: float = 0.05
    duplicate: float = 0.05
    late: float = 0.1
    late_max_s: float = 0.3


@dataclass(slots=True)
class Link:
    is_blocked: bool = False
    delay: LinkDelay | None = None
    """None: the network's."""
    datagrams: DatagramFaults | None = None
    """For connections made from now on. None: TCP's promise."""


LOOPBACK: Final = LinkDelay(0.0, 0.000_02, tail=0.0, tail_max_s=0.000_02)


@dataclass(slots=True)
class NetworkCounters:
    connections: int = 0
    refused: int = 0
    resets: int = 0
    chunks: int = 0
    bytes: int = 0
    lost: int = field(default=0)
    """Datagrams."""
    duplicated: int = 0
    late: int = 0


# --- pipes ------------------------------------------------------------------------------------------------------------


_JOINED_BYTES_MAX: Final = 256 * 1024  # What one read brings at most.


class Signal(enum.Enum):
    MADE = "made"
    END = "end"
    RESET = "reset"


Element: TypeAlias = bytes | Signal


class Pipe:
    """One direction of a connection.

    Order:     what was sent waits in a queue of the connection. A timer carries nothing: it says "one may go", and
               takes what is first. So no delay and no schedule can reorder bytes, and `connection_made` is first.
    Held:      one that may not go now (link blocked, no power, no reader) is counted, and goes later.
    Ends:      a reset is an element too. After it nothing arrives.
    Datagrams: if the link says so, each write has a timer of its own that carries it: lost, late, overtaken, twice.
    Receiver:  timers run as its process. After its crash its kernel answers for it, if that still has power.
    """

    def __init__(
        self, network: SimNetwork, sender: SimTransport, receiver: SimTransport, datagrams: DatagramFaults | None
    ) -> None:
        self._network = network
        self._sender = sender
        self._receiver = receiver
        self._datagrams = datagrams
        self._queue: deque[Element] = deque()
        self._held = 0
        self._is_reset = False
        self._unknown_bytes = 0  # They arrived, but the sender cannot learn of it.
        self.unsent_bytes = 0  # Not arrived, as far as the sender knows.
        self.link = network.link(sender.host.name, receiver.host.name)
        self._back = network.link(receiver.host.name, sender.host.name)

    # --- the sender's side --------------------------------------------------------------------------------------------

    def send(self, element: Element) -> None:
        if self._is_reset:
            return
        if isinstance(element, bytes):
            self._network.counters.bytes += len(element)
            if self._datagrams is not None:
                self._send_datagram(element, self._datagrams)
                return
            self.unsent_bytes += len(element)
        self._is_reset = element is Signal.RESET
        self._queue.append(element)
        self._let_one_go()

    def cut(self, kept_bytes: int) -> None:
        """The sender has ended: of what has not arrived, this much is with the kernel and still goes."""
        kept: list[Element] = []
        for element in self._queue:
            if isinstance(element, bytes):
                element, kept_bytes = element[:kept_bytes], kept_bytes - min(kept_bytes, len(element))
            if element:
                kept.append(element)
        self._queue = deque(kept)
        self.unsent_bytes = sum(len(element) for element in kept if isinstance(element, bytes))
        self._unknown_bytes = 0

    def on_receiver_died(self) -> None:
        """Its timers died with it."""
        self._held = 0
        if self._queue:
            self._let_one_go()

    def release(self) -> None:
        """What was held tries again: the link is whole, or the host has power."""
        if not self._back.is_blocked and self._unknown_bytes:
            self._confirm(self._take_unknown())
        held, self._held = self._held, 0
        for _ in range(held):
            self._let_one_go()

    def release_to_reader(self) -> None:
        """What was held has arrived already: the receiver reads again."""
        held, self._held = self._held, 0
        for _ in range(held):
            self._network.loop.call_soon(self._one_may_go, context=self._context())

    def _let_one_go(self) -> None:
        self._network.loop.call_later(self._delay_s(), self._one_may_go, context=self._context())

    def _delay_s(self) -> float:
        if self._sender.host is self._receiver.host:
            return self._network.delay_s(self._sender.host, self._receiver.host)
        return self._network.delay_along(self.link)

    def _context(self) -> Context:
        return self._network.kernel.context if self._receiver.is_dead else self._receiver.process.context

    # --- the receiver's side ------------------------------------------------------------------------------------------

    def _one_may_go(self) -> None:
        if not self._queue:
            return  # It went together with the one before.
        if self.link.is_blocked or not self._receiver.host.is_up:
            self._held += 1
        elif self._receiver.is_dead or self._receiver.is_lost:
            self._answer_for_the_gone()
        elif self._receiver.holds_reading and not self._is_reset:
            self._held += 1
        else:
            self._deliver_first()

    def _deliver_first(self) -> None:
        element = self._queue.popleft()
        if element is Signal.MADE:
            self._receiver.on_made()
        elif self._is_reset and self._receiver.holds_reading:
            self._on_reset()  # Unread bytes are lost with it.
        elif element is Signal.RESET:
            self._on_reset()
        elif element is Signal.END:
            self._receiver.on_end()
        else:
            assert isinstance(element, bytes)
            self._deliver(self._joined(element))

    def _on_reset(self) -> None:
        self._queue.clear()
        self._network.counters.resets += 1
        self._receiver.on_reset()

    def _joined(self, data: bytes) -> bytes:
        """One read may bring several writes, and a part of one."""
        if self._datagrams is not None:
            return data
        if self._queue and self._network.joins():
            parts, size = [data], len(data)
            while self._queue and isinstance(following := self._queue[0], bytes) and size < _JOINED_BYTES_MAX:
                parts.append(following)
                size += len(following)
                self._queue.popleft()
            data = b"".join(parts)
        size = self._network.split_size(len(data))
        if size < len(data):
            self._return_bytes(data[size:])
        return data[:size]

    def _return_bytes(self, data: bytes) -> None:
        self._queue.appendleft(data)
        self._network.loop.call_soon(self._one_may_go, context=self._context())

    def _deliver(self, data: bytes) -> None:
        taken = self._receiver.on_data(data)
        if taken < len(data):
            self._return_bytes(data[taken:])
        self._network.note_chunk(data[:taken])
        if self._back.is_blocked:
            self._unknown_bytes += taken
        else:
            self._confirm(taken + self._take_unknown())

    def _confirm(self, size: int) -> None:
        self.unsent_bytes -= size
        self._sender.on_sent()

    def _take_unknown(self) -> int:
        size, self._unknown_bytes = self._unknown_bytes, 0
        return size

    def _answer_for_the_gone(self) -> None:
        """The receiver's kernel does, and knows of no such connection."""
        had_data = any(isinstance(element, bytes) for element in self._queue)
        self._queue.clear()
        if had_data:
            self._receiver.send_reset()

    # --- datagrams ----------------------------------------------------------------------------------------------------

    def _send_datagram(self, data: bytes, faults: DatagramFaults) -> None:
        counters, draw = self._network.counters, self._network.datagram_random.random
        if draw() < faults.loss:
            counters.lost += 1
            return
        copies = 2 if draw() < faults.duplicate else 1
        counters.duplicated += copies - 1
        for _ in range(copies):
            delay_s = self._delay_s()
            if draw() < faults.late:
                counters.late += 1
                delay_s += faults.late_max_s * draw()
            self._network.loop.call_later(delay_s, self._datagram_arrives, data, context=self._context())

    def _datagram_arrives(self, data: bytes) -> None:
        """It joins the queue, so that `connection_made` comes first, and a peer that does not read gets it later."""
        if self.link.is_blocked or not self._receiver.host.is_up:
            self._network.counters.lost += 1
            return
        ends = [at for at, element in enumerate(self._queue) if element in (Signal.END, Signal.RESET)]
        self._queue.insert(ends[0] if ends else len(self._queue), data)
        self.unsent_bytes += len(data)
        self._one_may_go()


# --- the ends of a connection -----------------------------------------------------------------------------------------


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
    """What the network reports to an end when it is made, before there is a protocol."""

    def on_made(self, transport: SimTransport) -> asyncio.BaseProtocol | None:
        """The protocol, its `connection_made` not called yet; None: the connection is not wanted any more."""
        raise NotImplementedError

    def on_connected(self, transport: SimTransport) -> None:
        """Called after `connection_made`."""

    def on_lost(self) -> None:
        """Called after `connection_lost`."""


class SimTransport(asyncio.Transport):
    """One end of a connection, as a protocol sees it.

    Buffer:    the first `window_bytes` that have not arrived are the kernel's; what goes beyond them is the transport's
               own write buffer, which pauses the protocol at its high-water mark, and is lost with the process.
    Closing:   `close` ends when the write buffer is empty; then the peer gets an end, or a reset if it has sent
               something that was not read. Whatever it sends afterwards is answered with a reset.
    """

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
        self.window_bytes = window_bytes
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
        return max(0, self.outgoing.unsent_bytes - self.window_bytes)

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
        self.outgoing.cut(self.window_bytes)
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


# --- hosts and their connections --------------------------------------------------------------------------------------


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
        """Breaks every connection between two hosts; bytes between them are lost. Returns the number of connections."""
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
            transport.die(kept_bytes=transport.window_bytes, reset=reset)
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
        """Removes one end. When both are removed, the connection is removed."""
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
        """Returns how many of these bytes one read brings."""
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
        """If both came at once, the connection has no user any more."""
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

    async def wait_closed(self) -> None:
        """Waits until it is closed and its connections have ended, as in Python 3.12."""
        await asyncio.shield(self._ended)

    def on_lost(self, transport: SimTransport) -> None:
        self.connections.pop(transport, None)
        self._maybe_end()

    def _maybe_end(self) -> None:
        if self._is_closed and not self.connections and not self._ended.done():
            self._ended.set_result(None)
