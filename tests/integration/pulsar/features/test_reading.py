from __future__ import annotations

import contextlib
import time

import pulsar
import pytest

from magnetar.testing.processes.child import wait_for
from tests.integration.pulsar.features.conftest import PATIENCE_MS, Server, is_quiet, messages, send_texts, texts
from tests.integration.pulsar.features.test_subscriptions import path_of


def read_all(reader: pulsar.Reader) -> list[str]:
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(PATIENCE_MS).data().decode())
    return found


# --- readers ----------------------------------------------------------------------------------------------------------


def test_a_reader_reads_from_the_beginning(client: pulsar.Client, topic: str) -> None:
    sent = send_texts(client, topic, 5)
    assert read_all(client.create_reader(topic, pulsar.MessageId.earliest)) == sent


def test_a_reader_from_the_end_sees_only_what_comes(client: pulsar.Client, topic: str) -> None:
    send_texts(client, topic, 5)
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    assert not reader.has_message_available()
    sent = send_texts(client, topic, 2, first=5)
    assert [reader.read_next(PATIENCE_MS).data().decode() for _ in range(2)] == sent


@pytest.mark.parametrize("inclusive", [False, True])
def test_a_reader_begins_behind_a_message_or_with_it(client: pulsar.Client, topic: str, inclusive: bool) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(f"m-{number}".encode()) for number in range(5)]
    reader = client.create_reader(topic, ids[2], start_message_id_inclusive=inclusive)
    assert read_all(reader) == [f"m-{number}" for number in range(2 if inclusive else 3, 5)]


