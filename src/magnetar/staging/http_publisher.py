"""HttpPublisher: asks a topic's broker over HTTP (admin/staging.py). For drivers, and for brokers that ask each other.

Redirects: the HTTP client follows them to the broker that has the topic.
Long:      a broker that is still copying says so after a while (202), and is asked again; `asked_max` times, then it
           is `StillPublishingError`. One that was copying and is gone is waited for: the topic's next owner goes on.
Trouble:   asking twice is harmless, so whatever may pass is `retryable`, and whoever commits (commit.py) asks again.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final
from urllib.parse import quote

from magnetar.client.http import HttpClient, refused
from magnetar.client.http_connection import HttpAnswer
from magnetar.errors import (
    BrokerTimeoutError,
    HttpRefusedError,
    MagnetarError,
    ServiceNotReadyError,
    StagingError,
    StillPublishingError,
)

ASKED_MAX: Final = 4_000
"""With 20 s for each, nearly a day of copying."""
_REQUEST_S: Final = 45.0  # The broker answers after 20 s at the latest, done or not.
_PATIENCE_S: Final = 300.0  # After the last sign of life.
_PAUSE_S: Final = 0.5
_ACCEPTED: Final = 202
_MAY_PASS: Final = (408, 429, 502, 503, 504)  # The topic moves, the broker is overloaded, starts or stops.


class HttpPublisher:
    """A `Publisher`. The client is the caller's."""

    def __init__(self, http: HttpClient, *, asked_max: int = ASKED_MAX) -> None:
        self._http = http
        self._asked_max = asked_max

    async def publish(self, topic: str, owner: str, epoch: int) -> None:
        path = f"{path_of(topic)}/staged/{epoch}"
        loop, at_it_s = asyncio.get_running_loop(), -math.inf
        for _ in range(self._asked_max):
            try:
                if await self._ask("POST", path, owner) != _ACCEPTED:
                    return
                at_it_s = loop.time()
            except MagnetarError as error:
                if not error.retryable or loop.time() > at_it_s + _PATIENCE_S:
                    raise
                await asyncio.sleep(_PAUSE_S)
        raise StillPublishingError(f"epoch {epoch} of {owner!r} is being copied to {topic}: ask again")

    async def forget(self, topic: str, owner: str) -> None:
        await self._ask("DELETE", f"{path_of(topic)}/staged", owner)

    async def _ask(self, method: str, path: str, owner: str) -> int:
        """HttpRefusedError for a refusal that will be the same next time; others may pass."""
        try:
            answer = await self._http.request(method, path, {"owner": owner}, timeout_s=_REQUEST_S)
        except BrokerTimeoutError as error:
            raise StillPublishingError(str(error)) from None
        return _checked(answer).status


def path_of(topic: str) -> str:
    """In the admin interface, of a topic's complete name."""
    domain, separator, rest = topic.partition("://")
    parts = rest.split("/", 2)
    if domain != "persistent" or not separator or len(parts) != 3:
        raise StagingError(f"{topic!r} is not a complete name: write persistent://tenant/namespace/topic")
    return "/admin/v2/persistent/" + "/".join(quote(part, safe="") for part in parts)


def _checked(answer: HttpAnswer) -> HttpAnswer:
    if answer.status < 300:
        return answer
    error: HttpRefusedError = refused(answer)
    if error.status in _MAY_PASS:
        raise ServiceNotReadyError(str(error))
    raise error
