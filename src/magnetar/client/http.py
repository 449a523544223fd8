"""A small HTTP/1.1 client on the event loop: requests to brokers' HTTP ports, over connections that are kept.

    async with HttpClient("http://127.0.0.1:8080", entropy.random) as http:
        answer = await http.request("GET", "/admin/v2/clusters", timeout_s=10.0)
        names = await http.get_json("/admin/v2/clusters", patience_s=30.0)

There may be several addresses, as in `http://a:8080,b:8080`: if one does not answer, the next is tried. A redirect to
the broker that has a topic is followed, up to a limit. HTTPS, compression and cookies are not supported.

Format:    An answer has a Content-Length, or chunks, or ends with the connection; 204 and 304 have no body.
Failure:   An error carries whether the request may have been done (`outcome_unknown`): only if any of it was sent. A
           GET whose kept connection turns out to be closed is sent again at once; no other request is sent twice.
Limits:    The number of connections, the bytes of an answer, and the seconds of every request, the wait for a free
           connection included. A connection is lent to one request at a time, kept for a while, and then closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Self
from urllib.parse import urlencode, urlsplit

from magnetar.errors import BrokerTimeoutError, BrokerUnavailableError, ConfigError, HttpRefusedError
from magnetar.runtime.backoff import Backoff

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


_IDLE_S_MAX: Final = 10.0  # Far below the 65 s of the server, which counts idle connections among its 200, too.
_CONNECT_S_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HttpPool:
    """Keeps the connections of a client. Must be made on a running loop."""

    def __init__(self, connections_max: int) -> None:
        self.room = asyncio.Semaphore(connections_max)
        """Is held by each request that uses a connection."""
        self._idle: dict[Address, list[tuple[HttpConnection, float]]] = {}
        self._used: dict[HttpConnection, None] = {}
        self._reaper: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def kept(self) -> int:
        return sum(map(len, self._idle.values()))

    def take_idle(self, address: Address) -> HttpConnection | None:
        kept = self._idle.get(address, [])
        oldest = asyncio.get_running_loop().time() - _IDLE_S_MAX
        while kept:
            connection, since = kept.pop()
            if since >= oldest and not connection.is_closed:
                self._used[connection] = None
                return connection
            connection.abort()
        return None

    async def connect(self, address: Address) -> HttpConnection:
        """Raises BrokerUnavailableError, whose outcome is known: nothing was sent."""
        if self._is_closed:
            raise BrokerUnavailableError("this HTTP client is closed")
        try:
            async with asyncio.timeout(_CONNECT_S_MAX):
                connection = await HttpConnection.connect(address.host, address.port)
        except TimeoutError:
            raise BrokerUnavailableError(f"no connection to {address} within {_CONNECT_S_MAX:g} s") from None
        except (OSError, UnicodeError) as error:  # The latter for a name that no host can have.
            why = getattr(error, "strerror", None) or error
            raise BrokerUnavailableError(
                f"no server answers at http://{address} ({why}): is the broker running, and is this the address "
                "of its HTTP port (adminUrl)?"
            ) from error
        self._used[connection] = None
        return connection

    def give_back(self, address: Address, connection: HttpConnection, is_whole: bool) -> None:
        """Takes a connection back. `is_whole`: the answer was taken to its end, and another request may follow."""
        self._used.pop(connection, None)
        if not is_whole or self._is_closed:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        self._idle.setdefault(address, []).append((connection, loop.time()))
        if self._reaper is None:
            self._reaper = loop.call_later(_IDLE_S_MAX, self._reap)

    def _reap(self) -> None:
        """Closes connections that are idle for long; the timer runs only while there are any."""
        loop = asyncio.get_running_loop()
        self._reaper = None
        oldest = loop.time() - _IDLE_S_MAX
        for address, kept in list(self._idle.items()):
            self._idle[address] = [(connection, since) for connection, since in kept if since > oldest]
            for connection, since in kept:
                if since <= oldest:
                    connection.abort()
        if self.kept:
            self._reaper = loop.call_later(_IDLE_S_MAX / 2, self._reap)

    def close(self) -> None:
        """Closes all connections, those in use included."""
        self._is_closed = True
        if self._reaper is not None:
            self._reaper.cancel()
        idle, self._idle = self._idle, {}
        for connection in [*(each for kept in idle.values() for each, _ in kept), *self._used]:
            connection.abort()


CONNECTIONS_MAX: Final = 32
"""The limit of one client, for all addresses together. A broker takes 200 at a time from all its clients."""
_REDIRECTS_MAX: Final = 5
_PAUSE_S_MAX: Final = 1.0
_UNAVAILABLE: Final = 503
_REASON_BYTES_SHOWN: Final = 300


class HttpClient:
    """Is used as `async with HttpClient(...)`, or ended with `aclose`. Must be made on a running loop."""

    def __init__(self, urls: str, random: Random, *, connections_max: int = CONNECTIONS_MAX) -> None:
        self.addresses = parse_urls(urls)
        self._random = random
        self._preferred = 0
        self._pool = HttpPool(connections_max)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Fails the requests in progress."""
        self._pool.close()

    async def get_json(self, path: str, query: Mapping[str, object] | None = None, *, patience_s: float = 30.0) -> Any:
        """Returns the JSON at this path. A broker that is unavailable or busy is asked again until the patience is
        over.

        Raises HttpRefusedError for any other refusal, with its status and reason.
        """
        answer = await self.get(path, query, patience_s=patience_s)
        return json_of(answer)

    async def get(
        self, path: str, query: Mapping[str, object] | None = None, *, patience_s: float = 30.0
    ) -> HttpAnswer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        backoff = Backoff(self._random, longest_s=_PAUSE_S_MAX)
        while True:
            try:
                answer = await self.request("GET", path, query, timeout_s=max(deadline - loop.time(), 0.001))
                if answer.status != _UNAVAILABLE:
                    return succeeded(answer)
                error: Exception = refused(answer)
            except BrokerUnavailableError as raised:
                error = raised
            pause_s = backoff.next_s()
            if loop.time() + pause_s >= deadline:
                raise error
            await asyncio.sleep(pause_s)

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
    ) -> HttpAnswer:
        """Returns the answer, whatever its status; redirects are followed.

        Raises BrokerUnavailableError, which carries whether the request may have been done, or BrokerTimeoutError if it
        was sent and not answered in time.
        """
        target = _target(path, query)
        progress = _Progress()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._follow(method, target, body, progress)
        except TimeoutError:
            where = ", ".join(map(str, self.addresses))
            if progress.is_sent:
                raise BrokerTimeoutError(f"{method} {path}: no answer from {where} within {timeout_s:.3g} s") from None
            raise BrokerUnavailableError(
                f"{method} {path}: {where} could not be reached within {timeout_s:.3g} s"
            ) from None

    async def _follow(self, method: str, target: str, body: bytes, progress: _Progress) -> HttpAnswer:
        answer = await self._ask_any(method, target, body, progress)
        for _ in range(_REDIRECTS_MAX):
            location = answer.headers.get("location")
            if answer.status not in (307, 308) or location is None:
                return answer
            address, target = _split(location)
            progress.is_sent = False  # The previous request only returned the redirect.
            answer = await self._ask(address, method, target, body, progress)
        return answer

    async def _ask_any(self, method: str, target: str, body: bytes, progress: _Progress) -> HttpAnswer:
        """Tries the addresses, beginning with the one that answered last."""
        count = len(self.addresses)
        for step in range(count):
            at = (self._preferred + step) % count
            try:
                answer = await self._ask(self.addresses[at], method, target, body, progress)
            except BrokerUnavailableError as error:
                if error.outcome_unknown or step == count - 1:
                    raise
            else:
                self._preferred = at
                return answer
        raise AssertionError("the last address returns or raises")

    async def _ask(self, address: Address, method: str, target: str, body: bytes, progress: _Progress) -> HttpAnswer:
        async with self._pool.room:
            kept = self._pool.take_idle(address)
            if kept is not None:
                try:
                    return await self._exchange(kept, address, method, target, body, progress)
                except BrokerUnavailableError:
                    if method != "GET":
                        raise
                    progress.is_sent = False
            connection = await self._pool.connect(address)
            return await self._exchange(connection, address, method, target, body, progress)

    async def _exchange(
        self, connection: HttpConnection, address: Address, method: str, target: str, body: bytes, progress: _Progress
    ) -> HttpAnswer:
        progress.is_sent = True
        is_whole = False
        try:
            answer = await connection.exchange(method, target, str(address), body)
            is_whole = connection.can_be_kept
        finally:
            self._pool.give_back(address, connection, is_whole)
        return answer


