"""Moving a subscription to a place: an id of one partition, a message that does not exist, several partitions."""

from __future__ import annotations

import pytest

from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.errors import CursorNotStoredError
from magnetar.topic.position import Position
from tests.unit.admin.admin_world import TOPIC, V2, AdminWorld, admin_world

pytestmark = pytest.mark.virtual_time

SUB = f"{TOPIC}/subscription/s"
PARTS = f"{V2}/persistent/public/default/parts"


async def partitioned(world: AdminWorld) -> None:
    """Two partitions with three messages each, none of which is acknowledged."""
    await world.done("PUT", f"{PARTS}/partitions", 2)
    for number in range(2):
        await world.publish(3, f"parts-partition-{number}")
    await world.done("PUT", f"{PARTS}/subscription/s", "earliest")


async def backlogs(world: AdminWorld) -> list[int]:
    topics = [await world.world.topic(f"parts-partition-{number}") for number in range(2)]
    return [topic.subscriptions["s"].cursor.backlog_entries() for topic in topics]


@pytest.mark.parametrize("place", ["{last}", "-1", "index:1"])
async def test_a_place_of_one_partition_does_not_move_the_others(place: str) -> None:
    async with admin_world() as world:
        await partitioned(world)
        last = (await world.world.topic("parts-partition-1")).log.last_confirmed
        refused = await world.call("POST", f"{PARTS}/subscription/s/seek?to={place.format(last=last)}")
        assert refused.status == 412
        assert "parts-partition-0" in refused.reason
        assert await backlogs(world) == [3, 3]


async def test_a_seek_of_all_partitions_reports_where_each_of_them_is() -> None:
    async with admin_world() as world:
        await partitioned(world)
        moved = (await world.done("POST", f"{PARTS}/subscription/s/seek?to=latest")).json
        assert [(each["topic"][-1], each["backlogEntries"], each["entryId"]) for each in moved] == [
            ("0", 0, 3),
            ("1", 0, 3),
        ]
        moved = (await world.done("POST", f"{PARTS}/subscription/s/seek?to=earliest")).json
        assert [(each["backlogEntries"], each["entryId"]) for each in moved] == [(3, 0), (3, 0)]


async def test_a_seek_that_fails_on_one_partition_moves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin_world() as world:
        await partitioned(world)
        failing = (await world.world.topic("parts-partition-1")).subscriptions["s"]
        original = Subscription.seek

        async def seek(self: Subscription, position: Position, *rest: object) -> None:
            if self is failing:
                raise CursorNotStoredError("no bookie took it")
            await original(self, position, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(Subscription, "seek", seek)
        refused = await world.call("POST", f"{PARTS}/subscription/s/seek?to=latest")
        assert refused.status == 503
        assert "nothing was moved" in refused.reason
        assert await backlogs(world) == [3, 3]


async def test_a_partition_without_the_subscription_keeps_the_others_where_they_are() -> None:
    async with admin_world() as world:
        await partitioned(world)
        await world.done("DELETE", f"{PARTS}-partition-1/subscription/s")
        assert (await world.call("POST", f"{PARTS}/subscription/s/seek?to=latest")).status == 404
        assert (await world.world.topic("parts-partition-0")).subscriptions["s"].cursor.backlog_entries() == 3


@pytest.mark.parametrize("place", ["999:0", "{ledger}:3", "{ledger}:99", "index:4", "index:1000"])
async def test_a_message_that_does_not_exist_is_refused_with_those_that_do(place: str) -> None:
    async with admin_world() as world:
        await world.publish(3)
        await world.done("PUT", SUB, "earliest")
        cursor = (await world.world.topic("t")).subscriptions["s"].cursor
        ledger = (await world.world.topic("t")).log.chain.first_position.ledger_id
        text = place.format(ledger=ledger)
        refused = await world.call("POST", f"{SUB}/seek?to={text}")
        assert refused.status == 412
        existing = "index:0 to index:2" if "index" in place else f"{ledger}:0 to {ledger}:2"
        assert existing in refused.reason
        assert cursor.backlog_entries() == 3
        assert (await world.get(f"{TOPIC}/place?at={text}&existing=true")).status == 412


async def test_an_empty_topic_has_no_message_to_go_to() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        await world.done("PUT", SUB)
        refused = await world.call("POST", f"{SUB}/seek?to=3:4")
        assert (refused.status, "the topic is empty" in refused.reason) == (412, True)
        for place in ("earliest", "latest", "-3", "-1h", "index:0"):
            await world.done("POST", f"{SUB}/seek?to={place}")


@pytest.mark.parametrize(("place", "left"), [("-2", 2), ("index:1", 2), ("{ledger}:2", 1), ("-1h", 3)])
async def test_a_subscription_is_created_at_a_place(place: str, left: int) -> None:
    async with admin_world() as world:
        await world.publish(3)
        topic = await world.world.topic("t")
        await world.done("PUT", f"{SUB}?to={place.format(ledger=topic.log.chain.first_position.ledger_id)}")
        assert topic.subscriptions["s"].cursor.backlog_entries() == left


@pytest.mark.parametrize("place", ["999:0", "index:9", "yesterday"])
async def test_a_subscription_is_not_created_at_a_place_that_does_not_exist(place: str) -> None:
    async with admin_world() as world:
        await world.publish(3)
        assert (await world.call("PUT", f"{SUB}?to={place}")).status == 412
        assert not (await world.world.topic("t")).subscriptions
        assert (await world.call("PUT", f"{V2}/persistent/public/default/typo/subscription/s?to=-1")).status == 404
