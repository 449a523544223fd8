"""A TCP proxy that loses things on purpose: a test controls the network between a client and a server.

Failure:   `cut` drops every connection and refuses new ones until `mend`; `lose_answer` lets one request through and
           drops the connection instead of its answer; `lose_request` drops the connection instead of one request.
           Heart-beats are not requests: a test gives a function that recognises them.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Callable
from typing import Self

_READ_BYTES = 65_536
_CONNECT_TIMEOUT_S = 5.0


class _Loss(enum.Enum):
    NONE = "none"
    REQUEST = "the next request"
    ANSWER_ARMED = "the answer to the next request"
    ANSWER = "the next answer"


class TcpProxy:
    def __init__(self, host: str, port: int, *, is_noise: Callable[[bytes], bool] = lambda _: False) -> None:
        self._target = (host, port)
        self._is_noise = is_noise
        self._loss = _Loss.NONE
        self._is_cut = False
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.connections_made = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        self._is_cut = True
        self.drop()

    def mend(self) -> None:
        self._is_cut = False

    def drop(self) -> None:
        """Ends every connection; new ones are welcome."""
        for task in list(self._tasks):
            task.cancel()

    def lose_answer(self) -> None:
        self._loss = _Loss.ANSWER_ARMED

    def lose_request(self) -> None:
        self._loss = _Loss.REQUEST

    async def aclose(self) -> None:
        self.cut()
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        try:
            if not self._is_cut:
                self.connections_made += 1
                await self._relay(reader, writer)
        except asyncio.CancelledError:
            pass  # By `drop`; this task is not awaited.
        finally:
            del self._tasks[task]
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                far_reader, far_writer = await asyncio.open_connection(*self._target)
            try:
                ways = {
                    asyncio.ensure_future(self._copy(reader, far_writer, self._lets_request_pass)),
                    asyncio.ensure_future(self._copy(far_reader, writer, self._lets_answer_pass)),
                }
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)
            finally:
                far_writer.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lets_pass: Callable[[bytes], bool]
    ) -> None:
        while chunk := await reader.read(_READ_BYTES):
            if not lets_pass(chunk):
                return
            writer.write(chunk)
            await writer.drain()

    def _lets_request_pass(self, chunk: bytes) -> bool:
        if self._is_noise(chunk):
            return True
        if self._loss is _Loss.REQUEST:
            self._loss = _Loss.NONE
            return False
        if self._loss is _Loss.ANSWER_ARMED:
            self._loss = _Loss.ANSWER
        return True

    def _lets_answer_pass(self, chunk: bytes) -> bool:
        if self._loss is _Loss.ANSWER and not self._is_noise(chunk):
            self._loss = _Loss.NONE
            return False
        return True
