from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.broker.ownership import BrokerAddress, Owner
from magnetar.names import Domain, TopicName
from magnetar.wire.kafka.admin_tables import DELETE_RECORDS, DELETE_TOPICS, OFFSET_DELETE
from magnetar.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.kafka.kafka_world import KafkaTalker, KafkaWorld, read
from tests.unit.broker.kafka.test_administrating import create
from tests.unit.broker.kafka.test_groups import Client
from tests.unit.broker.kafka.test_groups import world as world
from tests.unit.broker.kafka.test_looking_up import look_up

EARLIEST = -2


async def delete(talker: KafkaTalker, *names: str) -> list[int]:
    answer = await talker.request(DELETE_TOPICS, {"topic_names": names, "timeout_ms": 1_000})
    assert all(bool(each["error_message"]) == bool(each["error_code"]) for each in answer["responses"])
    return [each["error_code"] for each in answer["responses"]]


async def delete_before(talker: KafkaTalker, offset: int, partition: int = 0) -> tuple[int, int]:
    """Returns the error and where the partition begins."""
    wanted = {"partition_index": partition, "offset": offset}
    answer = await talker.request(DELETE_RECORDS, {"topics": [{"name": "t", "partitions": [wanted]}]})
    (found,) = answer["topics"][0]["partitions"]
    return found["error_code"], found["low_watermark"]


async def test_topics_are_deleted_with_their_partitions_and_policies(world: KafkaWorld) -> None:
    talker = world.kafka()
    await create(talker, "t", 3)
    await talker.produced("t", b"v")
    await talker.produced("plain", b"v")
    assert await delete(talker, "t", "plain", "none") == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert {name: code for name, (code, _) in (await look_up(talker, "t", "plain")).items()} == {
        "t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "plain": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    service, name = world.broker.service, TopicName.parse("t")
    assert not await service.topics_of(name.namespace, [Domain.PERSISTENT])
    assert service.policies.topic_policies(name) is None
    assert await create(talker, "t", 1) == 0
    assert await talker.produced("t", b"again") == 0


@pytest.mark.parametrize(("status", "code"), [("204 Done", 0), ("409 No", ErrorCode.NOT_LEADER_OR_FOLLOWER)])
async def test_another_broker_deletes_its_partitions_when_it_is_asked(
    world: KafkaWorld, monkeypatch: pytest.MonkeyPatch, status: str, code: int
) -> None:
    talker, asked = world.kafka(), []
    await talker.produced("t", b"v")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n")).decode())
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        look_up = world.broker.service.look_up

        async def elsewhere(topic: TopicName, **options: bool) -> Owner:
            owner = Owner(BrokerAddress("other:8080", url, {}), is_here=False)
            return owner if topic.local == "t" else await look_up(topic, **options)

        monkeypatch.setattr(world.broker.service, "look_up", elsewhere)
        assert await delete(talker, "t") == [code]
    assert asked == ["DELETE /admin/v2/persistent/public/default/t?force=true HTTP/1.1\r\n"]


async def test_a_deleted_topics_offsets_are_forgotten_and_others_stay(world: KafkaWorld) -> None:
    client, talker = Client(world), world.kafka()
    await talker.produced("t", b"v")
    await client.commit(1)
    await client.commit(4, topic="other")
    assert await delete(talker, "t") == [0]
    assert await client.committed() == (-1, "")
    assert await client.committed(topic="other") == (4, "m")


async def test_deleted_records_are_not_read_any_more_also_after_another_broker_took_over(world: KafkaWorld) -> None:
    talker = world.kafka()
    for values in ((b"0", b"1"), (b"2", b"3"), (b"4", b"5")):
        await talker.produced("t", *values)
    assert await delete_before(talker, 3) == (0, 3)
    for _ in range(2):
        assert (await talker.offset("t", EARLIEST))["offset"] == 3
        assert (await talker.fetch("t", 2))["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
        assert [offset for offset, _ in read((await talker.fetch("t", 3))["records"])] == [2, 3, 4, 5]
        assert (await talker.offset("t", 1_000))["offset"] == 3
        await world.broker.service.topics.unload(TopicName.parse("t"))
    assert await delete_before(talker, 1) == (0, 3)
    assert await delete_before(talker, -1) == (0, 6)
    assert (await talker.fetch("t", 6))["error_code"] == 0
    assert await talker.produced("t", b"6") == 6


async def test_deleting_records_drops_ledgers_that_no_subscription_needs(world: KafkaWorld) -> None:
    talker = world.kafka()
    await talker.produced("t", b"0", b"1")
    topic = await world.topic("t")
    await topic.log.roll()
    await talker.produced("t", b"2")
    assert await delete_before(talker, 2) == (0, 2)
    assert len(topic.log.chain.spans) == 1
    assert topic.log.properties["kafka.log_start"] == "2"


@pytest.mark.parametrize(("offset", "partition"), [(3, 0), (-2, 0), (0, 1)])
async def test_records_that_do_not_exist_are_not_deleted(world: KafkaWorld, offset: int, partition: int) -> None:
    talker = world.kafka()
    await talker.produced("t", b"0", b"1")
    codes = {0: ErrorCode.OFFSET_OUT_OF_RANGE, 1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert (await delete_before(talker, offset, partition))[0] == codes[partition]
    assert (await talker.offset("t", EARLIEST))["offset"] == 0


async def delete_offset(talker: KafkaTalker, group: str, topic: str) -> Any:
    """Returns the group's error, or that of the offset."""
    topics = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    answer = await talker.request(OFFSET_DELETE, {"group_id": group, "topics": topics})
    return answer["error_code"] or answer["topics"][0]["partitions"][0]["error_code"]


async def test_an_offset_is_deleted_unless_a_member_subscribes_to_its_topic(world: KafkaWorld) -> None:
    subscription = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"
    client, talker = Client(world, subscription=subscription), world.kafka()
    await client.join_alone()
    await client.commit(3)
    await client.commit(4, topic="other")
    assert await delete_offset(talker, "g", "t") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert await delete_offset(talker, "g", "other") == 0
    assert await delete_offset(talker, "none", "t") == ErrorCode.GROUP_ID_NOT_FOUND
    assert (await client.committed(), await client.committed(topic="other")) == ((3, "m"), (-1, ""))
    await client.leave()
    assert await delete_offset(talker, "g", "t") == 0
    assert await client.committed() == (-1, "")


async def test_the_offsets_of_members_that_cannot_be_understood_are_not_deleted(world: KafkaWorld) -> None:
    client, talker = Client(world), world.kafka()
    await client.join_alone()
    await client.commit(3)
    assert await delete_offset(talker, "g", "t") == ErrorCode.NON_EMPTY_GROUP
    assert await client.committed() == (3, "m")
