"""`/metrics` and `/health` over HTTP: two pages, for a scraper and for whoever restarts processes.

One request per connection. A request that is long, slow or not one gets an error and the connection is closed; more
than `CONNECTIONS_MAX` at a time are closed unanswered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Final, NamedTuple

from magnetar.runtime.metrics import CONTENT_TYPE, Metrics

CONNECTIONS_MAX: Final = 64
_REQUEST_BYTES_MAX: Final = 8 * 1024
_REQUEST_SECONDS_MAX: Final = 5.0


class Health(NamedTuple):
    is_healthy: bool
    detail: dict[str, object]


class _Answer(NamedTuple):
    status: str
    content_type: str
    body: bytes


class ObservationServer:
    def __init__(self, metrics: Metrics, health: Callable[[], Health]) -> None:
        self._metrics = metrics
        self._health = health
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], None] = {}

    async def start(self, host: str, port: int) -> int:
        """Returns the port."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=_REQUEST_BYTES_MAX)
        return int(self._server.sockets[0].getsockname()[1])

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._open[task] = None
        try:
            async with asyncio.timeout(_REQUEST_SECONDS_MAX):
                await self._serve(reader, writer)
        except (TimeoutError, OSError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            del self._open[task]
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status, content_type, body = self._answer(head.split(b"\r\n", 1)[0])
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + body
        )
        await writer.drain()

    def _answer(self, request_line: bytes) -> _Answer:
        match request_line.split(b" "):
            case [b"GET", b"/metrics", _]:
                return _Answer("200 OK", CONTENT_TYPE, self._metrics.render())
            case [b"GET", b"/health", _]:
                healthy, detail = self._health()
                status = "200 OK" if healthy else "503 Service Unavailable"
                return _Answer(status, "application/json", json.dumps({"healthy": healthy, **detail}).encode() + b"\n")
            case [b"GET", _, _]:
                return _Answer("404 Not Found", "text/plain", b"there are /metrics and /health\n")
            case [_, _, _]:
                return _Answer("405 Method Not Allowed", "text/plain", b"only GET\n")
        return _Answer("400 Bad Request", "text/plain", b"not an HTTP request\n")
