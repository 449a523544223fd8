"""Route: one request of the interface, declared once. The server, OpenAPI and the docs are made from the routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from magnetar.admin.http.call import Call
from magnetar.names import Domain

Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Query:
    """Describes a parameter after the question mark."""

    name: str
    what: str
    type: str = "boolean"


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    """The path, with `{parts}`; a part is one segment."""
    summary: str
    handler: Handler
    query: tuple[Query, ...] = ()
    body: str = ""
    """The body of a request, in words; empty without one."""
    domain: Domain = Domain.PERSISTENT

    @property
    def parts(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


TOPIC = "{tenant}/{namespace}/{topic}"


def of_both_domains(
    method: str, path: str, summary: str, handler: Handler, *, query: tuple[Query, ...] = (), body: str = ""
) -> list[Route]:
    """Makes a route for persistent and one for non-persistent topics; `path` is what follows the domain."""
    return [Route(method, f"/admin/v2/{each}/{path}", summary, handler, query, body, each) for each in Domain]