@dataclass(slots=True)
class _Progress:
    is_sent: bool = False
    """Whether any of the request may have arrived."""


def parse_urls(urls: str) -> tuple[Address, ...]:
    """Parses `http://host:port`, or several hosts after one `http://`, separated by commas. Raises ConfigError."""
    scheme, separator, rest = urls.strip().partition("://")
    if scheme != "http" or not separator:
        raise ConfigError(f"{urls!r} is not the address of a broker's HTTP port: write http://HOST:PORT")
    return tuple(_address(part.strip().removeprefix("http://").rstrip("/"), urls) for part in rest.split(","))


def _address(text: str, whole: str) -> Address:
    with contextlib.suppress(ValueError):  # An invalid port, or half a bracket.
        parts = urlsplit(f"//{text}")
        if parts.hostname and not parts.path and not parts.query:
            return Address(parts.hostname, parts.port or 80)
    raise ConfigError(f"{whole!r} is not the address of a broker's HTTP port: write http://HOST:PORT")


def _split(location: str) -> tuple[Address, str]:
    with contextlib.suppress(ValueError):
        parts = urlsplit(location)
        if parts.scheme == "http" and parts.hostname:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            return Address(parts.hostname, parts.port or 80), target
    raise BrokerUnavailableError(f"a broker redirects to {location!r}, which is not an http address")


def _target(path: str, query: Mapping[str, object] | None) -> str:
    given = {name: _text(value) for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def succeeded(answer: HttpAnswer) -> HttpAnswer:
    """Raises HttpRefusedError for anything but success."""
    if answer.status >= 300:
        raise refused(answer)
    return answer


def refused(answer: HttpAnswer) -> HttpRefusedError:
    try:
        reason = str(json.loads(answer.body)["reason"])
    except (ValueError, KeyError, TypeError):
        reason = answer.body[:_REASON_BYTES_SHOWN].decode("utf-8", "replace").strip()
    return HttpRefusedError(answer.status, reason or f"the broker answered with status {answer.status}")


def json_of(answer: HttpAnswer) -> Any:
    """Returns None for an empty body."""
    try:
        return json.loads(answer.body) if answer.body.strip() else None
    except ValueError:
        raise BrokerUnavailableError(
            f"the response is not JSON: {answer.body[:60]!r}; is this the address of a broker?"
        ) from None
