"""Subscriptions and single messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from magnetar.names import TopicName
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata
from tests.unit.admin.admin_world import TOPIC, V2, AdminWorld, admin_world
from tests.unit.broker.pulsar.broker_world import batch, message
from tests.unit.wire.pulsar.samples import spoiled

pytestmark = pytest.mark.virtual_time

SUB = f"{TOPIC}/subscription/s"
EARLIEST = {"ledgerId": -1, "entryId": -1}


async def backlog(world: AdminWorld) -> int:
    return int((await world.get(f"{TOPIC}/stats")).json["subscriptions"]["s"]["msgBacklog"])


async def ledger(world: AdminWorld) -> int:
    return (await world.world.topic("t")).log.last_confirmed.ledger_id


async def test_a_subscription_begins_where_it_is_told_to() -> None:
    async with admin_world() as world:
        await world.publish(4)
        place = {"ledgerId": await ledger(world), "entryId": 1}
        await world.done("PUT", SUB, place | {"properties": {"a": "b"}})
        assert await backlog(world) == 3
        await world.done("PUT", f"{TOPIC}/subscription/behind", place | {"isExcluded": True})
        await world.done("PUT", f"{TOPIC}/subscription/all", "earliest")
        await world.done("PUT", f"{TOPIC}/subscription/new")
        found = (await world.get(f"{TOPIC}/stats")).json["subscriptions"]
        assert {name: each["msgBacklog"] for name, each in found.items()} == {"s": 3, "behind": 2, "all": 4, "new": 0}
        assert (await world.get(f"{SUB}/properties")).json == {"a": "b"}
        assert (await world.call("PUT", SUB)).status == 409


async def test_one_subscription_more_than_a_topic_may_have_is_a_conflict() -> None:
    async with admin_world() as world:
        await world.done("POST", f"{V2}/namespaces/public/default/maxSubscriptionsPerTopic", 1)
        await world.done("PUT", SUB, EARLIEST)
        for place in ("", "?to=earliest"):
            refused = await world.call("PUT", f"{TOPIC}/subscription/more{place}", None if place else EARLIEST)
            assert (refused.status, "has 1 subscription, which is its limit" in refused.reason) == (409, True)


async def test_nothing_expires_by_the_id_of_another_partition_or_of_a_message_that_does_not_exist() -> None:
    async with admin_world() as world:
        await world.done("PUT", SUB, EARLIEST)
        await world.publish(3)
        place = {"ledgerId": await ledger(world), "entryId": 1}
        other = await world.call("POST", f"{SUB}/expireMessages", place | {"partitionIndex": 2})
        beyond = await world.call("POST", f"{SUB}/expireMessages", place | {"entryId": 3})
        assert (other.status, beyond.status) == (412, 409)
        assert await backlog(world) == 3
        await world.done("POST", f"{SUB}/expireMessages", place | {"partitionIndex": -1})
        assert await backlog(world) == 1


async def test_messages_are_skipped_expired_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin_world() as world:
        await world.done("PUT", SUB, EARLIEST)
        await world.publish(10)
        await world.done("POST", f"{SUB}/skip/4")
        assert await backlog(world) == 6
        await world.done("POST", f"{SUB}/expireMessages", {"ledgerId": await ledger(world), "entryId": 6})
        assert await backlog(world) == 3
        await world.done("POST", f"{SUB}/skip_all")
        assert await backlog(world) == 0
        await world.done("POST", f"{SUB}/resetcursor/0")
        assert await backlog(world) == 10
        entropy = world.context.broker.service.entropy
        later_ms = entropy.wall_ms() + 10_000
        monkeypatch.setattr(entropy, "wall_ms", lambda: later_ms)
        await world.done("POST", f"{SUB}/expireMessages/60")
        assert await backlog(world) == 10
        await world.done("POST", f"{SUB}/expireMessages/5")
        assert await backlog(world) == 0
        await world.done("POST", f"{SUB}/resetcursor", {"ledgerId": await ledger(world), "entryId": 7})
        assert await backlog(world) == 3
        await world.done("POST", f"{TOPIC}/all_subscription/expireMessages/5")
        assert await backlog(world) == 0


async def test_a_subscription_goes_into_the_middle_of_a_batch() -> None:
    async with admin_world() as world:
        await world.done("PUT", SUB, EARLIEST)
        talker = await world.talker()
        await talker.producer("t")
        at = await talker.published(1, 0, b"", raw=batch([b"a", b"b", b"c"]), messages=3)
        place = {"ledgerId": at.ledgerId, "entryId": at.entryId, "batchIndex": 1}
        await world.done("POST", f"{SUB}/resetcursor", place | {"isExcluded": True})
        cursor = (await world.world.topic("t")).cursors.get("s")
        assert cursor is not None
        position = (await world.world.topic("t")).log.last_confirmed
        assert cursor.ack_set_of(position) == [0b100]
        await world.done("POST", f"{SUB}/resetcursor", place | {"batchIndex": 2, "isExcluded": True})
        assert await backlog(world) == 0


async def test_a_subscription_with_consumers_is_deleted_only_by_force() -> None:
    async with admin_world() as world:
        talker = await world.talker()
        await talker.subscribe("t")
        assert (await world.call("DELETE", SUB)).status == 412
        await world.done("DELETE", f"{SUB}?force=true")
        assert (await world.get(f"{TOPIC}/subscriptions")).json == []


REFUSED: list[tuple[Any, ...]] = [
    ("DELETE", "subscription/x", None, 404),
    ("POST", "subscription/x/skip_all", None, 404),
    ("POST", "subscription/x/skip/1", None, 404),
    ("POST", "subscription/s/skip/-1", None, 412),
    ("POST", "subscription/s/skip/many", None, 400),
    ("POST", "subscription/s/expireMessages/-1", None, 412),
    ("POST", "subscription/x/resetcursor/0", None, 404),
    ("POST", "subscription/s/resetcursor", {"ledgerId": 1}, 400),
    ("PUT", "subscription/u", "somewhere", 400),
    ("GET", "subscription/x/position/1", None, 404),
    ("GET", "subscription/s/position/9", None, 404),
    ("GET", "examinemessage", None, 412),
    ("GET", "ledger/0/entry/0", None, 404),
    ("GET", "getMessageIdByIndex?index=5", None, 404),
]


async def test_what_cannot_be_done_with_a_subscription_has_pulsars_status() -> None:
    async with admin_world() as world:
        await world.done("PUT", SUB)
        for method, path, body, status in REFUSED:
            answer = await world.call(method, f"{TOPIC}/{path}", body)
            assert (answer.status, bool(answer.reason)) == (status, True), path


async def test_a_message_is_peeked_with_all_that_is_known_of_it() -> None:
    async with admin_world() as world:
        await world.done("PUT", SUB, EARLIEST)
        talker = await world.talker()
        await talker.producer("t")
        body = message(b"payload", 7, partition_key="k", properties=[{"key": "a", "value": "b"}])
        at = await talker.published(1, 7, b"", raw=body)
        answer = await world.get(f"{SUB}/position/1")
        assert answer.body == b"payload"
        headers = {name: answer.headers[f"X-Pulsar-{name}"] for name in ("Message-ID", "partition-key", "sequence-id")}
        assert headers == {"Message-ID": f"{at.ledgerId}:{at.entryId}", "partition-key": "k", "sequence-id": "7"}
        assert answer.headers["X-Pulsar-PROPERTY"] == '{"a": "b"}'
        assert answer.headers["X-Pulsar-Broker-Entry-METADATA-index"] == "0"
        same = await world.get(f"{TOPIC}/ledger/{at.ledgerId}/entry/{at.entryId}")
        assert same.body == b"payload"


async def test_a_message_whose_names_are_not_utf_8_is_peeked_all_the_same() -> None:
    async with admin_world() as world:
        await world.done("PUT", SUB, EARLIEST)
        talker = await world.talker()
        await talker.producer("t")
        metadata = MessageMetadata(producer_name="KKKK", sequence_id=0, publish_time=1, partition_key="KKKK")
        metadata.properties.add(key="KKKK", value="KKKK")
        await talker.published(1, 0, b"", raw=with_checksum(spoiled(metadata.SerializeToString()), b"payload"))
        answer = await world.get(f"{SUB}/position/1")
        assert answer.body == b"payload"
        assert answer.headers["X-Pulsar-partition-key"] == answer.headers["X-Pulsar-producer-name"] == "???k"
        assert json.loads(answer.headers["X-Pulsar-PROPERTY"]) == {"\ufffd\ufffd\ufffdk": "\ufffd\ufffd\ufffdk"}


async def test_messages_are_found_by_place_time_and_index() -> None:
    async with admin_world() as world:
        await world.publish(5)
        assert (await world.get(f"{TOPIC}/examinemessage?initialPosition=earliest&messagePosition=2")).body == b"m-1"
        assert (await world.get(f"{TOPIC}/examinemessage?messagePosition=1")).body == b"m-4"
        assert (await world.get(f"{TOPIC}/lastMessageId")).json["entryId"] == 4
        assert (await world.get(f"{TOPIC}/messageid/0")).json["entryId"] == 0
        assert (await world.get(f"{TOPIC}/getMessageIdByIndex?index=3")).json["entryId"] == 3
        size = (await world.call("PUT", f"{TOPIC}/backlogSize", {"ledgerId": await ledger(world), "entryId": 3})).json
        assert 0 < size < (await world.get(f"{TOPIC}/stats")).json["storageSize"]


async def test_a_backlog_is_counted_message_by_message() -> None:
    async with admin_world() as world:
        await world.done("PUT", SUB, EARLIEST)
        talker = await world.talker()
        await talker.producer("t")
        await talker.published(1, 0, b"", raw=batch([b"a", b"b"]), messages=2)
        await talker.published(1, 2, b"c")
        found = (await world.call("POST", f"{SUB}/analyzeBacklog")).json
        assert (found["entries"], found["messages"], found["aborted"]) == (2, 3, False)
        assert (await world.get(f"{TOPIC}/backlog")).json["cursorDetails"] == {"s": {"messageBacklog": 2}}


async def test_operations_on_a_partitioned_topic_are_done_on_all_partitions() -> None:
    async with admin_world() as world:
        many = f"{V2}/persistent/public/default/many"
        await world.done("PUT", f"{many}/partitions", 2)
        await world.done("PUT", f"{many}/subscription/s", EARLIEST)
        for index in (0, 1):
            await world.publish(2, f"many-partition-{index}")
        assert (await world.get(f"{many}/partitioned-stats")).json["subscriptions"]["s"]["msgBacklog"] == 4
        await world.done("POST", f"{many}/subscription/s/skip_all")
        assert (await world.get(f"{many}/partitioned-stats")).json["subscriptions"]["s"]["msgBacklog"] == 0
        await world.done("PUT", f"{many}/subscription/s/properties", {"a": "b"})
        assert (await world.get(f"{many}/subscription/s/properties")).json == {"a": "b"}
        assert (await world.get(f"{many}/subscription/s/position/1")).status == 405
        await world.done("PUT", f"{many}/unload")
        assert world.context.broker.service.topics.find(TopicName.parse("many-partition-0")) is None
        assert set((await world.done("POST", f"{many}/terminate/partitions")).json) == {"0", "1"}
        await world.done("DELETE", f"{many}/subscription/s")
        assert (await world.get(f"{many}/subscriptions")).json == []
