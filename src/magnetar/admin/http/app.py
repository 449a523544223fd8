"""The application: requests to handlers, results and errors to answers; and the HTTP protocol that serves it.

Importing this imports the whole HTTP stack. Paths are matched as they came, not decoded: see call.py. A request that a
foreign web page caused is refused before anything else (runtime/web_guard.py).

Failure:   An error that a handler raises becomes a status and `{"reason": …}` (errors.py). An unexpected error is
           logged, and answered as 500 without its text.
Limits:    The size of a body, the time of a request. Requests at a time, and connections, which count as such; the
           seconds that a connection may wait for its next whole request. The HTTP library limits idle connections only,
           and a request head that never ends would stay.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute
from starlette.routing import Router
from uvicorn.config import Config as HttpConfig
from uvicorn.server import ServerState

from magnetar.admin.http.answers import JSON, Answer, Streamed, write_json
from magnetar.admin.http.call import REQUEST_SECONDS_MAX, AdminContext, Call, Reply, Route
from magnetar.admin.http.errors import FAILED, NOT_ALLOWED, NOT_FOUND, TOO_LARGE, UNAVAILABLE, RestError, status_of
from magnetar.admin.http.errors import ElsewhereError as Elsewhere
from magnetar.admin.routes import all_routes
from magnetar.admin.stats.rates import RateBook
from magnetar.broker.broker import Broker
from magnetar.errors import MagnetarError
from magnetar.runtime.metrics import Health, Metrics
from magnetar.runtime.slices import Slices
from magnetar.runtime.web_guard import FORBIDDEN, WebGuard

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


log = logging.getLogger(__name__)

BODY_BYTES_MAX = 8 * 2**20  # A schema's definition is the largest thing that is sent.
ANSWER_SECONDS_MAX = 600.0  # For a long answer, which is sent while it is made.
_METHODS = ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"]
"""The methods that exist; one that a path lacks is refused with a reason."""

GetContext = Callable[[], AdminContext | None]


class AdminApp:
    """Is an ASGI application. `context` returns None while the broker starts."""

    def __init__(self, routes: Sequence[Route], context: GetContext, guard: WebGuard) -> None:
        self._guard = guard
        by_path: dict[str, dict[str, Route]] = defaultdict(dict)
        for route in routes:
            assert route.method not in by_path[route.path], f"{route.method} {route.path} is declared twice"
            by_path[route.path][route.method] = route
        self._router = Router(
            [
                HttpRoute(path, _Endpoint(methods, context), methods=_METHODS)
                for path, methods in sorted(by_path.items(), key=lambda item: _precedence(item[0]))
            ],
            default=_not_found,
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        complaint = self._guard.complaint(scope["method"], scope["headers"])
        if complaint is not None:
            await _error(FORBIDDEN, complaint)(scope, receive, send)
            return
        raw = scope.get("raw_path") or scope["path"].encode()
        path = raw.decode("ascii", "replace")
        scope["path"] = path.rstrip("/") or "/"
        await self._router(scope, receive, send)


class _Endpoint:
    def __init__(self, methods: dict[str, Route], context: GetContext) -> None:
        self._methods = methods
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        sending = _Sending(send)
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX) as sending.limit:
                await self._answer(request, sending)
            return
        except Exception as error:
            if sending.is_begun:
                extra = {"method": request.method, "path": scope["path"], "why": str(error) or type(error).__name__}
                log.warning("a response was cut off", extra=extra)
                raise
            response = _refusal(request, error)
        await response(scope, receive, send)

    async def _answer(self, request: Request, sending: _Sending) -> None:
        route = self._methods.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            await _not_allowed(request.method, sorted(self._methods))(request.scope, request.receive, sending)
            return
        context = self._context()
        if context is None:
            response = _error(UNAVAILABLE, "the broker is starting: try again")
            response.headers["Retry-After"] = "1"  # Nothing was begun, so the client may try again.
            await response(request.scope, request.receive, sending)
            return
        body = await _body(request)
        call = Call(context, request.path_params, dict(request.query_params), body, route.domain)
        await _write(await route.handler(call), sending, context.slices, has_value=route.method == "GET")


class _Sending:
    """Is a `Send` that knows whether the status was sent: from then on no other answer is possible.

    A long answer has its time again after each piece that the client has taken, up to a limit for the whole.
    """

    limit: asyncio.Timeout

    def __init__(self, send: Send) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._ends_s = self._loop.time() + ANSWER_SECONDS_MAX
        self.is_begun = False

    async def __call__(self, message: Message) -> None:
        self.is_begun = True
        await self._send(message)
        self.limit.reschedule(min(self._ends_s, self._loop.time() + REQUEST_SECONDS_MAX))


async def _write(result: Any, send: Send, slices: Slices, *, has_value: bool) -> None:
    if isinstance(result, Reply):
        answer = Answer(send, slices, result.content_type, result.status)
        answer.add_headers(result.headers)
        await answer.end(result.body)
    elif isinstance(result, Streamed):
        answer = Answer(send, slices, result.content_type)
        await result.write(answer)
        await answer.end()
    elif result is None:
        await Answer(send, slices, "", 200 if has_value else 204).end()
    else:
        answer = Answer(send, slices, JSON)
        await write_json(answer, result)
        await answer.end()


def _refusal(request: Request, error: Exception) -> Response:
    if isinstance(error, TimeoutError):
        return _error(UNAVAILABLE, f"not done within {REQUEST_SECONDS_MAX:.0f} s: check later whether it was done")
    if isinstance(error, Elsewhere):
        return _redirect(request, error)
    if isinstance(error, MagnetarError):
        return _error(status_of(error), str(error))
    extra = {"method": request.method, "path": request.scope["path"]}
    log.error("a request failed", extra=extra, exc_info=error)
    return _error(FAILED, "the request failed with an unexpected error: see the server's log")


def _precedence(path: str) -> tuple[tuple[int, str], ...]:
    """Sorts literal parts of a path before parameters."""
    return tuple((1, "") if part.startswith("{") else (0, part) for part in path.split("/"))


async def _body(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise RestError(TOO_LARGE, f"the body has more than {BODY_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)


def _error(status: int, reason: str) -> Response:
    return Response(json.dumps({"reason": reason}).encode(), status, media_type=JSON)


def _redirect(request: Request, elsewhere: Elsewhere) -> Response:
    query = [(name, value) for name, value in request.query_params.multi_items() if name != "authoritative"]
    query.append(("authoritative", "true" if elsewhere.is_authoritative else "false"))
    return Response(b"", 307, {"Location": f"{elsewhere.http_url}{request.scope['path']}?{urlencode(query)}"})


def _not_allowed(method: str, allowed: Sequence[str]) -> Response:
    response = _error(NOT_ALLOWED, f"method {method} is not allowed here; use {', '.join(allowed)}")
    response.headers["Allow"] = ", ".join(allowed)
    return response


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    response: ASGIApp = _error(NOT_FOUND, f"there is nothing at {scope['path']}: see /openapi.json")
    await response(scope, receive, send)


_REQUESTS_AT_A_TIME_MAX = 200
_IDLE_SECONDS_MAX = 65  # Just above what clients and proxies usually keep a connection for.
_QUIET_SECONDS_MAX = (
    75  # Longer than an idle connection is kept by the library, so that it says goodbye in its own way.
)
_LOOK_SECONDS = 5
_LIBRARY_LOGS = ("uvicorn.error", "uvicorn.access")


class HttpConnection(Protocol):
    """A connection of the HTTP library. Each whole request is a new cycle."""

    transport: asyncio.Transport

    @property
    def cycle(self) -> HttpCycle | None: ...


class HttpCycle(Protocol):
    @property
    def response_complete(self) -> bool: ...


class QuietConnections:
    """Finds connections on which no request has become whole for too long. The caller closes them."""

    def __init__(self) -> None:
        self._since: dict[HttpConnection, tuple[HttpCycle | None, float]] = {}

    def overdue(self, connections: Iterable[HttpConnection], now_s: float) -> list[HttpConnection]:
        """Must be called every few seconds with all open connections."""
        before, self._since = self._since, {}
        found = []
        for connection in connections:
            cycle = connection.cycle
            if cycle is not None and not cycle.response_complete:
                continue  # It is being answered, which has a limit of its own.
            last, since_s = before.get(connection, (cycle, now_s))
            if last is not cycle:
                since_s = now_s
            self._since[connection] = (cycle, since_s)
            if now_s - since_s > _QUIET_SECONDS_MAX:
                found.append(connection)
        return found


class LoadedAdmin:
    """Is made on the loop; ended by `aclose`."""

    def __init__(
        self, metrics: Metrics, health: Callable[[], Health], guard: WebGuard, broker: Callable[[], Broker | None]
    ) -> None:
        self._metrics = metrics
        self._health = health
        self._broker = broker
        self._context: AdminContext | None = None
        for name in _LIBRARY_LOGS:  # Errors of clients need no log, and app.py logs ours.
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._config = HttpConfig(
            AdminApp(all_routes(), self._context_of_broker, guard),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            interface="asgi3",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            limit_concurrency=_REQUESTS_AT_A_TIME_MAX,
            timeout_keep_alive=_IDLE_SECONDS_MAX,
        )
        self._config.load()
        self._state = ServerState()
        self._loop = asyncio.get_running_loop()
        self._quiet = QuietConnections()
        self._looking = self._loop.call_later(_LOOK_SECONDS, self._close_quiet)

    def new_protocol(self) -> asyncio.Protocol:
        make = self._config.http_protocol_class
        protocol = make(config=self._config, server_state=self._state, app_state={}, _loop=self._loop)  # type: ignore[call-arg]
        assert isinstance(protocol, asyncio.Protocol)
        return protocol

    def _close_quiet(self) -> None:
        connections = cast("list[HttpConnection]", list(self._state.connections))
        for connection in self._quiet.overdue(connections, self._loop.time()):
            connection.transport.abort()
        self._looking = self._loop.call_later(_LOOK_SECONDS, self._close_quiet)

    def _context_of_broker(self) -> AdminContext | None:
        broker = self._broker()
        if self._context is None and broker is not None:
            rates = RateBook(broker.service)
            rates.start()
            self._context = AdminContext(broker, self._metrics, self._health, rates)
        return self._context

    async def aclose(self, timeout_s: float) -> None:
        """Gives requests that are in progress this long to end."""
        self._looking.cancel()
        for connection in list(self._state.connections):
            connection.shutdown()
        tasks = list(self._state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._context is not None:
            await self._context.rates.aclose()
