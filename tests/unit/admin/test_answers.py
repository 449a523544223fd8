"""Answers in pieces: whatever their size, the loop is not held, and what was written is JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.admin.http import answers
from magnetar.admin.http.answers import Answer, Members, write_json
from magnetar.admin.http.app import AdminApp
from magnetar.admin.http.call import AdminContext, Call, Route
from magnetar.config.process import HttpConfig
from magnetar.errors import TopicNotFoundError
from magnetar.runtime.slices import BUDGET_S, Slices
from magnetar.runtime.web_guard import WebGuard
from tests.unit.admin.admin_world import V2, admin_world

pytestmark = pytest.mark.virtual_time


class Sent:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    async def __call__(self, event: Any) -> None:
        self.events.append(event)

    @property
    def body(self) -> bytes:
        return b"".join(event.get("body", b"") for event in self.events)


async def written(value: Any) -> Sent:
    sent = Sent()
    answer = Answer(sent, Slices(), answers.JSON)
    await write_json(answer, value)
    await answer.end()
    return sent


async def counted(count: int) -> AsyncIterator[tuple[str, Any]]:
    for number in range(count):
        yield str(number), {"n": number}


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        5,
        "text",
        [1, [2, [3, {"four": [5]}]]],
        {"a": list(range(5_000)), "b": {}, "c": {str(n): {"x": [n]} for n in range(3_000)}, "d": None},
        [list(range(1_000)), [], {}, "x", list(range(1_000))],
        {'é"\n': ["\u2028" * 1_000] * 200},
    ],
)
async def test_what_is_written_is_what_was_meant(value: Any) -> None:
    assert json.loads((await written(value)).body) == value


async def test_members_are_made_while_they_are_sent() -> None:
    assert json.loads((await written(Members(counted(0)))).body) == {}
    value = {"first": 1, "many": Members(counted(3_000)), "list": [Members(counted(2))], "last": 2}
    found = json.loads((await written(value)).body)
    assert found["many"] == {str(number): {"n": number} for number in range(3_000)}
    assert found["list"] == [{"0": {"n": 0}, "1": {"n": 1}}]
    assert (found["first"], found["last"]) == (1, 2)


async def test_a_small_answer_has_a_length_and_a_large_one_comes_in_chunks() -> None:
    small, large = await written({"a": 1}), await written(list(range(100_000)))
    assert (b"content-length", b"7") in small.events[0]["headers"]
    assert len(small.events) == 2
    assert [name for name, _ in large.events[0]["headers"]] == [b"content-type"]
    assert max(len(event.get("body", b"")) for event in large.events) < 100_000
    assert [event["more_body"] for event in large.events[1:]] == [True] * (len(large.events) - 2) + [False]


class StepClock:
    """Every look at it costs a hundredth of the budget: a step of the work."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.looks = 0

    def __call__(self) -> float:
        self.now_s += BUDGET_S / 100
        self.looks += 1
        return self.now_s


class Loop:
    """The most steps in one turn of the loop."""

    def __init__(self, clock: StepClock) -> None:
        self._clock, self._seen = clock, clock.looks
        self.most = 0
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self._turn()

    def _turn(self) -> None:
        self.most = max(self.most, self._clock.looks - self._seen)
        self._seen = self._clock.looks
        if not self._is_over:
            self._loop.call_soon(self._turn)

    def stop(self) -> int:
        self._is_over = True
        return self.most


PARTITIONS = 120
PARTS = f"{V2}/persistent/public/default/parts"
DEFAULT = f"{V2}/namespaces/public/default"


OF_ALL_TOPICS = [
    ("GET", "/metrics", None),
    ("GET", f"{V2}/broker-stats/topics", None),
    ("GET", f"{V2}/broker-stats/load-report", None),
    ("GET", f"{V2}/namespaces/public/default/topics", None),
    ("GET", f"{V2}/persistent/public/default", None),
    ("GET", f"{V2}/persistent/public/default?bundle=0x00000000_0x40000000", None),
    ("GET", f"{PARTS}/partitioned-stats", None),
    ("GET", f"{PARTS}/partitioned-stats?perPartition=false", None),
    ("GET", f"{PARTS}/partitioned-internalStats", None),
    ("POST", f"{DEFAULT}/clearBacklog", None),
    ("POST", f"{DEFAULT}/retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 10}),
]


async def test_work_on_all_topics_gives_the_loop_away_and_is_complete() -> None:
    async with admin_world() as world:
        await world.done("PUT", f"{PARTS}/partitions", PARTITIONS)
        await world.done("PUT", f"{PARTS}/subscription/s")
        world.context.slices.clock = clock = StepClock()
        answers = {}
        for method, path, body in OF_ALL_TOPICS:
            loop, before = Loop(clock), clock.looks
            answers[path] = await world.done(method, path, body)
            assert clock.looks - before >= PARTITIONS, path  # A step for each topic at least.
            assert loop.stop() <= 110, path  # A hundred are the budget.
        with_all = answers[f"{PARTS}/partitioned-stats"].json
        assert len(with_all["partitions"]) == PARTITIONS
        assert list(with_all["subscriptions"]) == ["s"]
        without = answers[f"{PARTS}/partitioned-stats?perPartition=false"].json
        assert without == with_all | {"partitions": {}}
        found = answers[f"{V2}/broker-stats/topics"].json["public/default"]
        assert sum(len(bundle["persistent"]) for bundle in found.values()) == PARTITIONS


async def test_an_answer_that_fails_half_way_is_not_ended_as_if_it_were_whole() -> None:
    async def failing(call: Call) -> Members:
        del call

        async def members() -> AsyncIterator[tuple[str, Any]]:
            async for member in counted(10_000):
                yield member
            raise TopicNotFoundError("it is gone")

        return Members(members())

    sent = Sent()
    context = cast("AdminContext", SimpleNamespace(slices=Slices()))
    app = AdminApp([Route("GET", "/x", "Fail", failing)], lambda: context, WebGuard(HttpConfig(), "127.0.0.1"))
    scope = {"type": "http", "method": "GET", "path": "/x", "raw_path": b"/x", "query_string": b"", "headers": []}

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    with pytest.raises(TopicNotFoundError):
        await app(scope, receive, sent)
    assert sent.events[0]["status"] == 200
    assert sent.events[-1]["more_body"]
