"""What a peer has not taken yet, on a real socket and on none."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast

import pytest
import uvloop

from magnetar.runtime.descriptors import undelivered_bytes
from magnetar.testing.waiting import until

MUCH = 20_000_000
LITTLE = 10_000


class Writer(asyncio.Protocol):
    """The server's end, which writes more than any kernel keeps."""

    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(bytes(MUCH))


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_what_a_slow_peer_reads_is_seen_though_the_transport_stands_still(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        writer = Writer()
        server = await loop.create_server(lambda: writer, "127.0.0.1", 0)
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            peer.setblocking(False)
            await loop.sock_connect(peer, server.sockets[0].getsockname())
            await until(lambda: writer.transport is not None, "both ends are connected")
            transport = cast("asyncio.Transport", writer.transport)
            before = transport.get_write_buffer_size(), undelivered_bytes(transport)

            def is_seen_by_the_kernel_alone() -> bool:
                nonlocal before
                with contextlib.suppress(BlockingIOError):
                    peer.recv(LITTLE)
                now = transport.get_write_buffer_size(), undelivered_bytes(transport)
                (held_before, all_before), before = before, now
                return now[0] == held_before and now[1] < all_before

            await until(is_seen_by_the_kernel_alone, "a little was read, and the transport did not notice")
            assert transport.get_write_buffer_size() < undelivered_bytes(transport) <= MUCH
            transport.abort()
        server.close()
        await server.wait_closed()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


class Socketless(asyncio.Transport):
    def get_write_buffer_size(self) -> int:
        return 7


def test_a_transport_without_a_socket_tells_by_itself() -> None:
    assert undelivered_bytes(Socketless()) == 7
    assert undelivered_bytes(Socketless({"socket": object()})) == 7


def test_a_socket_that_is_closed_has_nothing_in_the_kernel() -> None:
    closed = socket.socket()
    closed.close()
    assert undelivered_bytes(Socketless({"socket": closed})) == 7
