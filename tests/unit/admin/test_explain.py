"""What holds delivery, what keeps a message, and places as people name them."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.broker.upkeep.retention_reasons import RetainedBy, retained_because
from magnetar.broker.upkeep.upkeep import trim
from magnetar.config.topic import TopicConfig
from magnetar.names import NamespaceName
from magnetar.topic.position import Position
from tests.unit.admin.admin_world import TOPIC, V2, AdminWorld, admin_world

pytestmark = pytest.mark.virtual_time

SUB = f"{TOPIC}/subscription/s"
SMALL = TopicConfig(ensemble_size=1, write_quorum=1, ack_quorum=1, ledger_entries_max=4, ledger_minutes_min=0)


async def explain(world: AdminWorld, message: str = "") -> dict[str, Any]:
    found: dict[str, Any] = (await world.get(f"{SUB}/explain" + (f"?message={message}" if message else ""))).json
    return found


async def test_what_holds_delivery_is_named() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        await world.done("PUT", SUB, "earliest")
        assert [each["hold"] for each in (await explain(world))["holdings"]] == ["caught-up"]
        await world.publish(3)
        held = await explain(world)
        assert [each["hold"] for each in held["holdings"]] == ["no-consumer"]
        assert (held["is_held"], held["backlog_entries"]) == (True, 3)
        talker = await world.talker()
        await talker.subscribe("t", "s")
        (no_permits,) = (await explain(world))["holdings"]
        assert no_permits["hold"] == "no-permits"
        assert no_permits["advice"]


async def test_what_is_not_there_is_said_so() -> None:
    async with admin_world() as world:
        assert (await world.get(f"{SUB}/explain")).status == 404
        await world.publish(1)
        answer = await world.get(f"{SUB}/explain")
        assert (answer.status, "Subscription not found" in answer.reason) == (404, True)
        await world.done("PUT", SUB)
        assert (await world.get(f"{SUB}/explain?message=x")).status == 400


async def keeps(world: AdminWorld, position: Position) -> list[RetainedBy]:
    topic = await world.world.topic("t")
    now_ms = world.context.broker.service.entropy.wall_ms()
    return [each.retained_by for each in retained_because(topic, position, SMALL, now_ms)]


async def test_a_message_is_kept_by_its_ledger_then_subscriptions_then_retention_then_nothing() -> None:
    async with admin_world(topic=SMALL) as world:
        await world.done("PUT", TOPIC)
        await world.done("PUT", SUB, "earliest")
        await world.publish(2)
        topic = await world.world.topic("t")
        first = topic.log.chain.first_position
        assert await keeps(world, first) == [RetainedBy.WRITTEN, RetainedBy.SUBSCRIPTION]
        assert await keeps(world, Position(first.ledger_id, 99)) == [RetainedBy.NOT_THERE]

        await world.publish(4, first=2)
        assert await keeps(world, first) == [RetainedBy.SUBSCRIPTION]
        assert not await trim(topic)

        await world.done("POST", f"{V2}/namespaces/public/default/retention",
                         {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1})  # fmt: skip
        await world.context.broker.service.policies.refresh(NamespaceName.parse("public/default"))
        await world.done("POST", f"{SUB}/skip_all")
        assert await keeps(world, first) == [RetainedBy.RETENTION]
        assert not await trim(topic)
        message = (await explain(world, f"{first}"))["message"]
        assert message["deletable_ms"] == topic.log.chain.spans[0].closed_ms + 600_000
        assert message["progress"] == "acknowledged"

        await world.done("DELETE", f"{V2}/namespaces/public/default/retention")
        await world.context.broker.service.policies.refresh(NamespaceName.parse("public/default"))
        assert await keeps(world, first) == [RetainedBy.NEXT_TRIM]
        assert await trim(topic) == 1
        assert await keeps(world, first) == [RetainedBy.NOT_THERE]


@pytest.mark.parametrize(("place", "left"), [("-2", 2), ("index:1", 4), ("earliest", 5), ("latest", 0), ("-1h", 5)])
async def test_a_subscription_goes_to_a_place_as_people_name_it(place: str, left: int) -> None:
    async with admin_world() as world:
        await world.publish(5)
        await world.done("PUT", SUB)
        await world.done("POST", f"{SUB}/seek?to={place}")
        assert (await explain(world))["backlog_entries"] == left


async def test_a_place_is_found_or_refused_with_what_one_looks_like() -> None:
    async with admin_world() as world:
        await world.publish(5)
        found = (await world.get(f"{TOPIC}/place?at=-2")).json
        assert (found["entryId"], found["batchIndex"], found["index"]) == (3, -1, 3)
        refused = await world.get(f"{TOPIC}/place?at=yesterday")
        assert (refused.status, "-10m" in refused.reason) == (412, True)
        assert (await world.get(f"{TOPIC}/place")).status == 400
        assert (await world.call("POST", f"{SUB}/seek?to=latest")).status == 404
