"""Consumer groups of real clients, on a real process that is killed as well."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from kafka import KafkaAdminClient, KafkaConsumer

from soak.kafka_kills import run as run_kills
from tests.commands import run_magnetar
from tests.integration.kafka.test_clients import WAIT_S, produce
from workloads.kafka_load import GroupMembers, read_back


def test_members_of_a_group_share_the_messages_and_continue_where_it_stopped(bootstrap: str) -> None:
    produce(bootstrap, "shared", 1)
    numbers(bootstrap, "numbers", range(500))
    members = GroupMembers(bootstrap, "numbers", 2)
    members.wait(lambda seen: len(seen) >= 500)
    assert members.stop() == [500]
    assert sorted(members.seen) == list(range(500))
    numbers(bootstrap, "numbers", range(500, 600))
    members = GroupMembers(bootstrap, "numbers", 1)
    members.wait(lambda seen: len(seen) >= 100)
    assert members.stop() == [600]
    assert members.seen == list(range(500, 600))


def numbers(bootstrap: str, topic: str, wanted: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in wanted:
        producer.produce(topic, b"%d" % number)
    assert producer.flush(WAIT_S) == 0


async def test_kafka_python_and_aiokafka_consume_in_groups_and_commit(bootstrap: str) -> None:
    await asyncio.to_thread(numbers, bootstrap, "python-group", range(100))
    assert await asyncio.to_thread(consumed_by_kafka_python, bootstrap) == list(range(100))
    for instance in (None, "static"):
        consumer = AIOKafkaConsumer(
            "python-group", bootstrap_servers=bootstrap, group_id=f"aio {instance}", group_instance_id=instance,
            auto_offset_reset="earliest", enable_auto_commit=False,
        )  # fmt: skip
        await consumer.start()
        async with asyncio.timeout(WAIT_S):
            found = [int((await consumer.getone()).value) for _ in range(100)]
        await consumer.commit()
        assert [await consumer.committed(each) for each in consumer.assignment()] == [100]
        await consumer.stop()
        assert found == list(range(100))


def consumed_by_kafka_python(bootstrap: str) -> list[int]:
    consumer = KafkaConsumer(
        "python-group", bootstrap_servers=bootstrap, group_id="python", auto_offset_reset="earliest",
        consumer_timeout_ms=WAIT_S * 1_000,
    )  # fmt: skip
    found = [int(next(consumer).value) for _ in range(100)]
    consumer.commit()
    consumer.close()
    return found


def test_a_kill_loses_and_repeats_nothing_of_idempotent_producers_and_forgets_no_commit(tmp_path: Path) -> None:
    verdict = run_kills(1, 1, tmp_path)
    assert verdict["passed"], verdict


def test_an_admin_client_makes_topics_and_sees_groups(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic("made", 3, 1, config={"retention.ms": "3600000"})])
    made["made"].result(WAIT_S)
    admin.create_partitions([NewPartitions("made", 5)])["made"].result(WAIT_S)
    assert len(admin.list_topics("made", WAIT_S).topics["made"].partitions) == 5
    numbers(bootstrap, "made", range(50))
    members = GroupMembers(bootstrap, "made", 1)
    members.wait(lambda seen: len(seen) >= 50)
    described = admin.describe_consumer_groups(["group of made"])["group of made"].result(WAIT_S)
    assert sum(len(member.assignment.topic_partitions) for member in described.members) == 5
    members.stop()
    assert "group of made" in [each.group_id for each in admin.list_consumer_groups().result(WAIT_S).valid]
    admin.delete_consumer_groups(["group of made"])["group of made"].result(WAIT_S)
    python = KafkaAdminClient(bootstrap_servers=bootstrap)
    assert "made" in python.list_topics()
    python.close()


def test_an_admin_client_changes_configurations_and_deletes_records_and_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    produce(bootstrap, "doomed", 50)
    topic = ConfigResource(ConfigResource.Type.TOPIC, "doomed")
    topic.add_incremental_config(ConfigEntry("retention.ms", "120000", incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([topic])[topic].result(WAIT_S)
    assert admin.describe_configs([topic])[topic].result(WAIT_S)["retention.ms"].value == "120000"
    refused = ConfigResource(ConfigResource.Type.TOPIC, "doomed")
    refused.add_incremental_config(ConfigEntry("segment.ms", "1", incremental_operation=AlterConfigOpType.SET))
    with pytest.raises(KafkaException, match=r"segment\.ms=1 has no effect here"):
        admin.incremental_alter_configs([refused])[refused].result(WAIT_S)

    place = TopicPartition("doomed", 0, 20)
    assert admin.delete_records([place])[place].result(WAIT_S).low_watermark == 20
    assert [message.offset() for message in read_back(bootstrap, "doomed")] == list(range(20, 50))
    python = KafkaAdminClient(bootstrap_servers=bootstrap)
    cluster = python.describe_cluster()
    assert [broker["broker_id"] for broker in cluster["brokers"]] == [cluster["controller_id"]] == [0]
    python.delete_topics(["doomed"])
    assert "doomed" not in python.list_topics()
    python.close()


def groups(bootstrap: str, *arguments: str) -> Any:
    done = run_magnetar("groups", *arguments, "--json", "--bootstrap", bootstrap)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_command_line_shows_moves_and_deletes_a_group(bootstrap: str) -> None:
    numbers(bootstrap, "moved", range(30))
    members = GroupMembers(bootstrap, "moved", 1)
    members.wait(lambda seen: len(seen) >= 30)
    name, running = "group of moved", groups(bootstrap, "describe", "group of moved")
    assert (running["state"], running["members"]) == ("Stable", 1)
    assert all(each["member"] for each in running["partitions"])
    refused = run_magnetar("groups", "reset-offsets", name, "--to", "earliest", "--bootstrap", bootstrap)
    assert (refused.returncode, "has members" in refused.stderr) == (1, True)
    members.stop()
    assert {"group": name, "state": "Empty", "type": "consumer"} in groups(bootstrap, "list")
    (row,) = groups(bootstrap, "describe", name)["partitions"]
    assert (row["committed"], row["end"], row["lag"], row["member"]) == (30, 30, 0, None)

    moved = {"topic": "moved", "partition": 0, "before": 30, "after": 25}
    assert groups(bootstrap, "reset-offsets", name, "--to", "-5", "--dry-run") == [moved]
    assert groups(bootstrap, "describe", name)["partitions"] == [row]
    assert groups(bootstrap, "reset-offsets", name, "--to", "index:10") == [moved | {"after": 10}]
    assert groups(bootstrap, "reset-offsets", name, "--to", "-10m") == [moved | {"before": 10, "after": 0}]
    assert groups(bootstrap, "reset-offsets", name, "--to", "time:0", "--topic", "moved")[0]["after"] == 0
    assert groups(bootstrap, "describe", name)["partitions"][0]["lag"] == 30
    deleted = run_magnetar("groups", "delete", name, "--yes", "--bootstrap", bootstrap)
    assert deleted.returncode == 0
    missing = run_magnetar("groups", "describe", name, "--bootstrap", bootstrap)
    assert (missing.returncode, "does not exist" in missing.stderr) == (1, True)
