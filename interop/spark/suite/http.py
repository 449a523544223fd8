"""Requests to a server's HTTP port, for tests."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

_TIMEOUT_S = 60


def call(url: str, method: str, path: str, body: str | None = None) -> Any:
    """JSON, or None; raises urllib's HTTPError."""
    request = Request(
        f"{url}{path}", None if body is None else body.encode(), {"Content-Type": "application/json"}, method=method
    )
    with urlopen(request, timeout=_TIMEOUT_S) as answer:
        data = answer.read()
    return json.loads(data) if data else None