def test_a_reader_begins_inside_a_batch(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    send_texts(client, topic, 10, batching_enabled=True, batching_max_publish_delay_ms=100)
    ids = [message.message_id() for message in messages(consumer, 10)]
    reader = client.create_reader(topic, ids[6])
    assert read_all(reader) == ["m-7", "m-8", "m-9"]


def test_a_reader_seeks(client: pulsar.Client, topic: str) -> None:
    sent = send_texts(client, topic, 5)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert read_all(reader) == sent
    reader.seek(pulsar.MessageId.earliest)
    assert read_all(reader) == sent


def test_a_reader_seeks_to_a_message(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(f"m-{number}".encode()) for number in range(5)]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert len(read_all(reader)) == 5
    reader.seek(ids[2])
    assert read_all(reader) == ["m-3", "m-4"]
    reader.seek(ids[0])
    assert read_all(reader) == ["m-1", "m-2", "m-3", "m-4"]


@pytest.mark.parametrize("start", [pulsar.MessageId.earliest, pulsar.MessageId.latest], ids=["earliest", "latest"])
@pytest.mark.quiet_owner(reason="a reader that sought a time comes back to where it began")
def test_a_reader_seeks_to_a_time(client: pulsar.Client, topic: str, start: pulsar.MessageId) -> None:
    send_texts(client, topic, 3)
    between = int(time.time() * 1000) + 1  # The broker goes by its own clock, which is read after the producer's.
    wait_for(lambda: time.time() * 1000 > between, what="a later time")
    sent = send_texts(client, topic, 3, first=3)
    reader = client.create_reader(topic, start)
    reader.seek(between)
    assert [reader.read_next(PATIENCE_MS).data().decode() for _ in range(3)] == sent
    reader.seek(between)
    assert [reader.read_next(PATIENCE_MS).data().decode() for _ in range(3)] == sent


def test_a_reader_of_a_terminated_topic_stays_connected(server: Server, topic: str) -> None:
    """With a client of its own: the C++ client drops its connection when it hears of the end, and comes back."""
    client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    name = topic.removeprefix("persistent://")
    server.admin("PUT", f"persistent/{name}")
    server.admin("POST", f"persistent/{name}/terminate")
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    assert not reader.has_message_available()
    wait_for(reader.is_connected, what="the reader is back", timeout=20)
    with contextlib.suppress(pulsar.AlreadyClosed):
        client.close()


def test_an_empty_topic_has_nothing_to_read(client: pulsar.Client, topic: str) -> None:
    assert not client.create_reader(topic, pulsar.MessageId.earliest).has_message_available()


# --- seek -------------------------------------------------------------------------------------------------------------


def test_a_subscription_goes_back_to_a_message(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    sent = send_texts(client, topic, 6)
    found = messages(consumer, 6)
    for message in found:
        consumer.acknowledge(message)
    consumer.seek(found[2].message_id())
    assert texts(consumer, 3) == sent[3:]
    assert is_quiet(consumer)


def test_a_subscription_goes_back_to_the_beginning_and_to_the_end(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    sent = send_texts(client, topic, 4)
    assert texts(consumer, 4) == sent
    consumer.seek(pulsar.MessageId.earliest)
    assert texts(consumer, 4) == sent
    consumer.seek(pulsar.MessageId.earliest)
    consumer.seek(pulsar.MessageId.latest)
    assert is_quiet(consumer)


def test_a_subscription_goes_to_a_time(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    send_texts(client, topic, 3)
    before = messages(consumer, 3)
    for message in before:
        consumer.acknowledge(message)
    between = int(time.time() * 1000) + 1  # The broker goes by its own clock, which is read after the producer's.
    wait_for(lambda: time.time() * 1000 > between, what="a later time")
    sent = send_texts(client, topic, 3, first=3)
    texts(consumer, 3)
    consumer.seek(between)
    assert texts(consumer, 3) == sent
    assert is_quiet(consumer)


def test_the_last_message_id_is_that_of_the_last_message(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for number in range(3):
        last = producer.send(f"m-{number}".encode())
    found = consumer.get_last_message_id()
    assert (found.ledger_id(), found.entry_id()) == (last.ledger_id(), last.entry_id())


# --- compaction -------------------------------------------------------------------------------------------------------


def compact(server: Server, topic: str) -> None:
    """Begins again where a topic has moved: its next owner knows nothing of a compaction that was in progress."""
    path = f"{path_of(topic)}/compaction"
    server.admin("PUT", path)

    def has_ended() -> bool:
        status = server.admin("GET", path)["status"]
        if status == "NOT_RUN":
            server.admin("PUT", path)
        return bool(status == "SUCCESS")

    wait_for(has_ended, what="the end", timeout=30)


@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_a_compacted_read_sees_the_last_value_of_each_key(
    client: pulsar.Client, server: Server, topic: str, batched: bool
) -> None:
    producer = client.create_producer(topic, batching_enabled=batched)
    for number in range(20):
        producer.send_async(f"{number}".encode(), None, partition_key=f"k{number % 4}")
    producer.send_async(b"", None, partition_key="k0")
    producer.flush()
    compact(server, topic)
    producer.send(b"after", partition_key="k9")
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        message = reader.read_next(PATIENCE_MS)
        if message.partition_key():  # The client shows what was compacted out of a batch as an empty message.
            found.append((message.partition_key(), message.data().decode()))
    assert found == [("k1", "17"), ("k2", "18"), ("k3", "19"), ("k9", "after")]


@pytest.mark.quiet_owner(reason="the client drops a chunked message whose first chunk comes again")
def test_a_compacted_read_sees_messages_in_chunks_whole(client: pulsar.Client, server: Server, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    large = 6 * 2**20
    for letter, key in (("a", "k0"), ("b", "k1"), ("c", "k0")):
        producer.send(letter.encode() * large, partition_key=key)
    producer.send(b"small", partition_key="k1")
    compact(server, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        message = reader.read_next(PATIENCE_MS)
        found.append((message.partition_key(), len(message.data()), message.data()[:1]))
    assert found == [("k0", large, b"c"), ("k1", 5, b"s")]


def test_a_table_view_holds_the_last_value_of_each_key(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    for number in range(9):
        producer.send(f"{number}".encode(), partition_key=f"k{number % 3}")
    table = client.create_table_view(topic)
    assert [table.get(f"k{number}") for number in range(3)] == [b"6", b"7", b"8"]
    producer.send(b"new", partition_key="k0")
    wait_for(lambda: table.get("k0") == b"new", what="the new value")
    table.close()
