"""A whole broker in this process that serves both protocols, and clients that talk to it in Kafka's requests.

async with kafka_world() as world:
    talker = world.kafka()
    answer = await talker.request(METADATA, {"topics": [{"name": "t"}]})
    offset = await talker.produced("t", b"hello")
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from magnetar.broker.front_end import FrontEnd
from magnetar.broker.kafka.front_end import KafkaFrontEnd
from magnetar.config.broker import BrokerConfig
from magnetar.config.kafka import KafkaConfig
from magnetar.config.pulsar import PulsarConfig
from magnetar.config.topic import TopicConfig
from magnetar.ledger.channels.local_transport import connect_local
from magnetar.testing.cluster import small_config
from magnetar.wire.kafka.batches import Record, encode_batch, read_head, records_of
from magnetar.wire.kafka.codec import Api, Reader, Value
from magnetar.wire.kafka.frames import encode_request, read_answer_head
from magnetar.wire.kafka.tables import FETCH, LIST_OFFSETS, METADATA, PRODUCE
from tests.clusters import new_cluster
from tests.unit.broker.pulsar.broker_world import TIMEOUT_S, BrokerWorld

NO_PRODUCER = (-1, -1, -1)


class KafkaTalker(asyncio.BufferedProtocol):
    """A client that sends what the test says, and keeps the answers in the order in which they come."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.answers: list[bytes] = []
        self._buffer = bytearray(2**20)
        self._rest = b""
        self._more = asyncio.Event()
        self._requests = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._more.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        data = self._rest + bytes(self._buffer[:nbytes])
        while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
            self.answers.append(data[4:end])
            data = data[end:]
        self._rest = data
        self._more.set()

    def send(self, api: Api, value: Mapping[str, Any], version: int | None = None) -> int:
        """Returns the correlation id."""
        self._requests += 1
        used = api.version_max if version is None else version
        body = api.encode_request(value, used)
        self.transport.write(b"".join(encode_request(api, used, self._requests, "test", body)))
        return self._requests

    async def answer(self) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            while not self.answers:
                assert not self.closed.is_set(), "the connection was closed"
                self._more.clear()
                await self._more.wait()
        return self.answers.pop(0)

    async def request(self, api: Api, value: Mapping[str, Any], version: int | None = None) -> Value:
        expected = self.send(api, value, version)
        return await self.answer_to(api, expected, version)

    async def answer_to(self, api: Api, expected: int, version: int | None = None) -> Value:
        used = api.version_max if version is None else version
        reader = Reader(await self.answer())
        assert read_answer_head(reader, api, used) == expected
        return api.decode_response(reader.data, used, reader.at)

    # --- messages -----------------------------------------------------------------------------------------------------

    async def produce(self, topic: str, batch: bytes, *, partition: int = 0, acks: int = -1) -> Value:
        """Returns the answer for the partition."""
        answer = await self.request(PRODUCE, produce_of(topic, batch, partition=partition, acks=acks))
        found: Value = answer["responses"][0]["partition_responses"][0]
        return found

    async def make(self, topic: str) -> None:
        """Makes it by looking it up."""
        answer = await self.request(METADATA, {"topics": [{"name": topic}]})
        assert answer["topics"][0]["error_code"] == 0

    async def produced(self, topic: str, *values: bytes) -> int:
        """Makes the topic, too. Returns the base offset."""
        await self.make(topic)
        answer = await self.produce(topic, batch_of(*values))
        assert answer["error_code"] == 0
        return int(answer["base_offset"])

    async def fetch(self, topic: str, offset: int, **fields: Any) -> Value:
        """Returns the answer for the partition."""
        answer = await self.request(FETCH, fetch_of(topic, offset, **fields))
        found: Value = answer["responses"][0]["partitions"][0]
        return found

    async def offset(self, topic: str, timestamp: int) -> Value:
        wanted = {"partition_index": 0, "timestamp": timestamp}
        answer = await self.request(LIST_OFFSETS, {"topics": [{"name": topic, "partitions": [wanted]}]})
        found: Value = answer["topics"][0]["partitions"][0]
        return found

    async def wait_closed(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await self.closed.wait()


def batch_of(*values: bytes, producer: tuple[int, int, int] = NO_PRODUCER, first_ms: int = 1_000) -> bytes:
    records = [Record(delta, first_ms + delta, b"k%d" % delta, value) for delta, value in enumerate(values)]
    return encode_batch(records, producer=producer)


def produce_of(topic: str, batch: bytes, *, partition: int = 0, acks: int = -1) -> dict[str, Any]:
    data = [{"index": partition, "records": [batch]}]
    return {"acks": acks, "timeout_ms": 10_000, "topic_data": [{"name": topic, "partition_data": data}]}


def fetch_of(
    topic: str, offset: int, *, max_wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 2**20, **partition: Any
) -> dict[str, Any]:
    wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": max_bytes, **partition}
    return {
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "topics": [{"topic": topic, "partitions": [wanted]}],
    }


def read(records: memoryview | None) -> list[tuple[int, bytes | None]]:
    """Returns offset and value of each record of several batches."""
    found, view = [], memoryview(records or b"")
    while view:
        head = read_head(view)
        found += [(head.base_offset + each.offset_delta, each.value) for each in records_of(view, head, 2**24)]
        view = view[head.size :]
    return found


class KafkaWorld(BrokerWorld):
    kafka_front_end: KafkaFrontEnd

    def more_front_ends(self) -> list[FrontEnd]:
        self.kafka_front_end = KafkaFrontEnd(self.config.kafka)
        return [self.kafka_front_end]

    def kafka(self) -> KafkaTalker:
        talker = KafkaTalker()
        connect_local(self.kafka_front_end.accept, lambda: talker)
        return talker


@contextlib.asynccontextmanager
async def kafka_world(**sections: Any) -> AsyncIterator[KafkaWorld]:
    """A section that is given replaces the one here."""
    config = small_config(
        **{
            "pulsar": PulsarConfig(port=0),
            "kafka": KafkaConfig(enabled=True, port=0),
            "topic": TopicConfig(ensemble_size=1, write_quorum=1, ack_quorum=1),
            "broker": BrokerConfig(),
            **sections,
        }
    )
    async with new_cluster(1, config=config) as cluster:
        world = KafkaWorld(cluster, config)
        await world.start()
        try:
            yield world
        finally:
            await world.stop()
