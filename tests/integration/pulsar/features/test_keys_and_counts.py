"""Keys inside batches, and how often a message was delivered."""

from __future__ import annotations

import time

import pulsar
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from pulsar.schema import ProtobufNativeSchema

from tests.integration.pulsar.features.conftest import (
    PATIENCE_MS,
    Server,
    drain,
    messages,
    require_next_count,
    send_texts,
)
from tests.integration.pulsar.features.test_subscriptions import path_of

SHARED = pulsar.ConsumerType.Shared


@pytest.mark.quiet_owner(reason="keys go to other consumers until all have come back after a move")
def test_batches_by_key_go_to_the_consumer_of_their_key(client: pulsar.Client, topic: str) -> None:
    kind = pulsar.ConsumerType.KeyShared
    consumers = [client.subscribe(topic, "s", kind, consumer_name=name) for name in "ab"]
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased, batching_max_publish_delay_ms=50
    )
    for number in range(120):
        producer.send_async(str(number).encode(), None, partition_key=f"key-{number % 12}")
    producer.flush()
    owners: dict[str, set[int]] = {}
    numbers: dict[str, list[int]] = {}
    for which, got in enumerate(drain(*consumers, count=120)):
        for message in got:
            owners.setdefault(message.partition_key(), set()).add(which)
            numbers.setdefault(message.partition_key(), []).append(int(message.data()))
    assert sorted(len(who) for who in owners.values()) == [1] * 12
    assert all(seen == sorted(seen) and len(seen) == 10 for seen in numbers.values())


def test_a_redelivery_count_is_kept_while_there_is_a_consumer_and_begins_again_without(
    client: pulsar.Client, server: Server, topic: str
) -> None:
    settings = {"consumer_type": SHARED, "negative_ack_redelivery_delay_ms": 50}
    consumer = client.subscribe(topic, "s", **settings)
    send_texts(client, topic, 1)
    began, count = time.monotonic(), -1
    while count < 2:
        message = consumer.receive(PATIENCE_MS)
        before, count = count, message.redelivery_count()
        require_next_count(server, topic, count, before, began)
        consumer.negative_acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", **settings)
    assert messages(again, 1)[0].redelivery_count() == 0
    again.close()


def test_messages_of_a_protobuf_native_schema_come_back(client: pulsar.Client, server: Server, topic: str) -> None:
    schema = ProtobufNativeSchema(Timestamp)
    consumer = client.subscribe(topic, "s", schema=schema)
    client.create_producer(topic, schema=schema).send(Timestamp(seconds=5, nanos=7))
    assert consumer.receive(PATIENCE_MS).value() == Timestamp(seconds=5, nanos=7)
    name = path_of(topic).removeprefix("persistent/")
    assert server.admin("GET", f"schemas/{name}/schema")["type"] == "PROTOBUF_NATIVE"


def test_a_consumer_takes_messages_in_groups(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerBatchReceivePolicy(10, 2**20, 500)
    consumer = client.subscribe(topic, "s", batch_receive_policy=policy)
    sent = send_texts(client, topic, 25)
    found: list[str] = []
    while len(found) < 25:
        group = consumer.batch_receive()
        assert len(group) <= 10
        found += [message.data().decode() for message in group]
        for message in group:
            consumer.acknowledge(message)
    assert found == sent
    consumer.close()
