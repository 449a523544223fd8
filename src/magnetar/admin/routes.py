"""All routes of the admin interface, and what describes it and watches the broker: OpenAPI, a page, metrics, health."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

from magnetar.admin import policies
from magnetar.admin.cluster import bookies, brokers, isolation, lookup, namespaces, relay, tenants
from magnetar.admin.http.answers import Answer, Streamed
from magnetar.admin.http.call import Call, Reply, Route
from magnetar.admin.stats import broker
from magnetar.admin.stats.broker import write_pulsar_metrics
from magnetar.admin.topics import (
    explain,
    messages,
    ownership,
    partitions,
    positions,
    schemas,
    segments,
    staging,
    stats,
    subscriptions,
    topics,
)
from magnetar.runtime.metrics import CONTENT_TYPE

_TITLE = "magnetar admin"
_ERROR = {"type": "object", "properties": {"reason": {"type": "string"}}}


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.0.3",
        "info": {"title": _TITLE, "version": "v2", "description": "Pulsar's admin REST interface."},
        "paths": paths,
    }


def family_of(path: str) -> str:
    parts = path.strip("/").split("/")
    return parts[2] if parts[:2] == ["admin", "v2"] else parts[0]


def _operation(route: Route) -> dict[str, Any]:
    parameters = [_parameter(name, "path", "string") for name in route.parts]
    parameters += [_parameter(each.name, "query", each.type, each.what) for each in route.query]
    operation: dict[str, Any] = {
        "summary": route.summary,
        "tags": [family_of(route.path)],
        "responses": {
            "200" if route.method == "GET" else "204": {"description": "Done."},
            "default": {"description": "Why not.", "content": {"application/json": {"schema": _ERROR}}},
        },
    }
    if parameters:
        operation["parameters"] = parameters
    if route.body:
        operation["requestBody"] = {"description": route.body, "content": {"application/json": {"schema": {}}}}
    return operation


def _parameter(name: str, where: str, kind: str, what: str = "") -> dict[str, Any]:
    parameter: dict[str, Any] = {"name": name, "in": where, "required": where == "path", "schema": {"type": kind}}
    return parameter | ({"description": what} if what else {})


def page(routes: Sequence[Route]) -> str:
    families: dict[str, list[Route]] = {}
    for route in routes:
        families.setdefault(family_of(route.path), []).append(route)
    sections = "".join(_section(name, each) for name, each in families.items())
    return (
        f"<!doctype html><meta charset=utf-8><title>{_TITLE}</title>"
        "<style>body{font:15px/1.5 system-ui;margin:2em auto;max-width:70em}code{font-size:13px}"
        "td{padding:.1em .8em .1em 0;vertical-align:top}small{color:#666}</style>"
        f"<h1>{_TITLE}</h1><p>The same as <a href=/openapi.json>openapi.json</a>, for people.</p>{sections}"
    )


def _section(name: str, routes: Sequence[Route]) -> str:
    return f"<h2>{html.escape(name)}</h2><table>{''.join(map(_row, routes))}</table>"


def _row(route: Route) -> str:
    notes = [f"?{each.name}: {each.what}" for each in route.query] + ([f"body: {route.body}"] if route.body else [])
    shown = "<br>".join(html.escape(note) for note in notes)
    return (
        f"<tr><td><code>{route.method}</code><td><code>{html.escape(route.path)}</code>"
        f"<td>{html.escape(route.summary)}<br><small>{shown}</small>"
    )


async def metrics(call: Call) -> Streamed:
    async def write(answer: Answer) -> None:
        await answer.text(call.context.metrics.render().decode())
        await write_pulsar_metrics(call.context, answer)

    return Streamed(write, CONTENT_TYPE)


async def health(call: Call) -> Reply:
    is_healthy, detail = call.context.health()
    body = json.dumps({"healthy": is_healthy, **detail}).encode() + b"\n"
    return Reply(body, status=200 if is_healthy else 503)


async def openapi(call: Call) -> dict[str, Any]:
    del call
    return describe(all_routes())


async def docs_page(call: Call) -> Reply:
    del call
    return Reply(page(all_routes()).encode(), "text/html; charset=utf-8")


_OWN = [
    Route("GET", "/metrics", "Get metrics in Prometheus's format", metrics),
    Route("GET", "/health", "Check the health of the process", health),
    Route("GET", "/openapi.json", "Get a description of this interface", openapi),
    Route("GET", "/docs", "Read a page about this interface", docs_page),
]
_FAMILIES = (
    lookup,
    tenants,
    namespaces,
    policies,
    topics,
    partitions,
    stats,
    subscriptions,
    messages,
    explain,
    ownership,
    positions,
    segments,
    relay,
    staging,
    schemas,
    isolation,
    brokers,
    broker,
    bookies,
)


def all_routes() -> list[Route]:
    return [*_OWN, *(route for family in _FAMILIES for route in family.ROUTES)]
