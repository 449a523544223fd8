"""The application: requests to handlers, results and errors to answers.

Limits:    of a body, of the time a request may take, of requests at a time (server.py).
Errors:    what a handler raises becomes a status and `{"reason": …}` (errors.py). What nobody expected is logged, and
           answered as 500 without its text.
Matching:  on the path as it came, not decoded: see call.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute
from starlette.routing import Router

from magnetar.admin.call import Call, Reply
from magnetar.admin.context import AdminContext
from magnetar.admin.errors import FAILED, NOT_ALLOWED, NOT_FOUND, TOO_LARGE, UNAVAILABLE, RestError, status_of
from magnetar.admin.errors import ElsewhereError as Elsewhere
from magnetar.admin.route import Route
from magnetar.errors import MagnetarError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 8 * 2**20  # A schema's definition is the largest thing that is sent.
REQUEST_SECONDS_MAX = 60.0  # Pulsar's clients wait for that long, too.
_JSON = "application/json"
_METHODS = ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"]
"""What is answered at all; what a path does not have is refused with a reason."""

GetContext = Callable[[], AdminContext | None]


class AdminApp:
    """An ASGI application. `context` gives None while the broker starts."""

    def __init__(self, routes: Sequence[Route], context: GetContext) -> None:
        self._context = context
        by_path: dict[str, dict[str, Route]] = defaultdict(dict)
        for route in routes:
            assert route.method not in by_path[route.path], f"{route.method} {route.path} is declared twice"
            by_path[route.path][route.method] = route
        self._router = Router(
            [
                HttpRoute(path, self._endpoint(methods), methods=_METHODS)
                for path, methods in sorted(by_path.items(), key=lambda item: _precedence(item[0]))
            ],
            default=_not_found,
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        raw = scope.get("raw_path") or scope["path"].encode()
        path = raw.decode("ascii", "replace")
        scope["path"] = path.rstrip("/") or "/"
        await self._router(scope, receive, send)

    def _endpoint(self, methods: dict[str, Route]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            route = methods.get("GET" if request.method == "HEAD" else request.method)
            if route is None:
                return _not_allowed(request.method, sorted(methods))
            try:
                async with asyncio.timeout(REQUEST_SECONDS_MAX):
                    return await self._answer(route, request)
            except TimeoutError:
                return _error(UNAVAILABLE, f"not done within {REQUEST_SECONDS_MAX:.0f} s: look whether it was, later")
            except Elsewhere as error:
                return _redirect(request, error.http_url)
            except MagnetarError as error:
                return _error(status_of(error), str(error))
            except Exception:
                log.exception("a request failed", extra={"method": request.method, "path": request.scope["path"]})
                return _error(FAILED, "the request failed for a reason that nobody expected: see the server's log")

        return endpoint

    async def _answer(self, route: Route, request: Request) -> Response:
        context = self._context()
        if context is None:
            response = _error(UNAVAILABLE, "the broker is starting: try again")
            response.headers["Retry-After"] = "1"  # Nothing was begun: whoever asked may ask again.
            return response
        body = await _body(request)
        call = Call(context, request.path_params, dict(request.query_params), body, route.domain)
        result = await route.handler(call)
        return _response(result, has_value=route.method == "GET")


def _precedence(path: str) -> tuple[tuple[int, str], ...]:
    """What is written out counts before what may be anything."""
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


def _response(result: Any, *, has_value: bool) -> Response:
    if isinstance(result, Reply):
        response = Response(result.body, result.status, media_type=result.content_type)
        # As they are: Pulsar's Java client looks for some of them by their exact letters.
        response.raw_headers.extend((name.encode(), value.encode()) for name, value in result.headers.items())
        return response
    if result is None:
        return Response(b"", 200 if has_value else 204)
    return Response(json.dumps(result, separators=(",", ":")).encode(), 200, media_type=_JSON)


def _error(status: int, reason: str) -> Response:
    return Response(json.dumps({"reason": reason}).encode(), status, media_type=_JSON)


def _redirect(request: Request, http_url: str) -> Response:
    query = request.scope.get("query_string", b"").decode("ascii", "replace")
    target = f"{http_url}{request.scope['path']}" + (f"?{query}" if query else "")
    return Response(b"", 307, {"Location": target})


def _not_allowed(method: str, allowed: Sequence[str]) -> Response:
    response = _error(NOT_ALLOWED, f"{method} is nothing that can be done here: {', '.join(allowed)} is")
    response.headers["Allow"] = ", ".join(allowed)
    return response


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    response: ASGIApp = _error(NOT_FOUND, f"there is nothing at {scope['path']}: see /openapi.json")
    await response(scope, receive, send)
