"""What a namespace allows: unacknowledged messages, producers, consumers, rates, age, backlog."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pulsar
import pytest

from tests.integration.pulsar.features.conftest import PATIENCE_MS, Server, assert_refused, is_quiet, send_texts, texts

SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest


def set_policy(server: Server, namespace: str, word: str, value: Any, method: str = "POST") -> None:
    server.admin(method, f"namespaces/{namespace}/{word}", value)


def in_namespace(namespace: str, name: str = "t") -> str:
    return f"persistent://{namespace}/{name}"


def test_a_consumer_gets_no_more_than_it_may_have_unacknowledged(
    client: pulsar.Client, server: Server, namespace: str
) -> None:
    set_policy(server, namespace, "maxUnackedMessagesPerConsumer", 10)
    consumer = client.subscribe(in_namespace(namespace), "s", SHARED)
    sent = send_texts(client, in_namespace(namespace), 30)
    held = [consumer.receive(PATIENCE_MS) for _ in range(10)]
    assert is_quiet(consumer)
    for message in held:
        consumer.acknowledge(message)
    assert texts(consumer, 20) == sent[10:]
    consumer.close()


def test_a_subscription_stops_at_what_all_its_consumers_have_unacknowledged(
    client: pulsar.Client, server: Server, namespace: str
) -> None:
    set_policy(server, namespace, "maxUnackedMessagesPerSubscription", 10)
    consumers = [client.subscribe(in_namespace(namespace), "s", SHARED) for _ in range(2)]
    other = client.subscribe(in_namespace(namespace), "other", SHARED)
    send_texts(client, in_namespace(namespace), 60)
    held = [(consumer, message) for consumer in consumers for message in _all_that_comes(consumer)]
    assert 10 <= len(held) < 60  # Apache stops after the limit, at the end of what it had read.
    for consumer, message in held:
        consumer.acknowledge(message)
    more = [message for consumer in consumers for message in _all_that_comes(consumer)]
    assert more
    other.close()
    for consumer in consumers:
        consumer.close()


def _all_that_comes(consumer: Any) -> list[pulsar.Message]:
    found = []
    while True:
        try:
            found.append(consumer.receive(1_000))
        except pulsar.Timeout:
            return found


def test_a_topic_has_as_many_producers_as_it_may(client: pulsar.Client, server: Server, namespace: str) -> None:
    set_policy(server, namespace, "maxProducersPerTopic", 1)
    first = client.create_producer(in_namespace(namespace))
    topic = in_namespace(namespace)
    assert_refused(server, topic, lambda: client.create_producer(topic), pulsar.PulsarException)
    first.close()
    client.create_producer(topic).close()


def test_a_topic_has_as_many_consumers_as_it_may(client: pulsar.Client, server: Server, namespace: str) -> None:
    set_policy(server, namespace, "maxConsumersPerTopic", 1)
    first = client.subscribe(in_namespace(namespace), "s", SHARED)
    topic = in_namespace(namespace)
    assert_refused(server, topic, lambda: client.subscribe(topic, "s", SHARED), pulsar.PulsarException)
    first.close()
    client.subscribe(in_namespace(namespace), "s", SHARED).close()


def test_a_dispatch_rate_slows_a_consumer_down_and_loses_nothing(
    client: pulsar.Client, server: Server, namespace: str
) -> None:
    rate = {"dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    set_policy(server, namespace, "subscriptionDispatchRate", rate)
    consumer = client.subscribe(in_namespace(namespace), "s", SHARED)
    sent = send_texts(client, in_namespace(namespace), 30)
    began = time.monotonic()
    assert texts(consumer, 30) == sent
    assert time.monotonic() - began > 0.9
    consumer.close()


def test_a_backlog_over_its_quota_refuses_producers(client: pulsar.Client, server: Server, namespace: str) -> None:
    """At once for new ones, when the backlog is looked at for those that are connected."""
    quota = {"limitSize": 1000, "limit": 1000, "limitTime": -1, "policy": "producer_exception"}
    set_policy(server, namespace, "backlogQuota?backlogQuotaType=destination_storage", quota)
    topic = in_namespace(namespace)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    with contextlib.suppress(pulsar.ProducerBlockedQuotaExceededException):  # It has come back after a move.
        for _ in range(20):
            producer.send(bytes(200))
    producer.close()
    with pytest.raises(pulsar.PulsarException):
        _producers_until_refused(client, topic)
    consumer.close()


def _producers_until_refused(client: pulsar.Client, topic: str) -> None:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        client.create_producer(topic).close()


def test_a_topic_is_not_made_where_that_is_switched_off(client: pulsar.Client, server: Server, namespace: str) -> None:
    set_policy(server, namespace, "autoTopicCreation", {"allowAutoTopicCreation": False})
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(in_namespace(namespace, "nobody-made-me"))
