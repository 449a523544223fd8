"""What a write asks about its topics before a task runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from magnetar.client.http import HttpAnswer
from magnetar.errors import ConfigError, HttpRefusedError, TopicNotFoundError, TopicTerminatedError
from magnetar.spark.cluster import ClusterOptions, Segments
from magnetar.spark.encoding.routing import Target
from magnetar.spark.writing import targets
from magnetar.spark.writing.plan import WritePlan, parse_write_options, plan_write
from magnetar.spark.writing.targets import find_target
from magnetar.topic.position import Position

TOPIC = "persistent://public/default/out"
PATH = "/admin/v2/persistent/public/default/out"


class Http:
    """Paths, and what a request to each of them returns."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.posted: dict[str, Any] = {}

    async def get_json(self, path: str, query: Mapping[str, object] | None = None, **_: Any) -> Any:
        found = self.answers[path.removeprefix(f"{PATH}/")]
        if isinstance(found, Exception):
            raise found
        return found

    async def request(self, method: str, path: str, *, body: bytes, timeout_s: float) -> HttpAnswer:
        self.posted[path] = json.loads(body)
        status = self.answers["schema"]
        return HttpAnswer(status, {}, b'{"version":{"version":258}}' if status < 300 else b'{"reason":"does not fit"}')


def plan(**options: str) -> WritePlan:
    schema = pa.schema([("id", pa.int64())]) if "schema" in options else pa.schema([("value", pa.binary())])
    return plan_write(schema, parse_write_options({"topic": "out", **options}))


async def find(http: Http, planned: WritePlan) -> Target:
    options = ClusterOptions("pulsar://there", f"http://{id(http)}")

    async def segments(part: str, from_ledger: int = 0) -> Segments:
        if http.answers.get("terminated") == part:
            return Segments(part, Position(1, 1), 2, Position(1, 0), True, ())
        raise TopicNotFoundError("never used")

    cluster = SimpleNamespace(http=http, options=options, segments=segments)
    return await find_target(cluster, planned, "out")  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _nothing_is_known() -> None:
    targets._found.clear()


@pytest.mark.parametrize(("partitions", "part"), [(0, TOPIC), (3, f"{TOPIC}-partition-0")])
async def test_a_terminated_topic_is_refused_before_any_task_runs(partitions: int, part: str) -> None:
    with pytest.raises(TopicTerminatedError, match="Write to another topic"):
        await find(Http(partitions={"partitions": partitions}, terminated=part), plan())


async def test_a_plain_write_asks_for_the_partitions_alone() -> None:
    assert await find(Http(partitions={"partitions": 4}), plan()) == Target(TOPIC, 4)


async def test_what_was_found_is_not_asked_for_again_until_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    http = Http(partitions={"partitions": 4})
    await find(http, plan())
    http.answers["partitions"] = {"partitions": 5}
    assert (await find(http, plan())).partitions == 4

    monkeypatch.setattr(targets, "_FRESH_S", -1.0)
    assert (await find(http, plan())).partitions == 5


async def test_a_schema_is_registered_and_its_version_is_what_entries_carry() -> None:
    http = Http(partitions={"partitions": 0}, schema=200)

    found = await find(http, plan(schema="avro"))

    assert found.schema_version == bytes([0, 0, 0, 0, 0, 0, 1, 2])
    sent = http.posted["/admin/v2/schemas/public/default/out/schema"]
    assert sent["type"] == "AVRO"
    assert json.loads(sent["schema"])["fields"] == [{"name": "id", "type": ["null", "long"], "default": None}]


async def test_a_schema_that_the_topic_refuses_refuses_the_write() -> None:
    with pytest.raises(ConfigError, match=r"does not fit.*compatibility policy"):
        await find(Http(partitions={"partitions": 0}, schema=409), plan(schema="json"))


async def test_dedup_is_refused_where_repeats_would_not_be_dropped() -> None:
    with pytest.raises(ConfigError, match=r"set-deduplication.*exactly-once"):
        await find(Http(partitions={"partitions": 0}, deduplicationEnabled=False), plan(delivery="dedup"))
    assert await find(Http(partitions={"partitions": 0}, deduplicationEnabled=True), plan(delivery="dedup"))


async def test_a_refusal_that_is_not_about_a_missing_topic_is_handed_on() -> None:
    with pytest.raises(HttpRefusedError, match="no"):
        await find(Http(partitions=HttpRefusedError(401, "no")), plan())
