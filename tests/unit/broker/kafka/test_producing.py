from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c

from magnetar.config.kafka import KafkaConfig
from magnetar.names import TopicName
from magnetar.testing.waiting import until
from magnetar.wire.kafka.batches import HEAD_BYTES, Record, encode_batch
from magnetar.wire.kafka.compression import Codec
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.frames import encode_request
from magnetar.wire.kafka.tables import METADATA, PRODUCE
from tests.unit.broker.kafka.kafka_world import KafkaWorld, batch_of, kafka_world, produce_of, read

FAR_FUTURE_MS = 2**45


async def test_batches_get_the_next_offsets_and_are_read_as_they_were_sent(world: KafkaWorld) -> None:
    talker = world.kafka()
    assert await talker.produced("t", b"a", b"b") == 0
    assert await talker.produced("t", b"c") == 2
    answer = await talker.fetch("t", 0)
    assert (answer["error_code"], answer["high_watermark"], answer["last_stable_offset"]) == (0, 3, 3)
    assert read(answer["records"]) == [(0, b"a"), (1, b"b"), (2, b"c")]
    stored = bytes(answer["records"])
    assert stored[HEAD_BYTES : HEAD_BYTES + 10] == batch_of(b"a", b"b")[HEAD_BYTES : HEAD_BYTES + 10]


async def test_requests_in_flight_are_appended_and_answered_in_order(world: KafkaWorld) -> None:
    talker = world.kafka()
    await talker.produced("t", b"first")
    expected = [talker.send(PRODUCE, produce_of("t", batch_of(b"%d" % number))) for number in range(20)]
    expected.append(talker.send(METADATA, {"topics": []}))
    for number, correlation_id in enumerate(expected[:-1], 1):
        answer = await talker.answer_to(PRODUCE, correlation_id)
        assert answer["responses"][0]["partition_responses"][0]["base_offset"] == number
    await talker.answer_to(METADATA, expected[-1])


async def test_without_acks_there_is_no_answer_and_an_error_ends_the_connection(world: KafkaWorld) -> None:
    talker = world.kafka()
    await talker.make("t")
    talker.send(PRODUCE, produce_of("t", batch_of(b"quiet"), acks=0))
    await talker.request(METADATA, {"topics": []})
    assert await talker.produced("t", b"loud") == 1
    talker.send(PRODUCE, produce_of("t", b"damaged", acks=0))
    await talker.wait_closed()


def _changed(**fields: int) -> bytes:
    """A batch with another head, whose checksum is right."""
    return encode_batch([Record(0, 1_000, None, b"v")], **fields)  # type: ignore[arg-type]


