from __future__ import annotations

from typing import Any

import pytest

from magnetar.names import TopicName
from magnetar.wire.kafka.admin_tables import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
)
from magnetar.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.kafka.kafka_world import KafkaTalker, KafkaWorld
from tests.unit.broker.kafka.test_groups import OFFSETS, Client
from tests.unit.broker.kafka.test_groups import world as world
from tests.unit.broker.kafka.test_looking_up import look_up


async def create(talker: KafkaTalker, name: str, partitions: int = 1, **fields: Any) -> int:
    only_checked = fields.pop("validate_only", False)
    topic = {"name": name, "num_partitions": partitions, "replication_factor": -1, **fields}
    answer = await talker.request(CREATE_TOPICS, {"topics": [topic], "validate_only": only_checked})
    assert bool(answer["topics"][0]["error_message"]) == bool(answer["topics"][0]["error_code"])
    return int(answer["topics"][0]["error_code"])


async def test_a_topic_is_made_with_partitions_and_retention(world: KafkaWorld) -> None:
    talker = world.kafka()
    configs = [
        {"name": "retention.ms", "value": "90000"},
        {"name": "retention.bytes", "value": "-1"},
        {"name": "cleanup.policy", "value": "delete"},
    ]
    assert await create(talker, "t", 3, configs=configs) == 0
    assert await look_up(talker, "t") == {"t": (0, 3)}
    assert await talker.produced("t", b"v") == 0
    topic = await world.topic("t-partition-0")
    assert (topic.policies.retention.minutes, topic.policies.retention.megabytes) == (2, -1)
    assert await create(talker, "t") == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"assignments": [{"partition_index": 0, "broker_ids": [0]}]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"configs": [{"name": "cleanup.policy", "value": "compact"}]}, ErrorCode.INVALID_CONFIG),
        ({"configs": [{"name": "segment.bytes", "value": "1"}]}, ErrorCode.INVALID_CONFIG),
        ({"configs": [{"name": "retention.ms", "value": "long"}]}, ErrorCode.INVALID_CONFIG),
        ({"name": "t-partition-1"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "no/where/t"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"validate_only": True}, 0),
    ],
)
async def test_what_would_not_be_followed_is_refused_and_makes_nothing(
    world: KafkaWorld, fields: dict[str, Any], code: int
) -> None:
    talker = world.kafka()
    assert await create(talker, **{"name": "t", **fields}) == code
    assert not await world.broker.service.resources.partitioned_topics.names(TopicName.parse("t").namespace)


async def test_a_topic_that_is_named_twice_is_refused(world: KafkaWorld) -> None:
    topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
    answer = await world.kafka().request(CREATE_TOPICS, {"topics": [topic, topic]})
    assert [each["error_code"] for each in answer["topics"]] == [ErrorCode.INVALID_REQUEST] * 2


async def test_partitions_are_added_and_never_removed(world: KafkaWorld) -> None:
    talker = world.kafka()
    await create(talker, "t", 2)
    await talker.make("plain")
    for name, count, code in (
        ("t", 2, ErrorCode.INVALID_PARTITIONS),
        ("t", 4, 0),
        ("plain", 2, ErrorCode.INVALID_PARTITIONS),
        ("none", 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        answer = await talker.request(CREATE_PARTITIONS, {"topics": [{"name": name, "count": count}]})
        assert answer["results"][0]["error_code"] == code
    assert await look_up(talker, "t") == {"t": (0, 4)}


async def test_groups_are_listed_described_and_deleted(world: KafkaWorld) -> None:
    client, talker = Client(world), world.kafka()
    assert (await talker.request(LIST_GROUPS, {}))["groups"] == []
    await client.join_alone()
    await client.commit(3)
    (listed,) = (await talker.request(LIST_GROUPS, {}))["groups"]
    assert listed == {"group_id": "g", "protocol_type": "consumer", "group_state": "Stable", "group_type": "classic"}
    assert (await talker.request(LIST_GROUPS, {"states_filter": ["Empty"]}))["groups"] == []
    answer = await talker.request(DESCRIBE_GROUPS, {"groups": ["g", "none"]})
    described, missing = answer["groups"]
    assert (described["group_state"], described["protocol_data"]) == ("Stable", "range")
    assert [each["member_assignment"] for each in described["members"]] == [b"all"]
    assert (missing["error_code"], missing["group_state"]) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")

    async def delete(*names: str) -> list[int]:
        answer = await talker.request(DELETE_GROUPS, {"groups_names": names})
        return [each["error_code"] for each in answer["results"]]

    assert await delete("g", "none") == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    await client.leave()
    assert await delete("g") == [0]
    assert await client.committed() == (-1, "")
    await world.broker.service.topics.unload(OFFSETS)
    assert (await talker.request(LIST_GROUPS, {}))["groups"] == []
