from __future__ import annotations

import asyncio

from crc32c import crc32c

from magnetar.config.kafka import KafkaConfig
from magnetar.names import TopicName
from magnetar.testing.waiting import until
from magnetar.topic.entry_format.head import read_body
from magnetar.wire.kafka.batches import HEAD_BYTES, Record, encode_batch, read_head
from magnetar.wire.kafka.compression import Codec
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.tables import FETCH, METADATA, PRODUCE
from magnetar.wire.pulsar.entry import messages_of_batch
from tests.unit.broker.kafka.kafka_world import KafkaWorld, batch_of, fetch_of, kafka_world, produce_of, read
from tests.unit.broker.pulsar.broker_world import batch, message

LONG_MS = 60_000


async def waiters(world: KafkaWorld, topic: str) -> int:
    return len((await world.topic(topic)).log._writer.watchers)


async def is_unwatched(world: KafkaWorld, topic: str) -> bool:
    return not await waiters(world, topic)


async def test_a_fetch_waits_for_the_next_message_and_holds_up_what_comes_after_it(world: KafkaWorld) -> None:
    consumer, producer = world.kafka(), world.kafka()
    await producer.produced("t", b"a")
    fetch = consumer.send(FETCH, fetch_of("t", 1, max_wait_ms=LONG_MS))
    later = consumer.send(METADATA, {"topics": []})
    await until(lambda: waiters(world, "t"), "the fetch waits")
    assert not consumer.answers
    await producer.produced("t", b"b")
    answer = await consumer.answer_to(FETCH, fetch)
    assert read(answer["responses"][0]["partitions"][0]["records"]) == [(1, b"b")]
    await consumer.answer_to(METADATA, later)
    assert not await waiters(world, "t")


async def test_a_fetch_waits_until_there_is_as_much_as_it_wants(world: KafkaWorld) -> None:
    consumer, producer = world.kafka(), world.kafka()
    await producer.produced("t", bytes(100))
    fetch = consumer.send(FETCH, fetch_of("t", 0, max_wait_ms=LONG_MS, min_bytes=400))
    await until(lambda: waiters(world, "t"), "the fetch waits")
    await producer.produced("t", bytes(100))
    assert not consumer.answers
    await producer.produced("t", bytes(300))
    answer = await consumer.answer_to(FETCH, fetch)
    assert [offset for offset, _ in read(answer["responses"][0]["partitions"][0]["records"])] == [0, 1, 2]


async def test_a_fetch_ends_with_its_connection(world: KafkaWorld) -> None:
    consumer, producer = world.kafka(), world.kafka()
    await producer.produced("t", b"a")
    consumer.send(FETCH, fetch_of("t", 1, max_wait_ms=LONG_MS))
    await until(lambda: waiters(world, "t"), "the fetch waits")
    consumer.transport.close()
    await consumer.wait_closed()
    await until(lambda: is_unwatched(world, "t"), "the fetch has ended")


async def test_a_fetch_that_waits_is_answered_when_its_topic_is_unloaded(world: KafkaWorld) -> None:
    consumer, producer = world.kafka(), world.kafka()
    await producer.produced("t", b"a")
    fetch = consumer.send(FETCH, fetch_of("t", 1, max_wait_ms=2_000))
    await until(lambda: waiters(world, "t"), "the fetch waits")
    await world.broker.service.topics.unload(TopicName.parse("t"))
    await producer.produced("t", b"b")
    answer = await consumer.answer_to(FETCH, fetch)
    assert read(answer["responses"][0]["partitions"][0]["records"]) == [(1, b"b")]


