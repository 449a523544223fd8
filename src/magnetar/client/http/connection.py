"""One HTTP/1.1 connection: one request at a time, and its answer.

Format:    An answer has a Content-Length, or chunks, or ends with the connection; 204 and 304 have no body.
Failure:   Every error after something was sent is BrokerUnavailableError with `outcome_unknown`.
Read next: client.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from magnetar.errors import BrokerUnavailableError

ANSWER_BYTES_MAX: Final = 64 * 2**20
"""The description of a topic with 50,000 ledgers is smaller."""
_HEAD_BYTES_MAX: Final = 64 * 1024
_NO_BODY: Final = (204, 304)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


class HttpConnection:
    """Is made by `connect`; used by one request at a time; ended by `abort`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.can_be_kept = False
        """Whether another request may follow the last one."""

    @classmethod
    async def connect(cls, host: str, port: int) -> HttpConnection:
        """Raises OSError. The caller sets the timeout."""
        return cls(*await asyncio.open_connection(host, port, limit=_HEAD_BYTES_MAX))

    @property
    def is_closed(self) -> bool:
        return self._writer.is_closing() or self._reader.at_eof()

    def abort(self) -> None:
        self.can_be_kept = False
        self._writer.transport.abort()

    async def exchange(self, method: str, target: str, host: str, body: bytes) -> HttpAnswer:
        """Sends a request and returns its answer. The caller sets the timeout."""
        self.can_be_kept = False
        try:
            self._writer.write(_request(method, target, host, body))
            await self._writer.drain()
            return await self._answer()
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError) as error:
            lost = BrokerUnavailableError(f"{method} {target}: {_why(error)} (http://{host})")
            lost.outcome_unknown = True
            raise lost from error

    async def _answer(self) -> HttpAnswer:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise ValueError(f"this is not an HTTP server: it answered {first[:60]!r}")
        fields = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        status = int(words[1])
        body, is_delimited = await self._body(status, headers)
        self.can_be_kept = is_delimited and headers.get("connection", "").lower() != "close"
        return HttpAnswer(status, headers, body)

    async def _body(self, status: int, headers: dict[str, str]) -> tuple[bytes, bool]:
        """Returns the body, and whether its end is known without the connection's."""
        if status in _NO_BODY:
            return b"", True
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._chunks(), True
        length = headers.get("content-length")
        if length is not None:
            return await self._reader.readexactly(_checked(int(length))), True
        return await self._until_end(), False

    async def _chunks(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            line = await self._reader.readuntil(b"\r\n")
            length = int(line.split(b";")[0].strip() or b"0", 16)
            if not length:
                await self._trailers()
                return b"".join(parts)
            size = _checked(size + length)
            parts.append(await self._reader.readexactly(length))
            await self._reader.readexactly(2)

    async def _trailers(self) -> None:
        size = 0
        while (line := await self._reader.readuntil(b"\r\n")) != b"\r\n":
            size += len(line)
            if size > _HEAD_BYTES_MAX:
                raise ValueError("trailers without an end")

    async def _until_end(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while part := await self._reader.read(_HEAD_BYTES_MAX):
            size = _checked(size + len(part))
            parts.append(part)
        return b"".join(parts)


def _request(method: str, target: str, host: str, body: bytes) -> bytes:
    about_body = ""
    if body or method not in ("GET", "DELETE"):
        about_body = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{about_body}\r\n".encode() + body


def _checked(size: int) -> int:
    if not 0 <= size <= ANSWER_BYTES_MAX:
        raise ValueError(f"an answer of {size} bytes, more than {ANSWER_BYTES_MAX}")
    return size


def _why(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the connection was lost before the answer came"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
