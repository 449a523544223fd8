"""An event loop whose time is not the clock's, with a network inside the process: a whole node runs on it, repeatably.

Time:      when nothing is runnable, it jumps to the next timer. Whatever waits, waits for nothing.
Network:   servers and connections of this loop are queues. Bytes of one direction arrive in order, once, or not at all
           after `cut_off`, which is what the other side sees of a machine that has lost its power.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

FIRST_PORT = 40_000


class _Jump(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen again: no callback and no timer is left"
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self._ports = itertools.count(FIRST_PORT)
        self._servers: dict[int, _Server] = {}
        self._dead_ends: list[_Transport] = []

    def time(self) -> float:
        return self._jump.now

    async def create_server(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        del options
        number = port or next(self._ports)
        if number in self._servers:
            raise OSError(98, "Address already in use")
        self._servers[number] = _Server(self, factory, host, number)
        return self._servers[number]

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        del options
        server = self._servers.get(port)
        if server is None or not server.is_serving():
            raise ConnectionRefusedError(111, f"nobody listens on {host}:{port}")
        near, far = _Transport(self), _Transport(self)
        near.join(far, factory())
        far.join(near, server.factory())
        server.accepted.append(far)
        await asyncio.sleep(0)  # Both were told of the connection when this returns.
        return near, near.protocol

    def forget(self, server: _Server) -> None:
        port = server.getsockname()[1]
        if self._servers.get(port) is server:  # Else it was cut off, and another one may have the port by now.
            del self._servers[port]

    def cut_off(self, ports: Iterable[int]) -> None:
        """The machine behind these servers is gone: its clients notice, it does not."""
        for port in list(ports):
            server = self._servers.pop(port, None)
            for transport in server.accepted if server is not None else ():
                transport.vanish()
                self._dead_ends.append(transport)

    def bury(self) -> None:
        """Now the dead machines' side of each connection is told, too: the test is over."""
        for transport in self._dead_ends:
            transport.protocol.connection_lost(None)
        self._dead_ends.clear()

    @property
    def ports(self) -> list[int]:
        return list(self._servers)


class _Server:
    """As much of `asyncio.Server` as a bookie uses."""

    def __init__(self, loop: VirtualLoop, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> None:
        self.factory = factory
        self.accepted: list[_Transport] = []
        self._loop = loop
        self._name = (host, port)
        self._is_serving = False

    @property
    def sockets(self) -> list[_Server]:
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def is_serving(self) -> bool:
        return self._is_serving

    async def start_serving(self) -> None:
        self._is_serving = True

    def close(self) -> None:
        self._is_serving = False
        self._loop.forget(self)


class _Transport(asyncio.Transport):
    """One end. What its peer wrote waits in its queue, also while it is told not to read."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._arrived: deque[bytes | None] = deque()
        self._is_due = self._is_paused = self._is_over = False

    def join(self, peer: _Transport, protocol: asyncio.BaseProtocol) -> None:
        self._peer = peer
        self.protocol = protocol
        self._loop.call_soon(protocol.connection_made, self)

    def write(self, data: Any) -> None:
        if not self._is_over:
            self._peer._arrive(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0  # All of it is in the peer's queue.

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._deliver_later()

    def is_closing(self) -> bool:
        return self._is_over

    def close(self) -> None:
        if not self._is_over:
            self._end()
            self._peer._arrive(None)

    abort = close

    def vanish(self) -> None:
        self._is_over = True
        self._arrived.clear()
        self._peer._arrive(None)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._loop.call_soon(self.protocol.connection_lost, None)

    def _arrive(self, data: bytes | None) -> None:
        if not self._is_over:
            self._arrived.append(data)
            self._deliver_later()

    def _deliver_later(self) -> None:
        if self._arrived and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_due = False
        while self._arrived and not self._is_paused and not self._is_over:
            data = self._arrived.popleft()
            if data is None:
                self._end()
            elif isinstance(self.protocol, asyncio.BufferedProtocol):
                self._fill(self.protocol, data)
            else:
                assert isinstance(self.protocol, asyncio.Protocol)
                self.protocol.data_received(data)

    def _fill(self, protocol: asyncio.BufferedProtocol, data: bytes) -> None:
        room = memoryview(protocol.get_buffer(-1))
        taken = min(len(room), len(data))
        room[:taken] = data[:taken]
        if taken < len(data):
            self._arrived.appendleft(data[taken:])
        protocol.buffer_updated(taken)


def run(world: Coroutine[Any, Any, T], *, seconds: float = 3_600.0) -> T:
    """Runs it on a loop of its own, which ends with everything on it. `seconds` are virtual."""
    loop = VirtualLoop()
    loop.set_exception_handler(lambda *_: None)  # Tasks of dead processes end as they like.

    async def to_the_end() -> T:
        try:
            return await asyncio.wait_for(world, seconds)
        finally:
            loop.bury()
            await _end_all_tasks()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(to_the_end())


async def _end_all_tasks() -> None:
    """Round by round: what one does in its last moments may begin another."""
    for _ in range(20):
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        await asyncio.sleep(0)
