"""Clients of Kafka on a cluster of three brokers, of which a random bundle is unloaded every second."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from interop.java_program import JavaProgram
from interop.kafka import tools
from interop.kafka.conftest import Server
from interop.kafka.test_java import numbers, records
from workloads.kafka_load import GroupMembers, NumberedProducer, number_of, read_back, tally

RATE = 1_000
MESSAGES = 10_000
MOVES_MIN = 5
JAVA_MESSAGES = 2_000
VERIFIED = 6_000
_SETTINGS = {"group.id": "java", "auto.offset.reset": "earliest", "enable.auto.commit": "false"}


def make_topic(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)


def test_an_idempotent_producer_and_a_group_lose_and_repeat_nothing_while_bundles_move(cluster: Server) -> None:
    moving = cluster.moving
    assert moving is not None
    make_topic(cluster.bootstrap, "moving", 1)
    before = moving.unloads
    producer = NumberedProducer(cluster.bootstrap, "moving", RATE)
    members = GroupMembers(cluster.bootstrap, "moving", 3)
    members.wait(lambda seen: len(seen) >= MESSAGES and moving.unloads >= before + MOVES_MIN, 90)
    producer.finish()
    wanted = set(range(producer.sent))
    members.wait(lambda seen: len(seen) >= len(wanted) and set(seen) >= wanted)
    committed = members.stop()
    found = tally([number_of(message) for message in read_back(cluster.bootstrap, "moving")], producer.acknowledged)
    assert not producer.failures, producer.failures[:3]
    assert found.passed, found
    assert (found.messages, committed) == (producer.sent, [producer.sent])


async def test_the_java_client_produces_and_consumes_in_a_group_while_bundles_move(
    cluster: Server, program: JavaProgram
) -> None:
    await asyncio.to_thread(make_topic, cluster.bootstrap, "java-moving", 1)
    produce = {"bootstrap": cluster.bootstrap, "topic": "java-moving", "single": True}
    offsets = await program.ask("produce", **produce, settings={"linger.ms": "0"}, records=records(JAVA_MESSAGES))
    assert offsets == list(range(JAVA_MESSAGES))
    consume = {"bootstrap": cluster.bootstrap, "topic": "java-moving", "settings": _SETTINGS}
    found = await program.ask("consume", **consume, count=JAVA_MESSAGES)
    assert numbers(found["values"]) == list(range(JAVA_MESSAGES))
    assert found["committed"] == {"0": JAVA_MESSAGES}


def test_a_verifiable_producer_gets_every_acknowledgement_while_bundles_move(cluster: Server, directory: Path) -> None:
    make_topic(cluster.bootstrap, "verified", 4)
    shell = tools.Tools(cluster.bootstrap, directory)
    config = directory / "retrying.properties"  # The tool itself turns retries off.
    config.write_text("retries=1000000\nenable.idempotence=true\n")
    lines = shell.run(
        tools.VERIFIABLE_PRODUCER, "--topic", "verified", "--max-messages", str(VERIFIED), "--throughput", "1000",
        "--command-config", str(config),
    )  # fmt: skip
    events = [json.loads(line) for line in lines.splitlines()]
    assert not [each for each in events if each["name"] == "producer_send_error"]
    stored = sorted(int(each["value"]) for each in events if each["name"] == "producer_send_success")
    assert stored == list(range(VERIFIED))
