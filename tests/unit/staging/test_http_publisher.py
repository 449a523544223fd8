"""Asking a broker over HTTP: paths, patience, and which refusals may pass."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.client.http import HttpAnswer
from magnetar.errors import (
    BrokerTimeoutError,
    BrokerUnavailableError,
    HttpRefusedError,
    ServiceNotReadyError,
    StagingError,
    StillPublishingError,
)
from magnetar.staging import publisher as http_publisher
from magnetar.staging.publisher import HttpPublisher, path_of

TOPIC = "persistent://public/default/a%2Fb c-partition-1"


class Server:
    """Answers with these statuses, one after the other."""

    def __init__(self, *statuses: int | Exception) -> None:
        self.statuses = list(statuses)
        self.asked: list[tuple[str, str, Any]] = []

    async def request(self, method: str, path: str, query: Any = None, **_named: Any) -> HttpAnswer:
        self.asked.append((method, path, query))
        status = self.statuses.pop(0)
        if isinstance(status, Exception):
            raise status
        return HttpAnswer(status, {}, b'{"reason": "so"}')


def publisher(server: Server, **named: int) -> HttpPublisher:
    return HttpPublisher(server, **named)  # type: ignore[arg-type]


async def test_a_topics_broker_is_asked_until_it_has_copied_all() -> None:
    server = Server(202, 202, 204, 204)
    await publisher(server).publish(TOPIC, "spark/1", 7)
    await publisher(server).forget(TOPIC, "spark/1")
    base = "/admin/v2/persistent/public/default/a%252Fb%20c-partition-1/staged"
    assert server.asked == [("POST", f"{base}/7", {"owner": "spark/1"})] * 3 + [("DELETE", base, {"owner": "spark/1"})]


async def test_who_does_not_wait_hears_that_it_goes_on() -> None:
    with pytest.raises(StillPublishingError):
        await publisher(Server(202), asked_max=1).publish(TOPIC, "o", 0)


async def test_a_refusal_that_may_pass_is_worth_another_try_and_others_are_not() -> None:
    with pytest.raises(ServiceNotReadyError, match="so"):
        await publisher(Server(503)).publish(TOPIC, "o", 0)
    with pytest.raises(StillPublishingError, match="late"):
        await publisher(Server(BrokerTimeoutError("late"))).publish(TOPIC, "o", 0)
    for status in (404, 405, 409, 500):
        with pytest.raises(HttpRefusedError, match="so") as caught:
            await publisher(Server(status)).publish(TOPIC, "o", 0)
        assert not caught.value.retryable


async def test_a_broker_that_was_copying_and_is_gone_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_publisher, "_PAUSE_S", 0)
    server = Server(202, BrokerUnavailableError("killed"), 503, 204)
    await publisher(server).publish(TOPIC, "o", 0)
    assert not server.statuses


@pytest.mark.parametrize("name", ["out", "public/default/out", "non-persistent://a/b/c", "persistent://a/b"])
def test_only_complete_names_of_persistent_topics_have_a_path(name: str) -> None:
    with pytest.raises(StagingError):
        path_of(name)
