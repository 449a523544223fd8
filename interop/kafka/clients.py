"""Every client that takes part in the matrix, behind two calls: write the records of a shape, and read a partition."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import kafka.codec
import pulsar
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from interop.java_program import JavaProgram
from interop.kafka.records import PULSAR_SHAPES, SHAPES, WITHOUT_NULL_HEADERS, PulsarView, Record, Shape

WAIT_S = 60
_BATCH_BYTES = 1_000_000
_LINGER_MS = 500
_FETCH_WAIT_MS = 20  # A consumer that closes waits for its last fetch.
_PULSAR_CODECS = {
    "none": pulsar.CompressionType.NONE,
    "gzip": pulsar.CompressionType.ZLib,
    "snappy": pulsar.CompressionType.SNAPPY,
    "lz4": pulsar.CompressionType.LZ4,
    "zstd": pulsar.CompressionType.ZSTD,
}


@dataclass(frozen=True, slots=True)
class Seen:
    offset: int
    content: Record | PulsarView


class Client(Protocol):
    @property
    def shapes(self) -> Sequence[Shape]: ...

    async def write(self, topic: str, shape: Shape) -> None: ...

    async def read(self, topic: str, count: int) -> list[Seen]: ...

    def can_read(self, codec: str) -> bool: ...


class Confluent:
    shapes = SHAPES

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def can_read(self, codec: str) -> bool:
        del codec
        return True

    async def write(self, topic: str, shape: Shape) -> None:
        failures: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(error)

        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "compression.type": shape.codec,
                "linger.ms": 0 if shape.is_single else _LINGER_MS,
                "batch.num.messages": 1 if shape.is_single else len(shape.records),
                "enable.idempotence": True,
            }
        )
        for each in shape.records:
            producer.produce(
                topic, each.value, each.key, partition=0, timestamp=each.timestamp, headers=list(each.headers),
                on_delivery=on_delivery,
            )  # fmt: skip
        assert producer.flush(WAIT_S) == 0
        assert not failures, failures

    async def read(self, topic: str, count: int) -> list[Seen]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
            }
        )
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[Seen] = []
        while len(found) < count:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"only {len(found)} of {count} messages came"
            assert message.error() is None, message.error()
            headers: Any = tuple(message.headers() or ())
            record = Record(message.key(), message.value(), headers, message.timestamp()[1])  # type: ignore[arg-type]
            found.append(Seen(message.offset() or 0, record))
        consumer.close()
        return found


class KafkaPython:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.shapes = [shape for shape in WITHOUT_NULL_HEADERS if self.can_read(shape.codec)]

    def can_read(self, codec: str) -> bool:
        """It needs a package of its own for each codec but gzip."""
        return codec == "none" or bool(getattr(kafka.codec, f"has_{codec}")())

    async def write(self, topic: str, shape: Shape) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if shape.codec == "none" else shape.codec,
            linger_ms=0 if shape.is_single else _LINGER_MS,
            batch_size=_BATCH_BYTES,
        )
        for each in shape.records:
            sent = producer.send(
                topic, each.value, each.key, list(each.headers), partition=0, timestamp_ms=each.timestamp
            )
            if shape.is_single:
                sent.get(WAIT_S)
        producer.flush(WAIT_S)
        producer.close()

    async def read(self, topic: str, count: int) -> list[Seen]:
        consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap, enable_auto_commit=False, consumer_timeout_ms=WAIT_S * 1_000
        )
        partition = PythonPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning()
        found = [_seen(each) for each in itertools.islice(consumer, count)]
        consumer.close()
        return found


class AioKafka:
    shapes = SHAPES

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def can_read(self, codec: str) -> bool:
        del codec
        return True

    async def write(self, topic: str, shape: Shape) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if shape.codec == "none" else shape.codec,
            linger_ms=0 if shape.is_single else _LINGER_MS,
            max_batch_size=_BATCH_BYTES,
            enable_idempotence=True,
        )
        await producer.start()
        sent = []
        for each in shape.records:
            sent.append(
                await producer.send(
                    topic, each.value, each.key, partition=0, timestamp_ms=each.timestamp, headers=list(each.headers)
                )
            )
            if shape.is_single:
                await sent[-1]
        await producer.flush()
        for outcome in sent:
            await outcome
        await producer.stop()

    async def read(self, topic: str, count: int) -> list[Seen]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        consumer.assign([AioPartition(topic, 0)])
        found = [_seen(await consumer.getone()) for _ in range(count)]
        await consumer.stop()
        return found


class JavaKafka:
    shapes = SHAPES

    def __init__(self, bootstrap: str, program: JavaProgram) -> None:
        self._bootstrap = bootstrap
        self._program = program

    def can_read(self, codec: str) -> bool:
        del codec
        return True

    async def write(self, topic: str, shape: Shape) -> None:
        records = [
            {
                "key": _base64(each.key),
                "value": _base64(each.value),
                "headers": [[name, _base64(value)] for name, value in each.headers],
                "timestamp": each.timestamp,
            }
            for each in shape.records
        ]
        settings = {
            "compression.type": shape.codec,
            "linger.ms": 0 if shape.is_single else _LINGER_MS,
            "batch.size": _BATCH_BYTES,
        }
        await self._program.ask(
            "produce", bootstrap=self._bootstrap, topic=topic, records=records, settings=settings,
            single=shape.is_single,
        )  # fmt: skip

    async def read(self, topic: str, count: int) -> list[Seen]:
        settings = {"enable.auto.commit": "false", "fetch.max.wait.ms": _FETCH_WAIT_MS}
        found = await self._program.ask("read", bootstrap=self._bootstrap, topic=topic, count=count, settings=settings)
        return [Seen(each["offset"], _from_json(each)) for each in found]


class PulsarPython:
    shapes = PULSAR_SHAPES

    def __init__(self, url: str) -> None:
        self._url = url

    def can_read(self, codec: str) -> bool:
        del codec
        return True

    def _connect(self) -> pulsar.Client:
        return pulsar.Client(self._url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    async def write(self, topic: str, shape: Shape) -> None:
        client = self._connect()
        producer = client.create_producer(
            topic,
            batching_enabled=not shape.is_single,
            batching_max_messages=max(2, len(shape.records)),
            batching_max_publish_delay_ms=_LINGER_MS,
            compression_type=_PULSAR_CODECS[shape.codec],
        )
        for each in shape.records:
            fields: dict[str, Any] = {"event_timestamp": each.timestamp}
            if each.key is not None:
                fields["partition_key"] = each.key.decode()
            if each.headers:
                fields["properties"] = {name: (value or b"").decode() for name, value in each.headers}
            producer.send_async(each.value, None, **fields)
        producer.flush()
        client.close()

    async def read(self, topic: str, count: int) -> list[Seen]:
        client = self._connect()
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = [Seen(number, _pulsar_view(reader.read_next(WAIT_S * 1_000))) for number in range(count)]
        client.close()
        return found


def _pulsar_view(message: Any) -> PulsarView:
    return PulsarView(
        key=message.partition_key(),
        data=message.data(),
        is_null=message.has_null_value(),
        properties=tuple(sorted(message.properties().items())),
        event_time=message.event_timestamp(),
    )


def _seen(record: Any) -> Seen:
    """Of kafka-python and aiokafka, whose records have the same attributes."""
    headers = tuple((name, value) for name, value in record.headers)
    return Seen(record.offset, Record(record.key, record.value, headers, record.timestamp))


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _from_json(found: dict[str, Any]) -> Record:
    headers = tuple((name, _bytes(value)) for name, value in found["headers"])
    return Record(_bytes(found["key"]), _bytes(found["value"]), headers, found["timestamp"])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def all_clients(bootstrap: str, url: str, program: JavaProgram) -> Iterator[tuple[str, Client]]:
    yield "pulsar-client", PulsarPython(url)
    yield "confluent", Confluent(bootstrap)
    yield "kafka-python", KafkaPython(bootstrap)
    yield "aiokafka", AioKafka(bootstrap)
    yield "Java Kafka", JavaKafka(bootstrap, program)
