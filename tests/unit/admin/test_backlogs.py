"""Backlogs are counted in messages, beside the entries that Pulsar counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.topic.position import Position
from tests.unit.admin.admin_world import TOPIC, V2, AdminWorld, admin_world
from tests.unit.topic.log_world import message

pytestmark = pytest.mark.virtual_time

SUB = f"{TOPIC}/subscription/s"
PARTS = f"{V2}/persistent/public/default/parts"


async def publish_batch(world: AdminWorld, messages: int, topic: str = "t") -> None:
    talker = await world.talker()
    await talker.producer(topic)
    await talker.published(1, 0, b"", raw=message("m", batch=messages), messages=messages)
    talker.transport.close()


def counts(stats: dict[str, Any]) -> tuple[int, int, bool]:
    found = stats["subscriptions"]["s"]
    return found["msgBacklog"], found["backlogMessages"], found["backlogMessagesExact"]


async def test_statistics_have_messages_beside_the_entries_that_pulsar_counts() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        await world.done("PUT", SUB, "earliest")
        assert counts((await world.get(f"{TOPIC}/stats")).json) == (0, 0, True)
        await publish_batch(world, 995)
        assert counts((await world.get(f"{TOPIC}/stats")).json) == (1, 995, True)
        metrics = (await world.get("/metrics")).body.decode()
        (line,) = [line for line in metrics.splitlines() if line.startswith("pulsar_subscription_back_log{")]
        assert line.endswith(" 1")


async def test_an_explanation_counts_messages() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        await world.done("PUT", SUB, "earliest")
        await publish_batch(world, 995)
        explained = (await world.get(f"{SUB}/explain")).json
        assert (explained["backlog_messages"], explained["backlog_entries"]) == (995, 1)
        assert explained["backlog_messages_exact"]
        (held,) = explained["holdings"]
        assert (held["text"], held["messages"]) == ("no consumer is connected; 995 messages wait", 995)


async def test_a_message_that_is_not_delivered_yet_has_messages_before_it() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        await world.done("PUT", SUB, "earliest")
        for _ in range(3):
            await publish_batch(world, 10)
        topic = await world.world.topic("t")
        last, first = topic.log.last_confirmed, topic.log.chain.first_position
        before = (await world.get(f"{SUB}/explain?message={last}")).json["message"]
        assert (before["messages_before"], before["entries_before"]) == (20, 2)
        topic.subscriptions["s"].cursor.acknowledge([first.next])
        assert (await world.get(f"{SUB}/explain?message={last}")).json["message"]["messages_before"] == 10
        acknowledged = (await world.get(f"{SUB}/explain?message={first.next}")).json["message"]
        assert (acknowledged["progress"], acknowledged["messages_before"]) == ("acknowledged", 0)


async def test_a_seek_into_a_batch_leaves_the_messages_from_there_on() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        await world.done("PUT", SUB, "earliest")
        await publish_batch(world, 10)
        (moved,) = (await world.done("POST", f"{SUB}/seek?to=-3")).json
        assert (moved["backlogMessages"], moved["backlogEntries"], moved["backlogMessagesExact"]) == (3, 1, True)


async def test_backlogs_of_partitions_are_added_and_exact_if_all_of_them_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin_world() as world:
        await world.done("PUT", f"{PARTS}/partitions", 2)
        await world.done("PUT", f"{PARTS}/subscription/s", "earliest")
        for number in range(2):
            await publish_batch(world, 7, f"parts-partition-{number}")
        assert counts((await world.get(f"{PARTS}/partitioned-stats")).json) == (2, 14, True)

        second = (await world.world.topic("parts-partition-1")).log

        async def unknown(position: Position) -> tuple[int, int] | None:
            del position

        monkeypatch.setattr(second, "index_bounds", unknown)
        assert counts((await world.get(f"{PARTS}/partitioned-stats")).json) == (2, 8, False)


async def test_statistics_come_although_bookies_do_not_answer() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        await world.done("PUT", SUB, "earliest")
        await world.done("PUT", f"{SUB}2", "earliest")
        await publish_batch(world, 995)
        (await world.world.topic("t")).log._tail.clear()
        world.world.cluster.hang(0)
        began = asyncio.get_running_loop().time()
        assert counts((await world.get(f"{TOPIC}/stats")).json) == (1, 1, False)
        assert asyncio.get_running_loop().time() - began < 3
        world.world.cluster.wake(0)
