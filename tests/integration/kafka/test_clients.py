"""Real Kafka clients on a real process, and what a client of Pulsar sees of the same topics."""

from __future__ import annotations

import asyncio
import itertools

import pulsar
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from magnetar.testing.processes.servers import StandaloneProcess
from tests.integration.pulsar.conftest import connect
from workloads.kafka_load import read_back

WAIT_S = 20
FIRST_MS = 1_700_000_000_000
HEADERS = [("a", b"1"), ("n", None), ("b", b"\xff")]


def produce(bootstrap: str, topic: str, count: int, **settings: object) -> list[int]:
    """Returns the offsets."""
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    offsets: list[int] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for number in range(count):
        producer.produce(
            topic,
            b"value %d" % number,
            key=b"key %d" % (number % 5),
            headers=HEADERS,
            timestamp=FIRST_MS + number,
            on_delivery=on_delivery,
        )
    assert producer.flush(WAIT_S) == 0
    return offsets


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_back_what_it_wrote_with_every_compression_and_pulsar_reads_it_too(
    bootstrap: str, standalone: StandaloneProcess, codec: str
) -> None:
    topic = f"codec-{codec}"
    assert produce(bootstrap, topic, 500, **{"compression.type": codec}) == list(range(500))
    more = {"compression.type": codec, "enable.idempotence": True, "linger.ms": 0}
    assert produce(bootstrap, topic, 500, **more) == list(range(500, 1_000))
    found = list(read_back(bootstrap, topic))
    assert [message.offset() for message in found] == list(range(1_000))
    for message, number in zip(found, itertools.chain(range(500), range(500)), strict=True):
        assert (message.key(), message.value()) == (b"key %d" % (number % 5), b"value %d" % number)
        assert (message.headers(), message.timestamp()[1]) == (HEADERS, FIRST_MS + number)
    client = connect(standalone)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        for message in found:
            other = reader.read_next(WAIT_S * 1_000)
            assert (other.partition_key().encode(), other.data()) == (message.key(), message.value())
            assert other.event_timestamp() == message.timestamp()[1]
            assert other.properties() == {"a": "1", "n": "", "b": "/w==", "kafka.b64": "b", "kafka.null": "n"}
    finally:
        client.close()


def test_librdkafka_reads_what_pulsar_wrote_between_its_own_messages(
    bootstrap: str, standalone: StandaloneProcess
) -> None:
    produce(bootstrap, "mixed", 2)
    client = connect(standalone)
    producer = client.create_producer(
        "mixed", batching_enabled=True, compression_type=pulsar.CompressionType.LZ4, batching_max_publish_delay_ms=50
    )
    for number in range(3):
        producer.send_async(b"batched %d" % number, None, partition_key="k", properties={"a": "b"}, event_timestamp=9)
    producer.flush()
    client.close()
    produce(bootstrap, "mixed", 1)
    found = [(message.offset(), message.value()) for message in read_back(bootstrap, "mixed")]
    batched = [(2 + number, b"batched %d" % number) for number in range(3)]
    assert found == [(0, b"value 0"), (1, b"value 1"), *batched, (5, b"value 0")]


def test_large_messages_and_many_partitions_pass(bootstrap: str, standalone: StandaloneProcess) -> None:
    large = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 2_000_000, "enable.idempotence": True})
    payload = bytes(range(256)) * 7_000
    for _ in range(4):
        large.produce("large", payload)
    assert large.flush(WAIT_S) == 0
    assert [message.value() for message in read_back(bootstrap, "large")] == [payload] * 4


def test_offsets_are_found_by_time_and_at_both_ends(bootstrap: str) -> None:
    produce(bootstrap, "times", 100)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    partition = TopicPartition("times", 0)
    assert consumer.get_watermark_offsets(partition, WAIT_S) == (0, 100)
    times = {FIRST_MS + 40: 40, FIRST_MS - 5: 0, FIRST_MS + 100: -1}
    for timestamp, offset in times.items():
        (found,) = consumer.offsets_for_times([TopicPartition("times", 0, timestamp)], WAIT_S)
        assert found.offset == offset
    consumer.close()


def test_kafka_python_reads_back_what_it_wrote(bootstrap: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type="gzip")
    sent = [producer.send("python", b"v%d" % number, key=b"k", headers=[("a", b"b")]) for number in range(100)]
    assert [each.get(WAIT_S).offset for each in sent] == list(range(100))
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    partition = PythonPartition("python", 0)
    consumer.assign([partition])
    consumer.seek_to_beginning()
    assert (consumer.beginning_offsets([partition]), consumer.end_offsets([partition])) == (
        {partition: 0},
        {partition: 100},
    )
    found = list(itertools.islice(consumer, 100))
    assert [(each.offset, each.value, each.headers) for each in found] == [
        (number, b"v%d" % number, [("a", b"b")]) for number in range(100)
    ]
    consumer.close()


async def test_aiokafka_reads_back_what_it_wrote(bootstrap: str) -> None:
    for is_idempotent in (False, True):
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=is_idempotent)
        await producer.start()
        for number in range(20):
            await producer.send_and_wait("aio", b"%d" % number, partition=0)
        await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign([AioPartition("aio", 0)])
    async with asyncio.timeout(WAIT_S):
        found = [await consumer.getone() for _ in range(40)]
    assert [(each.offset, each.value) for each in found] == [(n, b"%d" % (n % 20)) for n in range(40)]
    await consumer.stop()
