"""The client's asyncio API on the same server: the client itself and its producers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from datetime import timedelta
from pathlib import Path

import pulsar
import pulsar.asyncio
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

from magnetar.testing.waiting import until
from tests.integration.pulsar.features.asyncio_client import (
    PATIENCE_S,
    is_quiet,
    messages,
    new_client,
    receive,
    send_batch,
    texts,
)
from tests.integration.pulsar.features.conftest import Server, key_reader
from tests.integration.pulsar.features.test_subscriptions import path_of

COMPRESSIONS = [
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


class Person(Record):
    name = String()
    age = Integer()


async def test_messages_are_sent_and_received(async_client: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await async_client.subscribe(topic, "s")
    producer = await async_client.create_producer(topic)
    for number in range(10):
        await producer.send(f"m-{number}".encode())
    assert await texts(consumer, 10) == [f"m-{number}" for number in range(10)]


async def test_a_message_comes_back_with_everything_that_was_awaited(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    consumer = await async_client.subscribe(topic, "s")
    producer = await async_client.create_producer(topic, producer_name=f"maker-of-{topic[-8:]}")
    sent = await producer.send(
        b"body",
        properties={"a": "1", "b": "2"},
        partition_key="key",
        ordering_key="order",
        event_timestamp=5,
        disable_replication=True,
    )
    message = await receive(consumer)
    assert (message.data(), message.properties()) == (b"body", {"a": "1", "b": "2"})
    assert (message.partition_key(), message.ordering_key(), message.event_timestamp()) == ("key", "order", 5)
    assert (message.producer_name(), producer.topic()) == (producer.producer_name(), topic)
    assert (message.message_id().ledger_id(), message.message_id().entry_id()) == (sent.ledger_id(), sent.entry_id())


# --- batches, chunks, compression, encryption -------------------------------------------------------------------------


async def test_messages_sent_together_are_one_batch(async_client: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await async_client.subscribe(topic, "s")
    ids = await send_batch(async_client, topic, 10)
    assert len({each.entry_id() for each in ids}) == 1
    assert [each.batch_index() for each in ids] == list(range(10))
    assert await texts(consumer, 10) == [f"m-{number}" for number in range(10)]


async def test_a_flush_sends_a_batch_that_is_not_full(async_client: pulsar.asyncio.Client, topic: str) -> None:
    producer = await async_client.create_producer(topic, batching_max_publish_delay_ms=600_000)
    sending = [asyncio.create_task(producer.send(b"x")) for _ in range(3)]
    await asyncio.sleep(0)  # They have begun.
    assert not any(task.done() for task in sending)
    await asyncio.wait_for(producer.flush(), PATIENCE_S)
    ids = await asyncio.wait_for(asyncio.gather(*sending), PATIENCE_S)
    assert len({each.entry_id() for each in ids}) == 1


async def test_batches_by_key_come_back_in_the_order_of_each_key(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    consumer = await async_client.subscribe(topic, "s")
    producer = await async_client.create_producer(
        topic, batching_type=pulsar.BatchingType.KeyBased, batching_max_publish_delay_ms=50
    )
    await asyncio.gather(*(producer.send(str(number).encode(), partition_key=f"k{number % 4}") for number in range(40)))
    found = [(message.partition_key(), int(message.data())) for message in await messages(consumer, 40)]
    for key in ("k0", "k1", "k2", "k3"):
        numbers = [number for name, number in found if name == key]
        assert (numbers, len(numbers)) == (sorted(numbers), 10)


async def test_awaited_messages_are_compressed_by_every_kind(async_client: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await async_client.subscribe(topic, "s")
    payload = b"compress me " * 1000
    for compression in COMPRESSIONS:
        producer = await async_client.create_producer(topic, compression_type=compression)
        await producer.send(payload)
        assert (await receive(consumer)).data() == payload


@pytest.mark.quiet_owner(reason="the client drops a chunked message whose first chunk comes again")
async def test_an_awaited_message_larger_than_a_frame_travels_in_chunks(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    consumer = await async_client.subscribe(topic, "s")
    producer = await async_client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    payload = os.urandom(12 * 2**20)
    await producer.send(payload)
    await producer.send(b"small")
    assert [message.data() for message in await messages(consumer, 2)] == [payload, b"small"]
    with pytest.raises(ValueError, match="can't be enabled together"):
        await async_client.create_producer(topic, chunking_enabled=True)


async def test_awaited_messages_are_encrypted(async_client: pulsar.asyncio.Client, topic: str, tmp_path: Path) -> None:
    keys = key_reader(tmp_path)
    consumer = await async_client.subscribe(topic, "s", crypto_key_reader=keys)
    producer = await async_client.create_producer(topic, encryption_key="client-key", crypto_key_reader=keys)
    await producer.send(b"secret")
    assert await texts(consumer, 1) == ["secret"]


async def test_an_awaited_message_over_the_limit_is_refused_and_the_next_one_is_not(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    producer = await async_client.create_producer(topic, batching_enabled=False)
    with pytest.raises(pulsar.asyncio.PulsarException) as refused:
        await producer.send(bytes(6 * 2**20))
    assert refused.value.error() == pulsar.Result.MessageTooBig
    await producer.send(b"small")


# --- names, sequence ids, access --------------------------------------------------------------------------------------


async def test_a_producer_knows_its_name_its_sequence_ids_and_whether_it_is_connected(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    producer = await async_client.create_producer(topic, initial_sequence_id=99)
    assert (bool(producer.producer_name()), producer.is_connected(), producer.last_sequence_id()) == (True, True, 99)
    await producer.send(b"x")
    assert producer.last_sequence_id() == 100
    await producer.send(b"x", sequence_id=200)
    assert producer.last_sequence_id() == 200
    await producer.close()
    assert not producer.is_connected()


async def test_an_awaited_sequence_id_is_stored_once(
    async_client: pulsar.asyncio.Client, server: Server, namespace: str
) -> None:
    server.admin("POST", f"namespaces/{namespace}/deduplication", True)
    topic = f"persistent://{namespace}/dedup"
    consumer = await async_client.subscribe(topic, "s")
    producer = await async_client.create_producer(topic, producer_name="p", batching_enabled=False)
    for sequence in (0, 1, 1, 0, 2):
        await producer.send(f"m-{sequence}".encode(), sequence_id=sequence)
    await producer.close()
    again = await async_client.create_producer(topic, producer_name="p", batching_enabled=False)
    assert again.last_sequence_id() == 2
    await again.send(b"m-2", sequence_id=2)
    await again.send(b"m-3", sequence_id=3)
    assert await texts(consumer, 4) == ["m-0", "m-1", "m-2", "m-3"]
    assert await is_quiet(consumer)


@pytest.mark.quiet_owner(reason="another producer may come first while the exclusive one comes back")
async def test_exclusive_access_is_refused_waited_for_and_taken_over(
    async_client: pulsar.asyncio.Client, server: Server, topic: str
) -> None:
    mode = pulsar.ProducerAccessMode
    first = await async_client.create_producer(topic, access_mode=mode.Exclusive)
    with pytest.raises(pulsar.asyncio.PulsarException) as refused:
        await async_client.create_producer(topic, access_mode=mode.Exclusive)
    assert refused.value.error() == pulsar.Result.ProducerFenced

    waiting = asyncio.create_task(async_client.create_producer(topic, access_mode=mode.WaitForExclusive))
    await until(lambda: server.admin("GET", f"{path_of(topic)}/stats")["waitingPublishers"] == 1, "the second one")
    assert not waiting.done()
    await first.close()
    second = await asyncio.wait_for(waiting, PATIENCE_S)
    await second.send(b"two")

    third = await async_client.create_producer(topic, access_mode=mode.ExclusiveWithFencing)
    await third.send(b"three")
    with pytest.raises(pulsar.asyncio.PulsarException):
        await second.send(b"four")
    # The client reports the failed send before it has put the fenced producer away, and its close would fail in
    # between. What it hears next, it hears on the same thread.
    await async_client.get_topic_partitions(topic)


# --- partitions, delays, other topics ---------------------------------------------------------------------------------


async def test_a_partitioned_topic_is_found_spread_and_gathered(
    async_client: pulsar.asyncio.Client, server: Server, topic: str
) -> None:
    server.admin("PUT", f"{path_of(topic)}/partitions", 3)
    assert sorted(await async_client.get_topic_partitions(topic)) == [f"{topic}-partition-{n}" for n in range(3)]
    assert await async_client.get_topic_partitions(f"{topic}-other") == [f"{topic}-other"]
    consumer = await async_client.subscribe(topic, "s")
    producer = await async_client.create_producer(topic, batching_enabled=False)
    for number in range(12):
        await producer.send(str(number).encode())
    found = await messages(consumer, 12)
    assert sorted(int(message.data()) for message in found) == list(range(12))
    assert len({message.topic_name() for message in found}) == 3


async def test_the_callers_router_chooses_the_partition(
    async_client: pulsar.asyncio.Client, server: Server, topic: str
) -> None:
    server.admin("PUT", f"{path_of(topic)}/partitions", 3)
    routed = await async_client.create_producer(
        topic,
        message_routing_mode=pulsar.PartitionsRoutingMode.CustomPartition,
        message_router=lambda message, partitions: message.data()[-1] % partitions,  # It is asked about a sample, too.
        lazy_start_partitioned_producers=True,
    )
    ids = [await routed.send(str(number).encode()) for number in range(6)]
    assert [each.partition() for each in ids] == [0, 1, 2, 0, 1, 2]


async def test_a_producer_of_one_partition_stays_there(
    async_client: pulsar.asyncio.Client, server: Server, topic: str
) -> None:
    server.admin("PUT", f"{path_of(topic)}/partitions", 3)
    producer = await async_client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.UseSinglePartition
    )
    assert len({(await producer.send(b"x")).partition() for _ in range(6)}) == 1


async def test_an_awaited_message_is_delivered_when_its_time_has_come(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    consumer = await async_client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = await async_client.create_producer(topic, batching_enabled=False)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await producer.send(b"later", deliver_after=timedelta(seconds=2))
    await producer.send(b"at once", deliver_at=1)
    assert await texts(consumer, 2) == ["at once", "later"]
    assert loop.time() - began > 0.9  # Up to one tick early, which is a second.


async def test_a_non_persistent_topic_is_heard_by_who_awaits_it(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    volatile = topic.replace("persistent://", "non-persistent://", 1)
    consumer = await async_client.subscribe(volatile, "s")
    producer = await async_client.create_producer(volatile)
    await producer.send(b"heard")
    assert await texts(consumer, 1) == ["heard"]


# --- schemas ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
async def test_awaited_records_come_back_as_records(
    async_client: pulsar.asyncio.Client, topic: str, kind: type
) -> None:
    consumer = await async_client.subscribe(topic, "s", schema=kind(Person))
    producer = await async_client.create_producer(topic, schema=kind(Person))
    await producer.send(Person(name="Ada", age=36))
    value = (await receive(consumer)).value()
    assert (value.name, value.age) == ("Ada", 36)


async def test_a_schema_that_does_not_fit_is_refused_where_it_is_awaited(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    class Stranger(Record):
        colour = Integer(required=True)

    await async_client.create_producer(topic, schema=AvroSchema(Person))
    with pytest.raises(pulsar.asyncio.PulsarException) as refused:
        await async_client.create_producer(topic, schema=AvroSchema(Stranger))
    assert refused.value.error() == pulsar.Result.IncompatibleSchema


# --- errors and the end -----------------------------------------------------------------------------------------------


async def test_an_error_is_raised_where_it_is_awaited(async_client: pulsar.asyncio.Client, topic: str) -> None:
    holder = await async_client.subscribe(topic, "s")
    with pytest.raises(pulsar.asyncio.PulsarException) as refused:
        await async_client.subscribe(topic, "s")
    await holder.close()
    assert refused.value.error() == pulsar.Result.ConsumerBusy
    assert "ConsumerBusy" in str(refused.value)
    with pytest.raises(pulsar.asyncio.PulsarException):
        await async_client.create_producer("persistent://nobody/default/t")


async def test_what_is_closed_says_so(server: Server, topic: str) -> None:
    client = new_client(server.url)
    producer = await client.create_producer(topic)
    consumer = await client.subscribe(topic, "s")
    await producer.close()
    with pytest.raises(pulsar.asyncio.PulsarException) as refused:
        await producer.send(b"x")
    assert refused.value.error() == pulsar.Result.AlreadyClosed
    await client.close()
    with pytest.raises(pulsar.asyncio.PulsarException) as refused:
        await consumer.receive()
    assert refused.value.error() == pulsar.Result.AlreadyClosed

    other = new_client(server.url)
    again = await other.subscribe(topic, "s")  # It has gone with its client.
    assert again.topic() == topic
    other.shutdown()


async def test_a_terminated_topic_is_read_to_its_end_by_who_awaits_it(server: Server, topic: str) -> None:
    """Uses a client of its own: the C++ client closes its connection when a topic ends."""
    client = new_client(server.url)
    consumer = await client.subscribe(topic, "s")
    producer = await client.create_producer(topic)
    await producer.send(b"last")
    server.admin("POST", f"{path_of(topic)}/terminate")
    with pytest.raises(pulsar.asyncio.PulsarException):
        await producer.send(b"more")
    assert await texts(consumer, 1) == ["last"]
    with contextlib.suppress(pulsar.asyncio.PulsarException):  # As it has, then.
        await client.close()
