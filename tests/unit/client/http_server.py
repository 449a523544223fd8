"""An HTTP server with the answers of a test, on a port that the system chooses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

HOST = "127.0.0.1"
OK = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n{"a":1}'
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
Answer = bytes | None
"""None: the connection is closed instead."""


class Server:
    """Sends the answers of the test, one for each request."""

    def __init__(self, answer: Callable[[str], Answer] | None = None) -> None:
        self.connections = 0
        self.heard: list[str] = []
        self.bodies: list[bytes] = []
        self.answer = answer or (lambda _: OK)
        self.hold: asyncio.Event | None = None
        self.writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(OSError, EOFError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                self.bodies.append(await reader.readexactly(int(fields.get("Content-Length", 0))))
                self.heard.append(head.split("\r\n")[0])
                if self.hold is not None:
                    await self.hold.wait()
                answer = self.answer(self.heard[-1])
                if answer is None:
                    break
                writer.write(answer)
        writer.close()


@contextlib.asynccontextmanager
async def serving(server: Server, port: int = 0) -> AsyncIterator[Server]:
    listening = await asyncio.start_server(server.serve, HOST, port)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for writer in server.writers:
            writer.transport.abort()


async def unused_port() -> int:
    async with serving(Server()) as server:
        return server.port
