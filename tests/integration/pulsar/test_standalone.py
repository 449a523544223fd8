"""The official client on a real process: the way of one message, and what a kill leaves. Features have tests of their
own."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pulsar
import pytest

from magnetar.testing.processes.servers import MAGNETAR, StandaloneProcess
from tests.integration.pulsar.conftest import connect

WAIT_MS = 20_000
EARLIEST = pulsar.InitialPosition.Earliest
TYPES = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "shared": pulsar.ConsumerType.Shared,
    "failover": pulsar.ConsumerType.Failover,
    "key-shared": pulsar.ConsumerType.KeyShared,
}


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_what_is_published_is_consumed_in_order_on_every_kind_of_subscription(client: pulsar.Client, kind: str) -> None:
    topic = f"order-{kind}"
    consumer = client.subscribe(topic, "s", TYPES[kind])
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1)
    for number in range(200):
        producer.send_async(str(number).encode(), None)
    producer.flush()
    for number in range(200):
        message = consumer.receive(WAIT_MS)
        assert message.data() == str(number).encode()
        consumer.acknowledge(message)


def test_a_reader_reads_all_and_then_has_nothing_more(client: pulsar.Client) -> None:
    producer = client.create_producer("read")
    for number in range(20):
        producer.send(str(number).encode())
    reader = client.create_reader("read", pulsar.MessageId.earliest)
    seen = []
    while reader.has_message_available():
        seen.append(int(reader.read_next(WAIT_MS).data()))
    assert seen == list(range(20))


def test_large_messages_go_in_chunks(client: pulsar.Client) -> None:
    consumer = client.subscribe("chunks", "s")
    payload = bytes(range(256)) * 30_000
    client.create_producer("chunks", chunking_enabled=True).send(payload)
    assert consumer.receive(WAIT_MS).data() == payload


def test_acknowledged_messages_survive_a_kill_each_once_and_in_order(mortal: StandaloneProcess) -> None:
    client = connect(mortal)
    producer = client.create_producer(
        "t", "me", batching_enabled=True, batching_max_messages=20, block_if_queue_full=True, send_timeout_millis=0
    )
    consumer = client.subscribe("t", "s")
    acknowledged: list[int] = []

    def on_answer(number: int) -> object:
        return lambda result, _id: acknowledged.append(number) if result == pulsar.Result.Ok else None

    for number in range(3_000):
        producer.send_async(str(number).encode(), on_answer(number))
        if number == 2_000:
            mortal.kill()
            mortal.start()
    producer.flush()
    received = []
    while len(set(received)) < 3_000:
        message = consumer.receive(WAIT_MS)
        received.append(int(message.data()))
        consumer.acknowledge(message)
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    stored = []
    while reader.has_message_available():
        stored.append(int(reader.read_next(WAIT_MS).data()))
    client.close()
    assert sorted(acknowledged) == list(range(3_000))
    assert stored == list(range(3_000))


def test_a_graceful_stop_keeps_every_acknowledgement(mortal: StandaloneProcess) -> None:
    client = connect(mortal)
    producer, consumer = client.create_producer("t"), client.subscribe("t", "s", pulsar.ConsumerType.Shared)
    for number in range(10):
        producer.send(str(number).encode())
    messages = [consumer.receive(WAIT_MS) for _ in range(10)]
    for message in messages[::2]:
        consumer.acknowledge(message)
    client.close()
    assert mortal.stop() == 0
    mortal.start()
    client = connect(mortal)
    again = client.subscribe("t", "s", pulsar.ConsumerType.Shared)
    assert [again.receive(WAIT_MS).data() for _ in range(5)] == [b"1", b"3", b"5", b"7", b"9"]
    client.close()


def test_a_port_that_is_taken_is_said_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [*MAGNETAR, "standalone", "--dir", str(tmp_path / "d"), "--http-port", "0", "--port"]
        done = subprocess.run(
            [*command, str(taken.getsockname()[1])], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    assert "choose another with --port" in done.stderr
