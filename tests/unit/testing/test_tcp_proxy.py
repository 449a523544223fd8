from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from magnetar.testing.processes.tcp_proxy import TcpProxy


class Echo:
    def __init__(self) -> None:
        self.heard: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            self.heard.append(line)
            writer.write(line)
        writer.close()
        await writer.wait_closed()


@pytest_asyncio.fixture
async def echo() -> Echo:
    return Echo()


@pytest_asyncio.fixture
async def proxy(echo: Echo) -> AsyncIterator[TcpProxy]:
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, TcpProxy(host, port, is_noise=lambda chunk: chunk == b"ping\n") as proxy:
        yield proxy


async def ask(proxy: TcpProxy, *lines: bytes) -> bytes:
    """The answer to the last line; empty when the connection was lost."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    answer = b""
    try:
        async with asyncio.timeout(10):
            for line in lines:
                writer.write(line)
                answer = await reader.readline()
    except ConnectionError:
        answer = b""
    finally:
        writer.transport.abort()
    return answer


async def test_what_is_sent_arrives_and_is_answered(proxy: TcpProxy) -> None:
    assert await ask(proxy, b"hello\n") == b"hello\n"


async def test_a_lost_answer_was_heard_by_the_server(proxy: TcpProxy, echo: Echo) -> None:
    proxy.lose_answer()
    assert await ask(proxy, b"done\n") == b""
    assert echo.heard == [b"done\n"]
    assert await ask(proxy, b"again\n") == b"again\n"


async def test_a_lost_request_was_never_heard(proxy: TcpProxy, echo: Echo) -> None:
    proxy.lose_request()
    assert await ask(proxy, b"lost\n") == b""
    assert await ask(proxy, b"again\n") == b"again\n"
    assert echo.heard == [b"again\n"]


@pytest.mark.parametrize("fault", ["lose_answer", "lose_request"])
async def test_noise_is_neither_lost_nor_counted(proxy: TcpProxy, fault: str) -> None:
    getattr(proxy, fault)()
    assert await ask(proxy, b"ping\n", b"ping\n") == b"ping\n"
    assert await ask(proxy, b"ping\n", b"hello\n") == b""


async def test_while_cut_nothing_passes_and_after_mending_it_does(proxy: TcpProxy, echo: Echo) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"before\n")
    assert await reader.readline() == b"before\n"
    proxy.cut()
    with contextlib.suppress(ConnectionError):  # Reset or closed, as the system likes; the end in any case.
        async with asyncio.timeout(10):
            assert await reader.readline() == b""
    writer.transport.abort()
    assert await ask(proxy, b"meanwhile\n") == b""
    proxy.mend()
    assert await ask(proxy, b"after\n") == b"after\n"
    assert echo.heard == [b"before\n", b"after\n"]
