"""/metrics, /health, and what describes the interface itself."""

from __future__ import annotations

import json
from typing import Any

from magnetar.admin.call import Call, Reply
from magnetar.admin.pulsar_metrics import pulsar_metrics
from magnetar.admin.route import Route
from magnetar.runtime.metrics import CONTENT_TYPE


async def metrics(call: Call) -> Reply:
    return Reply(call.context.metrics.render() + await pulsar_metrics(call.context), CONTENT_TYPE)


async def health(call: Call) -> Reply:
    is_healthy, detail = call.context.health()
    body = json.dumps({"healthy": is_healthy, **detail}).encode() + b"\n"
    return Reply(body, status=200 if is_healthy else 503)


async def openapi(call: Call) -> dict[str, Any]:
    del call
    from magnetar.admin.openapi import describe
    from magnetar.admin.routes import all_routes

    return describe(all_routes())


async def docs_page(call: Call) -> Reply:
    del call
    from magnetar.admin.openapi import page
    from magnetar.admin.routes import all_routes

    return Reply(page(all_routes()).encode(), "text/html; charset=utf-8")


ROUTES = [
    Route("GET", "/metrics", "Get metrics in Prometheus's format", metrics),
    Route("GET", "/health", "Whether the process is well", health),
    Route("GET", "/openapi.json", "Get a description of this interface", openapi),
    Route("GET", "/docs", "Read what this interface can do", docs_page),
]
