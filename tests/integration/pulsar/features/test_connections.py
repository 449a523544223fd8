"""Connections that are lost and found again, and what a client may say about who it is."""

from __future__ import annotations

import pulsar
import pytest

from tests.integration.pulsar.features.conftest import PATIENCE_MS, Server, messages, send_texts, texts

KINDS = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "shared": pulsar.ConsumerType.Shared,
    "failover": pulsar.ConsumerType.Failover,
    "key-shared": pulsar.ConsumerType.KeyShared,
}


def unload(server: Server, topic: str) -> None:
    """The broker closes its producers and consumers, which look it up again."""
    server.admin("PUT", "persistent/" + topic.removeprefix("persistent://") + "/unload")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_consumer_has_permits_again_after_it_came_back(
    client: pulsar.Client, server: Server, topic: str, kind: str
) -> None:
    consumer = client.subscribe(topic, "s", KINDS[kind], receiver_queue_size=5)
    producer = client.create_producer(topic)
    for round_number in range(3):
        sent = [f"{round_number}-{number}" for number in range(20)]
        for text in sent[:10]:
            producer.send(text.encode())
        assert texts(consumer, 5) == sent[:5]
        unload(server, topic)
        for text in sent[10:]:
            producer.send(text.encode())
        rest = set(sent[5:])
        while rest:  # Acknowledgements in progress are lost with the connection: their messages come again.
            rest -= set(texts(consumer, 1))
    consumer.close()


def test_a_producer_goes_on_after_it_came_back_in_order_and_once(
    client: pulsar.Client, server: Server, namespace: str
) -> None:
    server.admin("POST", f"namespaces/{namespace}/deduplication", True)
    topic = f"persistent://{namespace}/t"
    producer = client.create_producer(topic, "me", batching_enabled=True, send_timeout_millis=0)
    for number in range(300):
        producer.send_async(b"%d" % number, None)
        if number % 100 == 50:
            unload(server, topic)
    producer.flush()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [int(reader.read_next(PATIENCE_MS).data()) for _ in range(300)] == list(range(300))
    assert not reader.has_message_available()


def test_a_reader_goes_on_where_it_was_after_it_came_back(client: pulsar.Client, server: Server, topic: str) -> None:
    sent = send_texts(client, topic, 10)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1)
    assert [reader.read_next(PATIENCE_MS).data().decode() for _ in range(5)] == sent[:5]
    unload(server, topic)
    assert [reader.read_next(PATIENCE_MS).data().decode() for _ in range(5)] == sent[5:]


def test_credentials_that_nobody_asked_for_are_no_obstacle(server: Server, topic: str) -> None:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(server.url, authentication=pulsar.AuthenticationToken("anything"), logger=quiet)
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"x")
    assert messages(consumer, 1)[0].data() == b"x"
    client.close()


def test_a_client_that_wants_tls_is_not_served(server: Server, topic: str) -> None:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    url = server.url.replace("pulsar://", "pulsar+ssl://")
    client = pulsar.Client(url, logger=quiet, operation_timeout_seconds=2, connection_timeout_ms=2_000)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    client.close()