def _with_attributes(attributes: int) -> bytes:
    batch = bytearray(batch_of(b"v"))
    batch[21:23] = struct.pack(">h", attributes)
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def _with_count(records: int, attributes: int = 0) -> bytes:
    """A batch of one record that claims to have more."""
    batch = bytearray(_with_attributes(attributes))
    batch[23:27], batch[57:61] = struct.pack(">i", records - 1), struct.pack(">i", records)
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (batch_of(b"v")[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch_of(b"v") * 2, ErrorCode.INVALID_RECORD),
        (_changed(base_offset=5), ErrorCode.INVALID_RECORD),
        (_changed(last_offset_delta=1), ErrorCode.INVALID_RECORD),
        (_changed(producer=(7, -1, 0)), ErrorCode.INVALID_RECORD),
        (_with_count(9), ErrorCode.INVALID_RECORD),
        (_with_count(2**31 - 1, attributes=Codec.ZSTD), ErrorCode.INVALID_RECORD),
        (_with_attributes(0x20), ErrorCode.INVALID_RECORD),
        (_with_attributes(0x10), ErrorCode.INVALID_RECORD),
        (_with_attributes(0x08), ErrorCode.INVALID_RECORD),
        (_with_attributes(0x07), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch_of(b"v", first_ms=FAR_FUTURE_MS), ErrorCode.INVALID_TIMESTAMP),
        (batch_of(bytes(2**20)), ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
async def test_a_batch_that_must_not_be_stored_is_refused_with_its_code(
    world: KafkaWorld, batch: bytes, code: int
) -> None:
    talker = world.kafka()
    await talker.make("t")
    answer = await talker.produce("t", batch)
    assert (answer["error_code"], answer["base_offset"]) == (code, -1)
    assert answer["error_message"]
    assert await talker.produced("t", b"good") == 0


async def test_wrong_acks_and_transactions_are_refused(world: KafkaWorld) -> None:
    talker = world.kafka()
    assert (await talker.produce("t", batch_of(b"v"), acks=2))["error_code"] == ErrorCode.INVALID_REQUIRED_ACKS
    request = produce_of("t", batch_of(b"v")) | {"transactional_id": "mine"}
    answer = await talker.request(PRODUCE, request)
    refused = answer["responses"][0]["partition_responses"][0]["error_code"]
    assert refused == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("topic", "partition", "code"),
    [
        ("t", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t-partition-0", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("__change_events", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a/b", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("none", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("no/where/t", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_topics_that_clients_cannot_write_are_refused_and_others_in_the_request_are_not(
    world: KafkaWorld, topic: str, partition: int, code: int
) -> None:
    talker = world.kafka()
    await talker.make("good")
    request = produce_of("good", batch_of(b"v"))
    request["topic_data"] += produce_of(topic, batch_of(b"v"), partition=partition)["topic_data"]
    answer = await talker.request(PRODUCE, request)
    codes = [each["partition_responses"][0]["error_code"] for each in answer["responses"]]
    assert codes == [0, code]


async def test_a_repeated_batch_is_stored_once_also_after_the_topic_was_loaded_again(world: KafkaWorld) -> None:
    talker = world.kafka()
    await talker.make("t")
    batch = batch_of(b"a", b"b", producer=(5, 0, 0))
    assert (await talker.produce("t", batch))["base_offset"] == 0
    assert (await talker.produce("t", batch))["base_offset"] == 0
    await world.broker.service.topics.unload(TopicName.parse("t"))
    assert (await talker.produce("t", batch))["base_offset"] == 0
    following = batch_of(b"c", producer=(5, 0, 2))
    assert (await talker.produce("t", following))["base_offset"] == 2
    gap = batch_of(b"e", producer=(5, 0, 4))
    assert (await talker.produce("t", gap))["error_code"] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    stored = [read((await talker.fetch("t", offset))["records"]) for offset in (0, 2)]
    assert stored == [[(0, b"a"), (1, b"b")], [(2, b"c")]]


async def test_a_repeat_of_a_batch_in_flight_gets_the_same_offset(world: KafkaWorld) -> None:
    talker, other = world.kafka(), world.kafka()
    await talker.produced("t", b"first")
    await other.produced("t", b"second")
    batch = batch_of(b"a", producer=(5, 0, 0))
    sent = talker.send(PRODUCE, produce_of("t", batch)), other.send(PRODUCE, produce_of("t", batch))
    for each, correlation_id in zip((talker, other), sent, strict=True):
        answer = await each.answer_to(PRODUCE, correlation_id)
        assert answer["responses"][0]["partition_responses"][0]["base_offset"] == 2
    assert await talker.produced("t", b"third") == 3


async def test_policies_of_the_topic_hold_for_kafka_too(world: KafkaWorld) -> None:
    talker = world.kafka()
    await talker.produced("t", b"v")
    topic = await world.topic("t")
    await topic.terminate()
    assert (await talker.produce("t", batch_of(b"v")))["error_code"] == ErrorCode.POLICY_VIOLATION


async def test_a_producer_leaves_its_topic_with_the_connection(world: KafkaWorld) -> None:
    talker = world.kafka()
    await talker.produced("t", b"v")
    topic = await world.topic("t")
    assert [producer.client_version for producer in topic.producers] == ["Kafka"]
    talker.transport.close()
    await talker.wait_closed()
    await until(lambda: not list(topic.producers), "the producer has left")


async def test_a_connection_may_write_a_limited_number_of_partitions() -> None:
    async with kafka_world(kafka=KafkaConfig(enabled=True, port=0, partitions_per_connection_max=1)) as world:
        talker = world.kafka()
        assert await talker.produced("a", b"v") == 0
        await talker.make("b")
        assert (await talker.produce("b", batch_of(b"v")))["error_code"] == ErrorCode.POLICY_VIOLATION
        assert await talker.produced("a", b"v") == 1


async def test_an_old_produce_version_ends_the_connection(world: KafkaWorld) -> None:
    talker = world.kafka()
    body: list[Any] = PRODUCE.encode_request({}, 3)
    talker.transport.write(b"".join(encode_request(PRODUCE, 2, 1, "old", body)))
    await talker.wait_closed()
