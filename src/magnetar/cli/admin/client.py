"""Calls of the admin REST API from a command: one request, one connection, no library to load.

The usual HTTP clients take half of a fifth of a second only to be imported, and a command that lists topics should
answer in less. This one speaks HTTP/1.1 over TCP, to servers such as ours and Pulsar's: a length or chunks. It does not
speak HTTPS.

Failure:   A broker redirects to the one that has the topic. If that one has just been killed, the request is repeated
           until another broker has taken the topic over.
Limits:    The size of an answer, and the time; redirects are followed a few times.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import SplitResult, quote_plus, urlencode, urlsplit

from magnetar.cli.output import note
from magnetar.errors import ArgumentError, MagnetarError
from magnetar.names import TopicName

TIMEOUT_S: Final = 70.0  # The server answers within 60, if only to say that it is not done.
ANSWER_BYTES_MAX: Final = 256 * 2**20
_REDIRECTS_MAX: Final = 5
_PAUSE_S: Final = 0.5
_NOT_FOUND: Final = 404
_BAD_REQUEST: Final = 400
_ADVICE: Final = "start `magnetar standalone`, or say where the broker is with --admin-url or MAGNETAR_ADMIN_URL"
_PIECE_BYTES: Final = 64 * 1024
_HEAD_BYTES_MAX: Final = 64 * 1024


class AdminError(MagnetarError):
    """The server's refusal, with its HTTP status; or what came from there is no answer (0)."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status
        self.asked_wrongly = status == _BAD_REQUEST


class _UnreachableError(AdminError):
    """Nothing was sent: there is no connection."""


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """The headers' names are in lower case."""
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        """None for an empty body."""
        try:
            return json.loads(self.body) if self.body.strip() else None
        except ValueError:
            raise AdminError(f"the server's answer is not JSON: {self.body[:100]!r}") from None


class AdminClient:
    """`url` is the server's, such as http://127.0.0.1:8080."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s

    def get(self, path: str, **query: object) -> Any:
        """`path` is below /admin/v2."""
        return self.call("GET", path, query=query).json()

    def exists(self, path: str) -> bool:
        """Whether the server has it: False for 404."""
        try:
            self.call("GET", path)
        except AdminError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        return True

    def put(self, path: str, body: Any = None, **query: object) -> Any:
        return self.call("PUT", path, body, query=query).json()

    def post(self, path: str, body: Any = None, **query: object) -> Any:
        return self.call("POST", path, body, query=query).json()

    def delete(self, path: str, **query: object) -> None:
        self.call("DELETE", path, query=query)

    def call(self, method: str, path: str, body: Any = None, query: dict[str, object] | None = None) -> Answer:
        """AdminError for anything but success."""
        given = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        url = f"{self._url}/admin/v2/{path}" + (f"?{urlencode(given)}" if given else "")
        data = b"" if body is None else json.dumps(body).encode()
        answer = self._answer(method, url, data)
        if answer.status >= 300:
            raise AdminError(_reason(answer), answer.status)
        return answer

    def _answer(self, method: str, url: str, data: bytes) -> Answer:
        ends_at = time.monotonic() + self._timeout_s
        is_noted = False
        while True:
            asked = url
            try:
                for _ in range(_REDIRECTS_MAX):
                    answer = _ask(method, asked, data, self._timeout_s)
                    if answer.status not in (307, 308) or "location" not in answer.headers:
                        break
                    asked = answer.headers["location"]
            except _UnreachableError:
                if asked == url or time.monotonic() > ends_at:
                    raise
                if not is_noted:
                    where = urlsplit(asked).netloc
                    note(f"the owner of the topic, {where}, does not answer: waiting until another broker is its owner")
                    is_noted = True
                time.sleep(_PAUSE_S)
            else:
                return answer


def default_admin_url(url: str) -> str:
    """Port 8080 of the host that serves clients."""
    try:
        host = urlsplit(url).hostname
    except ValueError:  # Half a bracket.
        host = None
    if not host:
        raise ArgumentError(f"{url!r} is not the address of a broker: write pulsar://HOST:PORT (--url)")
    return f"http://{f'[{host}]' if ':' in host else host}:8080"


def topic_path(topic: TopicName) -> str:
    return f"{topic.domain}/{namespace_path(str(topic.namespace))}/{quote(topic.local)}"


def namespace_path(namespace: str) -> str:
    tenant, slash, local = namespace.partition("/")
    if not slash or not tenant or not local or "/" in local:
        raise ArgumentError(f"{namespace!r} is not a namespace: write TENANT/NAMESPACE, such as public/default")
    return f"{quote(tenant)}/{quote(local)}"


def quote(name: str) -> str:
    """One segment of a path, as Pulsar's own clients write it."""
    return quote_plus(name)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _reason(answer: Answer) -> str:
    try:
        reason = json.loads(answer.body)["reason"]
    except (ValueError, KeyError, TypeError):
        reason = answer.body[:200].decode("utf-8", "replace")
    return str(reason) or f"the server answered with status {answer.status}"


# --- HTTP -------------------------------------------------------------------------------------------------------------


def _split(url: str) -> tuple[SplitResult, str, int]:
    """With the host and the port."""
    with contextlib.suppress(ValueError):  # An invalid port, or half a bracket.
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname:
            return parts, parts.hostname, parts.port or 80
    raise ArgumentError(f"{url!r} is not an address of an admin interface: write http://HOST:PORT (--admin-url)")


def _ask(method: str, url: str, body: bytes, timeout_s: float) -> Answer:
    parts, host, port = _split(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body or method != "GET" else ""
    head = f"{method} {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n{length}\r\n"
    with _errors_of(AdminError, parts, timeout_s):
        with _errors_of(_UnreachableError, parts, timeout_s):
            connecting = socket.create_connection((host, port), timeout_s)
        with connecting as connection:
            connection.sendall(head.encode() + body)
            data = _read_all(connection)
    if not data.startswith(b"HTTP/"):
        raise AdminError(
            f"{parts.netloc} does not speak HTTP: it may be the port for clients (--url, usually 6650). Give "
            "the admin interface (usually 8080) with --admin-url or MAGNETAR_ADMIN_URL"
        )
    return _parse(data)


@contextlib.contextmanager
def _errors_of(kind: type[AdminError], parts: SplitResult, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError) as error:  # The latter for a name that no host can have.
        is_late = isinstance(error, TimeoutError)
        why = f"no answer within {timeout_s:g} s" if is_late else getattr(error, "strerror", None) or error
        raise kind(f"no server answers at http://{parts.netloc} ({why}): {_ADVICE}") from None


def _read_all(connection: socket.socket) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := connection.recv(_PIECE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > ANSWER_BYTES_MAX:
            raise AdminError(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
    return b"".join(pieces)


def _parse(data: bytes) -> Answer:
    head, end, body = data.partition(b"\r\n\r\n")
    first, *lines = head[:_HEAD_BYTES_MAX].decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not end or len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        raise AdminError(f"the server's answer is not HTTP: {data[:40]!r}")
    fields = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = _joined(body)
    elif len(body) < int(headers.get("content-length", 0)):
        raise AdminError("the server's answer ended too early")
    return Answer(int(words[1]), headers, body)


def _joined(chunks: bytes) -> bytes:
    body: list[bytes] = []
    at = 0
    while (line_end := chunks.find(b"\r\n", at)) >= 0:
        size = int(chunks[at:line_end].split(b";")[0] or b"0", 16)
        if size == 0:
            return b"".join(body)
        body.append(chunks[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2
    raise AdminError("the server's answer ended too early")
