from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pulsar
import pytest

from magnetar.testing.processes.child import wait_for
from tests.integration.pulsar.features.conftest import (
    PATIENCE_MS,
    Server,
    assert_refused,
    is_quiet,
    key_reader,
    messages,
    send_texts,
    texts,
)

COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


def test_a_message_comes_back_with_everything_that_was_sent(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name=f"maker-of-{topic[-8:]}")
    producer.send(
        b"body", properties={"a": "1", "b": "2"}, partition_key="key", ordering_key="order", event_timestamp=5
    )
    message = consumer.receive(PATIENCE_MS)
    assert message.data() == b"body"
    assert message.properties() == {"a": "1", "b": "2"}
    assert (message.partition_key(), message.ordering_key(), message.event_timestamp()) == ("key", "order", 5)
    assert message.producer_name() == producer.producer_name()
    assert message.topic_name() == topic


def test_an_empty_message_is_a_message(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"")
    assert texts(consumer, 1) == [""]


def test_message_ids_of_one_producer_grow(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(b"x") for _ in range(20)]
    assert ids == sorted(ids)
    assert len({str(message_id) for message_id in ids}) == 20


def test_a_batch_comes_back_in_order_with_an_index_for_each_message(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    sent = send_texts(client, topic, 100, batching_enabled=True, batching_max_publish_delay_ms=50)
    found = messages(consumer, 100)
    assert [message.data().decode() for message in found] == sent
    assert max(message.message_id().batch_index() for message in found) > 0


def test_batches_by_key_keep_the_order_of_each_key(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased, batching_max_publish_delay_ms=50
    )
    for number in range(40):
        producer.send_async(str(number).encode(), None, partition_key=f"k{number % 4}")
    producer.flush()
    found = [(message.partition_key(), int(message.data())) for message in messages(consumer, 40)]
    for key in ("k0", "k1", "k2", "k3"):
        numbers = [number for name, number in found if name == key]
        assert numbers == sorted(numbers)
        assert len(numbers) == 10


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda kind: str(kind).rpartition(".")[2])
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_compressed_messages_pass_through(
    client: pulsar.Client, topic: str, compression: pulsar.CompressionType, batched: bool
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, compression_type=compression, batching_enabled=batched)
    payload = b"compress me " * 1000
    for _ in range(10):
        producer.send_async(payload, None)
    producer.flush()
    assert [message.data() for message in messages(consumer, 10)] == [payload] * 10


@pytest.mark.quiet_owner(reason="the client drops a chunked message whose first chunk comes again")
def test_a_message_larger_than_a_frame_travels_in_chunks(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=True)
    payload = os.urandom(12 * 2**20)
    producer.send(payload)
    producer.send(b"small")
    assert consumer.receive(PATIENCE_MS).data() == payload
    assert consumer.receive(PATIENCE_MS).data() == b"small"


def test_a_message_over_the_limit_is_refused_and_the_next_one_is_not(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(6 * 2**20))
    producer.send(b"small")


def test_encrypted_messages_pass_through(client: pulsar.Client, topic: str, tmp_path: Path) -> None:
    reader = key_reader(tmp_path)
    consumer = client.subscribe(topic, "s", crypto_key_reader=reader)
    producer = client.create_producer(topic, encryption_key="client-key", crypto_key_reader=reader)
    producer.send(b"secret")
    assert texts(consumer, 1) == ["secret"]


def test_sequence_ids_are_the_callers_and_survive_a_new_producer(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, producer_name="numbered", initial_sequence_id=99)
    producer.send(b"x")
    assert producer.last_sequence_id() == 100
    producer.close()


def test_names_that_the_server_makes_are_unique(client: pulsar.Client, topic: str) -> None:
    names = [client.create_producer(topic).producer_name() for _ in range(5)]
    assert len(set(names)) == 5


def test_a_producers_name_is_taken_while_it_is_connected(client: pulsar.Client, topic: str, server: Server) -> None:
    first = client.create_producer(topic, producer_name="the-one")
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    other = pulsar.Client(server.url, logger=quiet, operation_timeout_seconds=5)
    assert_refused(
        server,
        topic,
        lambda: other.create_producer(topic, producer_name="the-one"),
        (pulsar.ProducerBusy, pulsar.Timeout),
    )
    first.close()
    other.create_producer(topic, producer_name="the-one").close()
    other.close()


# --- access modes -----------------------------------------------------------------------------------------------------


@pytest.mark.quiet_owner(reason="another producer may come first while the exclusive one comes back")
def test_an_exclusive_producer_shuts_others_out(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises((pulsar.ProducerBusy, pulsar.ProducerFenced, pulsar.Timeout)):
        client.create_producer(topic, producer_name="shared")
    first.close()
    client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive).send(b"x")


