from __future__ import annotations

from typing import Any

import pytest

from magnetar.config.broker import BrokerConfig
from magnetar.names import TopicName
from magnetar.wire.kafka.codec import Value
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.frames import encode_request
from magnetar.wire.kafka.tables import API_VERSIONS, INIT_PRODUCER_ID, METADATA
from tests.unit.broker.kafka.kafka_world import KafkaTalker, KafkaWorld, kafka_world

SOFTWARE = {"client_software_name": "test-1", "client_software_version": "1.0.0"}


def topics_of(answer: Value) -> dict[str, tuple[int, int]]:
    """Name → error code, number of partitions."""
    return {topic["name"]: (topic["error_code"], len(topic["partitions"])) for topic in answer["topics"]}


async def look_up(talker: KafkaTalker, *names: str, create: bool = False, version: int = 13) -> dict[str, Any]:
    request = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": create}
    return topics_of(await talker.request(METADATA, request, version))


async def test_versions_are_listed_and_produce_begins_with_zero(world: KafkaWorld) -> None:
    talker = world.kafka()
    for version in range(5):
        answer = await talker.request(API_VERSIONS, SOFTWARE, version)
        keys = {each["api_key"]: (each["min_version"], each["max_version"]) for each in answer["api_keys"]}
        assert answer["error_code"] == 0
        data = {0: (0, 12), 1: (4, 12), 2: (1, 6), 3: (0, 13), 18: (0, 4), 22: (0, 5)}
        groups = {8: (2, 9), 9: (1, 9), 10: (0, 6), 11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5)}
        admin = {15: (0, 6), 16: (0, 5), 42: (0, 2), 47: (0, 0), 19: (2, 7), 20: (1, 5), 21: (0, 2), 37: (0, 3)}
        cluster = {32: (1, 4), 33: (0, 2), 44: (0, 1), 35: (1, 5), 60: (0, 2)}
        assert keys == data | groups | admin | cluster


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(world: KafkaWorld) -> None:
    talker = world.kafka()
    body: list[Any] = API_VERSIONS.encode_request(SOFTWARE, 4)
    talker.transport.write(b"".join(encode_request(API_VERSIONS, 99, 1, "new", body)))
    answer = API_VERSIONS.decode_response(await talker.answer(), 0, 4)
    assert answer["error_code"] == ErrorCode.UNSUPPORTED_VERSION
    assert [each["api_key"] for each in answer["api_keys"]] == [18]
    assert (await talker.request(API_VERSIONS, SOFTWARE, 4))["error_code"] == 0


@pytest.mark.parametrize("name", ["", "-a", "a b", "a-"])
async def test_the_name_of_a_clients_software_is_checked(world: KafkaWorld, name: str) -> None:
    answer = await world.kafka().request(API_VERSIONS, SOFTWARE | {"client_software_name": name})
    assert answer["error_code"] == ErrorCode.INVALID_REQUEST


async def test_metadata_names_the_broker_and_its_topics(world: KafkaWorld) -> None:
    talker = world.kafka()
    await world.broker.service.create_partitioned_topic(TopicName.parse("parts"), 3)
    await talker.produced("plain", b"v")
    for version in range(14):
        asked = {"topics": None} if version else {"topics": []}
        answer = await talker.request(METADATA, asked, version)
        assert topics_of(answer) == {"parts": (0, 3), "plain": (0, 1)}
        (broker,) = answer["brokers"]
        assert (broker["node_id"], broker["host"]) == (0, "127.0.0.1")
        leaders = {each["leader_id"] for topic in answer["topics"] for each in topic["partitions"]}
        assert leaders == {0}


async def test_metadata_of_no_topics_has_none(world: KafkaWorld) -> None:
    talker = world.kafka()
    await talker.produced("t", b"v")
    assert await look_up(talker, version=1) == {}


async def test_a_topic_is_made_only_if_the_client_allows_it(world: KafkaWorld) -> None:
    talker = world.kafka()
    assert await look_up(talker, "t") == {"t": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)}
    assert not await world.broker.service.exists(TopicName.parse("t"))
    assert await look_up(talker, "t", create=True) == {"t": (0, 1)}
    assert await world.broker.service.exists(TopicName.parse("t"))
    assert await look_up(talker, "t") == {"t": (0, 1)}
    await talker.produced("t", b"v")
    assert (await world.topic("t")).policies.retention.minutes == world.config.kafka.retention_minutes


async def test_a_topic_is_not_made_where_policies_forbid_it() -> None:
    async with kafka_world(broker=BrokerConfig(auto_create_topics=False)) as world:
        found = await look_up(world.kafka(), "t", create=True)
        assert found == {"t": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)}


async def test_a_topic_has_one_name_for_clients(world: KafkaWorld) -> None:
    talker = world.kafka()
    await talker.produced("public/default/t", b"v")
    assert await talker.produced("t", b"v") == 1
    assert await look_up(talker, "public/default/t") == {"t": (0, 1)}
    assert await look_up(talker, "a//b", "t-partition-1", "no/such/t") == {
        "a//b": (ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
        "t-partition-1": (ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
        "no/such/t": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
    }


async def test_a_broker_keeps_its_number_after_a_restart(world: KafkaWorld) -> None:
    async def number() -> int:
        answer = await world.kafka().request(METADATA, {"topics": []})
        return int(answer["controller_id"])

    assert await number() == 0
    await world.restart()
    assert await number() == 0


async def test_producer_ids_are_never_given_twice(world: KafkaWorld) -> None:
    async def take(talker: KafkaTalker) -> int:
        answer = await talker.request(INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout_ms": 1})
        assert (answer["error_code"], answer["producer_epoch"]) == (0, 0)
        return int(answer["producer_id"])

    ids = [await take(world.kafka()) for _ in range(3)]
    await world.restart()
    ids.append(await take(world.kafka()))
    assert len(set(ids)) == 4


async def test_a_transactional_producer_is_refused(world: KafkaWorld) -> None:
    answer = await world.kafka().request(INIT_PRODUCER_ID, {"transactional_id": "t", "transaction_timeout_ms": 1})
    assert answer["error_code"] == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x08\x27\x0f\x00\x00\x00\x00\x00\x01",
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x0a\x00\x03\x00\x00\x00\x00\x00\x01\x00\x09",
    ],
)
async def test_a_peer_that_speaks_something_else_is_disconnected(world: KafkaWorld, data: bytes) -> None:
    talker = world.kafka()
    talker.transport.write(data)
    await talker.wait_closed()
    assert world.kafka_front_end.counters.broken == 1
