"""Calls of the admin REST API: redirects are followed for every method, and passing refusals can be waited out.

Redirects: `urllib` follows them for GET and POST only.
Refusals:  503 says that a topic or a bundle has no owner at the moment. Given a patience, the call is asked again.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

_TIMEOUT_S: Final = 30
_REDIRECTS_MAX: Final = 5
_REDIRECT: Final = 307
_NO_OWNER: Final = 503
_PAUSE_S: Final = 0.1


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any) -> None:
        """They are followed below."""


_OPENER = build_opener(_NoRedirects)


def ask(base: str, method: str, path: str, body: Any = None, *, patience_s: float = 0) -> Any:
    """Returns the answer of the server at `base`, or of the one to which it redirects. HTTPError if it is refused."""
    ends_at = time.monotonic() + patience_s
    while True:
        try:
            return _ask_once(base, method, path, body)
        except HTTPError as error:
            if error.code != _NO_OWNER or time.monotonic() >= ends_at:
                raise
            error.close()
            time.sleep(_PAUSE_S)


def _ask_once(base: str, method: str, path: str, body: Any) -> Any:
    url = f"{base}{path}"
    data = None if body is None else json.dumps(body).encode()
    for _ in range(_REDIRECTS_MAX):
        request = Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
                return _value_of(answer.read().decode())
        except HTTPError as error:
            location = error.headers.get("Location")
            if error.code != _REDIRECT or location is None:
                error.add_note(f"{method} {url}: {error.read().decode('utf-8', 'replace')[:500]}")
                raise
            error.close()
            url = location
    raise AssertionError(f"{method} {path} was redirected {_REDIRECTS_MAX} times, the last time to {url}")


def _value_of(text: str) -> Any:
    """Some answers of Pulsar are plain text."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text