@pytest.mark.quiet_owner(reason="the producer that waits may come first while the exclusive one comes back")
def test_a_producer_that_waits_for_exclusive_access_gets_it(server: Server, topic: str) -> None:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    waits = pulsar.ProducerAccessMode.WaitForExclusive
    first_client, second_client = (pulsar.Client(server.url, logger=quiet) for _ in range(2))
    first_client.create_producer(topic, access_mode=waits).send(b"one")
    path = "persistent/" + topic.removeprefix("persistent://")
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(second_client.create_producer, topic, access_mode=waits)
        wait_for(lambda: server.admin("GET", f"{path}/stats")["waitingPublishers"] == 1, what="the second one")
        assert not second.done()
        first_client.close()
        second.result(PATIENCE_MS / 1000).send(b"two")
    reader = second_client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(PATIENCE_MS).data() for _ in range(2)] == [b"one", b"two"]
    second_client.close()


def test_an_exclusive_producer_with_fencing_takes_over(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    first.send(b"one")
    second = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)
    second.send(b"two")
    with pytest.raises(pulsar.PulsarException):
        first.send(b"three")
    second.close()


# --- partitions -------------------------------------------------------------------------------------------------------


def test_a_partitioned_topic_spreads_and_gathers(client: pulsar.Client, server: Server, topic: str) -> None:
    name = topic.rpartition("/")[2]
    server.admin("PUT", f"persistent/public/default/{name}/partitions", 3)
    assert sorted(client.get_topic_partitions(topic)) == [f"{topic}-partition-{number}" for number in range(3)]
    consumer = client.subscribe(topic, "s")
    sent = send_texts(client, topic, 30)
    found = messages(consumer, 30)
    assert sorted(message.data().decode() for message in found) == sorted(sent)
    assert len({message.topic_name() for message in found}) == 3


def test_more_partitions_are_seen_by_new_clients(client: pulsar.Client, server: Server, topic: str) -> None:
    name = topic.rpartition("/")[2]
    server.admin("PUT", f"persistent/public/default/{name}/partitions", 2)
    server.admin("POST", f"persistent/public/default/{name}/partitions", 4)
    assert len(client.get_topic_partitions(topic)) == 4


def test_one_key_stays_on_one_partition(client: pulsar.Client, server: Server, topic: str) -> None:
    server.admin("PUT", f"persistent/public/default/{topic.rpartition('/')[2]}/partitions", 4)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(str(number).encode(), partition_key=f"k{number % 5}")
    seen: dict[str, set[str]] = {}
    for message in messages(consumer, 20):
        seen.setdefault(message.partition_key(), set()).add(message.topic_name())
    assert all(len(partitions) == 1 for partitions in seen.values())


# --- other topics -----------------------------------------------------------------------------------------------------


def test_a_non_persistent_topic_delivers_to_those_who_listen(client: pulsar.Client, topic: str) -> None:
    volatile = topic.replace("persistent://", "non-persistent://", 1)
    producer = client.create_producer(volatile)
    producer.send(b"nobody hears this")
    consumer = client.subscribe(volatile, "s")
    producer.send(b"heard")
    assert texts(consumer, 1) == ["heard"]
    assert is_quiet(consumer)


@pytest.mark.parametrize("name", ["persistent://public/default", "persistent://nobody/default/t", "a//b", "///"])
def test_a_name_that_is_no_topic_is_refused(client: pulsar.Client, name: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(name, send_timeout_millis=3000)


def test_a_terminated_topic_takes_no_more_and_is_read_to_its_end(server: Server, topic: str) -> None:
    """Uses a client of its own: the C++ client closes its connection when a topic ends."""
    client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"last")
    server.admin("POST", f"persistent/public/default/{topic.rpartition('/')[2]}/terminate")
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"more")
    assert texts(consumer, 1) == ["last"]
    with contextlib.suppress(pulsar.AlreadyClosed):  # As it has, then.
        client.close()


# --- deduplication ----------------------------------------------------------------------------------------------------


def test_a_repeated_sequence_id_is_stored_once(client: pulsar.Client, server: Server, namespace: str) -> None:
    server.admin("POST", f"namespaces/{namespace}/deduplication", True)
    topic = f"persistent://{namespace}/dedup"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
    for sequence in (0, 1, 1, 0, 2):
        producer.send(f"m-{sequence}".encode(), sequence_id=sequence)
    producer.close()
    again = client.create_producer(topic, producer_name="p", batching_enabled=False)
    assert again.last_sequence_id() == 2
    again.send(b"m-2", sequence_id=2)
    again.send(b"m-3", sequence_id=3)
    assert texts(consumer, 4) == ["m-0", "m-1", "m-2", "m-3"]
    assert is_quiet(consumer)
