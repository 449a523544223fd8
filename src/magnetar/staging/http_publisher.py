"""HttpPublisher: asks a topic's broker over HTTP (admin/staging.py). For drivers, and for brokers that ask each other.

Redirects: the HTTP client follows them to the broker that has the topic.
Long:      a broker that is still copying says so after a while (202), and is asked again; `asked_max` times, then it
           is `StillPublishingError`.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from magnetar.client.http import HttpClient, refused
from magnetar.client.http_connection import HttpAnswer
from magnetar.errors import HttpRefusedError, ServiceNotReadyError, StagingError, StillPublishingError

ASKED_MAX: Final = 4_000
"""With 20 s for each, nearly a day of copying."""
_REQUEST_S: Final = 45.0  # The broker answers after 20 s at the latest, done or not.
_ACCEPTED: Final = 202
_MAY_PASS: Final = (408, 429, 500, 502, 503, 504)


class HttpPublisher:
    """A `Publisher`. The client is the caller's."""

    def __init__(self, http: HttpClient, *, asked_max: int = ASKED_MAX) -> None:
        self._http = http
        self._asked_max = asked_max

    async def publish(self, topic: str, owner: str, epoch: int) -> None:
        path = f"{path_of(topic)}/staged/{epoch}"
        for _ in range(self._asked_max):
            answer = _checked(await self._http.request("POST", path, {"owner": owner}, timeout_s=_REQUEST_S))
            if answer.status != _ACCEPTED:
                return
        raise StillPublishingError(f"epoch {epoch} of {owner!r} is being copied to {topic}: ask again")

    async def forget(self, topic: str, owner: str) -> None:
        path = f"{path_of(topic)}/staged"
        _checked(await self._http.request("DELETE", path, {"owner": owner}, timeout_s=_REQUEST_S))


def path_of(topic: str) -> str:
    """In the admin interface, of a topic's complete name."""
    domain, separator, rest = topic.partition("://")
    parts = rest.split("/", 2)
    if domain != "persistent" or not separator or len(parts) != 3:
        raise StagingError(f"{topic!r} is not a complete name: write persistent://tenant/namespace/topic")
    return "/admin/v2/persistent/" + "/".join(quote(part, safe="") for part in parts)


def _checked(answer: HttpAnswer) -> HttpAnswer:
    """HttpRefusedError for a refusal that will be the same next time; ServiceNotReadyError for one that may pass."""
    if answer.status < 300:
        return answer
    error: HttpRefusedError = refused(answer)
    if error.status in _MAY_PASS:
        raise ServiceNotReadyError(str(error))
    raise error