async def test_offsets_outside_the_log_are_out_of_range_and_its_end_is_empty(world: KafkaWorld) -> None:
    talker = world.kafka()
    await talker.produced("t", b"a", b"b")
    assert (await talker.fetch("t", 3))["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await talker.fetch("t", -1))["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    end = await talker.fetch("t", 2)
    assert (end["error_code"], end["high_watermark"], bytes(end["records"])) == (0, 2, b"")


async def test_a_batch_is_whole_although_the_offset_is_inside_and_it_exceeds_the_limit(world: KafkaWorld) -> None:
    talker = world.kafka()
    await talker.produced("t", b"a", b"b", b"c")
    await talker.produced("t", b"d")
    answer = await talker.fetch("t", 1, max_bytes=1)
    assert read(answer["records"]) == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_an_answer_has_a_limit_whatever_the_client_accepts() -> None:
    async with kafka_world(kafka=KafkaConfig(enabled=True, port=0, fetch_bytes_max=2**16)) as world:
        talker = world.kafka()
        for _ in range(5):
            await talker.produced("t", bytes(30_000))
        answer = await talker.fetch("t", 0, max_bytes=2**30)
        assert [offset for offset, _ in read(answer["records"])] == [0, 1]


async def test_a_topic_that_is_read_counts_as_used(world: KafkaWorld) -> None:
    talker = world.kafka()
    await talker.produced("t", b"a")
    topic = await world.topic("t")
    topic.last_used_s = 0.0
    await talker.fetch("t", 1)
    assert topic.last_used_s > 0


async def test_unknown_topics_and_epochs_are_errors_of_their_partition(world: KafkaWorld) -> None:
    talker = world.kafka()
    await talker.produced("t", b"a")
    assert (await talker.fetch("none", 0))["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await talker.fetch("t", 0, current_leader_epoch=0))["error_code"] == 0
    assert (await talker.fetch("t", 0, current_leader_epoch=3))["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_sessions_of_partitions_are_declined(world: KafkaWorld) -> None:
    talker = world.kafka()
    await talker.produced("t", b"a")
    answer = await talker.request(FETCH, fetch_of("t", 0) | {"session_id": 0, "session_epoch": 0})
    assert (answer["error_code"], answer["session_id"]) == (0, 0)
    answer = await talker.request(FETCH, fetch_of("t", 0) | {"session_id": 7, "session_epoch": 1})
    assert answer["error_code"] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_entries_of_pulsar_producers_are_converted_once_and_have_the_same_offsets(world: KafkaWorld) -> None:
    pulsar, talker = await world.talker(), world.kafka()
    await talker.produced("t", b"a")
    await pulsar.producer("t", 1)
    await pulsar.published(1, 0, b"", raw=batch([b"b", b"c"]), messages=2)
    await pulsar.published(1, 2, b"", raw=message(b"d", 2))
    await talker.produced("t", b"e")
    expected = [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d"), (4, b"e")]
    assert read((await talker.fetch("t", 0))["records"]) == expected
    assert read((await talker.fetch("t", 2))["records"]) == expected[1:]
    assert world.kafka_front_end.conversions.made == 2


async def test_an_entry_that_cannot_be_read_is_a_gap_that_consumers_pass(world: KafkaWorld) -> None:
    pulsar, talker = await world.talker(), world.kafka()
    await pulsar.producer("t", 1)
    damaged = message(b"\xff" * 20, 0, num_messages_in_batch=3)
    await pulsar.published(1, 0, b"", raw=damaged, messages=3)
    await talker.produced("t", b"after")
    records = (await talker.fetch("t", 0))["records"]
    head = read_head(records)
    assert (head.base_offset, head.last_offset_delta, head.records) == (0, 2, 0)
    assert read(records) == [(3, b"after")]


async def test_offsets_are_found_at_the_ends_and_by_the_times_of_records(world: KafkaWorld) -> None:
    talker = world.kafka()
    assert (await talker.offset("t", -1))["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await talker.make("t")
    assert (await talker.offset("t", -1))["offset"] == 0
    for first_ms in (5_000, 1_000, 9_000):
        answer = await talker.produce("t", batch_of(b"x", b"y", first_ms=first_ms))
        assert answer["error_code"] == 0
    for timestamp, offset, found_ms in (
        (-1, 6, -1),
        (-2, 0, -1),
        (0, 0, 5_000),
        (5_001, 1, 5_001),
        (5_002, 4, 9_000),
        (9_002, -1, -1),
    ):
        answer = await talker.offset("t", timestamp)
        assert (answer["error_code"], answer["offset"], answer["timestamp"]) == (0, offset, found_ms)


async def test_a_consumer_of_pulsar_gets_a_batch_of_kafka_as_one_of_pulsar(world: KafkaWorld) -> None:
    pulsar, talker = await world.talker(), world.kafka()
    await talker.produced("t", b"first")
    await pulsar.subscribe("t", "s")
    await talker.produced("t", b"a", b"b")
    pulsar.flow(10)
    _, body = await pulsar.message()
    head = read_body(body)
    assert (head.batch_size, head.producer) == (2, "kafka")
    found = list(messages_of_batch(memoryview(body)[head.payload_offset :], 2))
    assert [(each.metadata.partition_key, bytes(each.payload)) for each in found] == [("k0", b"a"), ("k1", b"b")]
    topic = await world.topic("t")
    (consumer,) = topic.subscriptions["s"].consumers
    assert consumer.permits == 8


async def test_a_batch_that_cannot_be_converted_costs_a_consumer_of_pulsar_one_permit(world: KafkaWorld) -> None:
    pulsar, talker = await world.talker(), world.kafka()
    await talker.make("t")
    await pulsar.subscribe("t", "s")
    damaged = encode_batch([Record(delta, 1_000, None, b"v") for delta in range(3)], codec=Codec.GZIP)
    damaged = with_content(damaged, b"no gzip at all")
    for _ in range(4):
        assert (await talker.produce("t", damaged))["error_code"] == 0
    pulsar.flow(4)
    for _ in range(4):
        await pulsar.message()


async def test_a_search_by_time_ends_at_a_batch_that_cannot_be_opened(world: KafkaWorld) -> None:
    talker = world.kafka()
    await talker.produced("t", b"first")
    damaged = encode_batch([Record(delta, 5_000 + delta, None, b"v") for delta in range(3)], codec=Codec.GZIP)
    assert (await talker.produce("t", with_content(damaged, b"no gzip at all")))["error_code"] == 0
    answer = await talker.offset("t", 5_001)
    assert (answer["error_code"], answer["offset"]) == (0, 1)


async def test_a_fetch_that_wants_more_than_an_answer_has_room_for_is_answered_when_it_is_full() -> None:
    config = KafkaConfig(enabled=True, port=0, fetch_bytes_max=2**16, fetch_wait_ms_max=LONG_MS)
    async with kafka_world(kafka=config) as world:
        talker = world.kafka()
        await talker.produced("t", bytes(2**17))
        answer = await talker.fetch("t", 0, max_wait_ms=LONG_MS, min_bytes=2**30)
        assert [offset for offset, _ in read(answer["records"])] == [0]


async def test_fetches_after_a_batch_that_is_not_durable_are_read_up_to_a_limit() -> None:
    config = KafkaConfig(enabled=True, port=0, unsent_bytes_max=2**17)
    async with kafka_world(kafka=config) as world:
        talker = world.kafka()
        await talker.produced("t", bytes(2**16))
        topic = await world.topic("t")
        append, topic.publisher.publish_parts = topic.publisher.publish_parts, lambda *_: None
        first = talker.send(PRODUCE, produce_of("t", batch_of(b"v")) | {"timeout_ms": 500})
        asked = [talker.send(FETCH, fetch_of("t", 0)) for _ in range(20)]
        (session,) = world.kafka_front_end._sessions
        await until(lambda: session._kept_bytes > 2**17, "answers wait")
        for _ in range(300):
            await asyncio.sleep(0)
        assert session._kept_bytes < 2**18
        topic.publisher.publish_parts = append
        await talker.answer_to(PRODUCE, first)
        for each in asked:
            await talker.answer_to(FETCH, each)
        assert not session._kept_bytes


def with_content(batch: bytes, content: bytes) -> bytes:
    """Returns a batch with these bytes in place of its records, and their checksum."""
    changed = bytearray(batch[:HEAD_BYTES] + content)
    changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)
