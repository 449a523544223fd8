"""Publishing by a topic's broker, over HTTP: the broker copies what was staged, the driver only asks.

Asked:     `POST …/staged/{epoch}?owner=…` returns when all of it is in the topic, durably, once; 202 while the broker
           is still copying: then it is asked again, as long as it says so, and for a while when it is gone. Any other
           trouble that may pass is an error that is `retryable`, and whoever commits (staging/commit.py) asks again:
           asking twice is harmless.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final

from magnetar.client.http import HttpClient, refused
from magnetar.errors import BrokerTimeoutError, HttpRefusedError, MagnetarError, StagingError, StillPublishingError
from magnetar.spark.writing.targets import topic_path

_ASK_S: Final = 60.0  # A broker answers after 20 s at most, done or not.
_ASKED_MAX: Final = 4_000  # Nearly a day of copying.
_PATIENCE_S: Final = 300.0  # After the last sign of life.
_PAUSE_S: Final = 0.5
_STILL_AT_IT: Final = 202
_MAY_PASS: Final = frozenset({429, 502, 503, 504})  # The topic moves, the broker is overloaded, starts or stops.


class HttpPublisher:
    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def publish(self, topic: str, owner: str, epoch: int) -> None:
        path = f"/admin/v2/{topic_path(topic)}/staged/{epoch}"
        loop = asyncio.get_running_loop()
        at_it_s = -math.inf
        for _ in range(_ASKED_MAX):
            try:
                if await self._ask("POST", path, owner) != _STILL_AT_IT:
                    return
                at_it_s = loop.time()
            except MagnetarError as error:  # It was at it, and is gone: whoever has the topic next goes on.
                if not error.retryable or loop.time() > at_it_s + _PATIENCE_S:
                    raise
                await asyncio.sleep(_PAUSE_S)
        raise StillPublishingError(f"epoch {epoch} of {owner!r} is still being copied to {topic}")

    async def forget(self, topic: str, owner: str) -> None:
        await self._ask("DELETE", f"/admin/v2/{topic_path(topic)}/staged", owner)

    async def _ask(self, method: str, path: str, owner: str) -> int:
        try:
            answer = await self._http.request(method, path, {"owner": owner}, timeout_s=_ASK_S)
        except BrokerTimeoutError as error:
            raise StillPublishingError(str(error)) from None
        if answer.status >= 300:
            raise _understood(refused(answer))
        return answer.status


def _understood(error: HttpRefusedError) -> StagingError:
    kind = StillPublishingError if error.status in _MAY_PASS else StagingError
    return kind(f"the broker could not publish what was staged: {error}")
