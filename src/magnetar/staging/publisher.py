"""Publisher: how a driver, or a sweeper, has a topic's broker publish the ledgers of an intent.

Purpose:   broker/staged/publishing.py is one inside a broker. `HttpPublisher` asks a topic's broker over HTTP
           (admin/topics/staging.py), for drivers, and for brokers that ask each other.
Order:     the HTTP client follows redirects to the topic's broker. A broker that is still copying answers 202 after a
           while, and is asked again; after `asked_max` times it is `StillPublishingError`. If that broker ends, the
           topic's next owner is waited for: it continues the copy.
Failure:   repeated requests are harmless, so every error that may pass is `retryable`, and the caller (sink.py) tries
           again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, Protocol
from urllib.parse import quote

from magnetar.client.http import HttpAnswer, HttpClient, refused
from magnetar.errors import (
    BrokerTimeoutError,
    HttpRefusedError,
    MagnetarError,
    ServiceNotReadyError,
    StagingError,
    StillPublishingError,
)

SKIPS_PATH: Final = "/admin/v2/magnetar/staged/skips"
ASKED_MAX: Final = 4_000
"""With 20 s for each, nearly a day of copying."""

_REQUEST_S: Final = 45.0  # The broker answers after 20 s at the latest, done or not.
_PATIENCE_S: Final = 300.0  # After the last sign of life.
_PAUSE_S: Final = 0.5
_ACCEPTED: Final = 202
_MAY_PASS: Final = (408, 429, 502, 503, 504)  # The topic moves, the broker is overloaded, starts or stops.

Reached = Callable[[str, int], None]
"""Called with the name of a point of the protocol, and the epoch: tests end the process there."""


class Publisher(Protocol):
    async def publish(self, topic: str, owner: str, epoch: int) -> None:
        """Returns when everything that the owner's intent of this epoch has for this topic is in it, durably, once.

        Repeated calls are harmless, also for an epoch that is long done. A `retryable` error may be gone at the next
        call; any other stays until the topic is changed.
        """

    async def forget(self, topic: str, owner: str) -> None:
        """Lets the topic forget this owner. Only after its last epoch is done everywhere."""

    async def note_skip(self, owner: str, epoch: int) -> None:
        """Counts in a broker's metrics that a run came to an epoch that was committed before, and wrote nothing."""


class HttpPublisher:
    """A `Publisher` over HTTP. The client is the caller's."""

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

    async def note_skip(self, owner: str, epoch: int) -> None:
        await self._ask("POST", f"{SKIPS_PATH}/{epoch}", owner)

    async def _ask(self, method: str, path: str, owner: str) -> int:
        """Raises HttpRefusedError for a refusal that will be the same next time; other errors may pass."""
        try:
            answer = await self._http.request(method, path, {"owner": owner}, timeout_s=_REQUEST_S)
        except BrokerTimeoutError as error:
            raise StillPublishingError(str(error)) from None
        return _checked(answer).status


def nothing_reached(point: str, epoch: int) -> None:
    """Does nothing: production does not stop at points."""


def path_of(topic: str) -> str:
    """Returns the path in the admin interface for a topic's complete name."""
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
