"""Asking a broker over HTTP to publish what was staged."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from magnetar.client.http_connection import HttpAnswer
from magnetar.errors import BrokerTimeoutError, BrokerUnavailableError, StagingError
from magnetar.spark.writing import publisher
from magnetar.spark.writing.publisher import HttpPublisher

TOPIC = "persistent://public/default/a:b-partition-0"


class Broker:
    """Answers in turn."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, object]] = []

    async def request(
        self, method: str, path: str, query: Mapping[str, object] | None = None, body: bytes = b"", *, timeout_s: float
    ) -> HttpAnswer:
        self.asked.append((method, path, (query or {}).get("owner")))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return HttpAnswer(answer, {}, b'{"reason": "why"}')


async def test_a_broker_is_asked_until_it_has_copied_all() -> None:
    broker = Broker(202, 202, 204)

    await HttpPublisher(broker).publish(TOPIC, "spark/q", 7)  # type: ignore[arg-type]

    assert broker.asked == [("POST", "/admin/v2/persistent/public/default/a%3Ab-partition-0/staged/7", "spark/q")] * 3


@pytest.mark.parametrize(
    ("answer", "may_pass"), [(503, True), (BrokerTimeoutError("late"), True), (404, False), (409, False), (500, False)]
)
async def test_trouble_that_may_pass_is_told_from_trouble_that_stays(answer: int | Exception, may_pass: bool) -> None:
    with pytest.raises(StagingError) as caught:
        await HttpPublisher(Broker(answer)).publish(TOPIC, "spark/q", 7)  # type: ignore[arg-type]

    assert caught.value.retryable == may_pass


async def test_a_broker_that_was_copying_and_is_gone_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "_PAUSE_S", 0)
    broker = Broker(202, BrokerUnavailableError("killed"), 503, 204)

    await HttpPublisher(broker).publish(TOPIC, "spark/q", 7)  # type: ignore[arg-type]

    assert not broker.answers


async def test_an_owner_is_forgotten_by_name() -> None:
    broker = Broker(204)

    await HttpPublisher(broker).forget("persistent://a/b/c", "spark-job/x")  # type: ignore[arg-type]

    assert broker.asked == [("DELETE", "/admin/v2/persistent/a/b/c/staged", "spark-job/x")]
