from __future__ import annotations

from typing import Any

import pytest

from magnetar.wire.kafka.cluster_tables import (
    ALTER_CONFIGS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    INCREMENTAL_ALTER_CONFIGS,
)
from magnetar.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.kafka.kafka_world import KafkaTalker, KafkaWorld
from tests.unit.broker.kafka.test_administrating import create

TOPIC, BROKER = 2, 4
OF_TOPIC, DEFAULT = 1, 5
SET, REMOVE, APPEND = 0, 1, 2
WEEK_MS = "604800000"


async def describe(talker: KafkaTalker, kind: int = TOPIC, name: str = "t", keys: list[str] | None = None) -> Any:
    """Returns name → value, source; or the error."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    (found,) = (await talker.request(DESCRIBE_CONFIGS, {"resources": [resource]}))["results"]
    if found["error_code"]:
        assert found["error_message"]
        return found["error_code"]
    return {each["name"]: (each["value"], each["config_source"]) for each in found["configs"]}


async def alter(
    talker: KafkaTalker, *configs: tuple[str, str], name: str = "t", kind: int = TOPIC, only_checked: bool = False
) -> int:
    named = [{"name": key, "value": value} for key, value in configs]
    request = {
        "resources": [{"resource_type": kind, "resource_name": name, "configs": named}],
        "validate_only": only_checked,
    }
    return int((await talker.request(ALTER_CONFIGS, request))["responses"][0]["error_code"])


async def change(talker: KafkaTalker, *configs: tuple[str, int, str | None]) -> int:
    named = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in configs]
    request = {"resources": [{"resource_type": TOPIC, "resource_name": "t", "configs": named}]}
    return int((await talker.request(INCREMENTAL_ALTER_CONFIGS, request))["responses"][0]["error_code"])


async def retention(talker: KafkaTalker) -> Any:
    return await describe(talker, keys=["retention.ms", "retention.bytes"])


async def test_configurations_of_a_topic_show_its_policies_and_what_is_done_here(world: KafkaWorld) -> None:
    talker = world.kafka()
    await create(talker, "t", 2)
    found = await describe(talker)
    assert found["retention.ms"] == (WEEK_MS, OF_TOPIC)
    assert found["cleanup.policy"] == ("delete", DEFAULT)
    assert found["max.message.bytes"][0] == str(world.config.kafka.message_bytes_max)
    assert await describe(talker, keys=["retention.bytes", "none"]) == {"retention.bytes": ("-1", OF_TOPIC)}
    assert await describe(talker, name="none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_configurations_of_a_broker_are_its_own(world: KafkaWorld) -> None:
    talker = world.kafka()
    assert (await describe(talker, BROKER, "0"))["offsets.topic.num.partitions"][0] == "16"
    assert await describe(talker, BROKER, "") == {}
    assert await describe(talker, BROKER, "7") == ErrorCode.INVALID_REQUEST
    assert await describe(talker, 8, "0") == ErrorCode.INVALID_REQUEST
    assert await alter(talker, ("message.max.bytes", "5"), kind=BROKER, name="0") == ErrorCode.INVALID_CONFIG


async def test_one_configuration_is_changed_and_the_others_stay(world: KafkaWorld) -> None:
    talker = world.kafka()
    await create(talker, "t", 2)
    assert await change(talker, ("retention.bytes", SET, str(5 * 2**20)), ("cleanup.policy", SET, "delete")) == 0
    assert await retention(talker) == {"retention.ms": (WEEK_MS, OF_TOPIC), "retention.bytes": ("5242880", OF_TOPIC)}
    topic = await world.topic("t-partition-0")
    assert (topic.policies.retention.minutes, topic.policies.retention.megabytes) == (10_080, 5)
    assert await change(talker, ("retention.bytes", REMOVE, None), ("retention.ms", SET, "60000")) == 0
    assert await retention(talker) == {"retention.ms": ("60000", OF_TOPIC), "retention.bytes": ("-1", OF_TOPIC)}


async def test_what_is_not_named_gets_its_default(world: KafkaWorld) -> None:
    talker = world.kafka()
    await create(talker, "t", 1)
    assert await alter(talker, ("retention.bytes", "1048576")) == 0
    assert (await retention(talker))["retention.ms"] == (WEEK_MS, OF_TOPIC)
    assert await alter(talker) == 0
    assert await retention(talker) == {"retention.ms": ("0", DEFAULT), "retention.bytes": ("0", DEFAULT)}


@pytest.mark.parametrize(
    ("name", "value"),
    [("segment.bytes", "1"), ("cleanup.policy", "compact"), ("retention.ms", "long"), ("retention.ms", None)],
)
async def test_what_would_not_be_followed_is_refused_and_changes_nothing(
    world: KafkaWorld, name: str, value: Any
) -> None:
    talker = world.kafka()
    await create(talker, "t", 1)
    before = await describe(talker)
    assert await change(talker, ("retention.bytes", SET, "1"), (name, SET, value)) == ErrorCode.INVALID_CONFIG
    assert await change(talker, ("retention.bytes", APPEND, "1")) == ErrorCode.INVALID_CONFIG
    assert await alter(talker, ("retention.ms", "60000"), only_checked=True) == 0
    assert await alter(talker, ("retention.ms", "60000"), name="none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await describe(talker) == before


async def test_the_cluster_is_described(world: KafkaWorld) -> None:
    talker = world.kafka()
    for version in range(3):
        answer = await talker.request(DESCRIBE_CLUSTER, {}, version)
        assert (answer["error_code"], answer["cluster_id"]) == (0, world.config.broker.cluster)
        assert answer["controller_id"] == 0
        assert [(each["broker_id"], each["is_fenced"]) for each in answer["brokers"]] == [(0, False)]
    answer = await talker.request(DESCRIBE_CLUSTER, {"endpoint_type": 2})
    assert answer["error_code"] == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


async def test_log_directories_show_the_size_of_one_copy_of_what_is_loaded(world: KafkaWorld) -> None:
    talker = world.kafka()
    await create(talker, "t", 2)
    await talker.produced("t", b"v" * 1_000)
    await talker.produced("other", b"v")

    async def sizes(topics: list[dict[str, Any]] | None) -> dict[tuple[str, int], int]:
        (place,) = (await talker.request(DESCRIBE_LOG_DIRS, {"topics": topics}))["results"]
        assert (place["error_code"], place["total_bytes"]) == (0, -1)
        return {
            (topic["name"], each["partition_index"]): each["partition_size"]
            for topic in place["topics"]
            for each in topic["partitions"]
        }

    found = await sizes(None)
    assert set(found) == {("t", 0), ("other", 0)}
    assert 1_000 < found["t", 0] < 2_000
    assert set(await sizes([{"topic": "t", "partitions": [0, 1]}])) == {("t", 0)}
