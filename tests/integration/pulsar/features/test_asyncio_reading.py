"""The client's asyncio API on the same server: readers, and compacted topics."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pulsar
import pulsar.asyncio
import pytest
from pulsar.schema import StringSchema

from magnetar.testing.waiting import until
from tests.integration.pulsar.features.asyncio_client import PATIENCE_S, place_of, send_batch, send_texts
from tests.integration.pulsar.features.conftest import Server, key_reader
from tests.integration.pulsar.features.test_reading import compact

FIRST, LAST = pulsar.MessageId.earliest, pulsar.MessageId.latest


async def read_next(reader: pulsar.asyncio.Reader) -> pulsar.Message:
    return await asyncio.wait_for(reader.read_next(), PATIENCE_S)


async def read_all(reader: pulsar.asyncio.Reader) -> list[str]:
    found = []
    while await reader.has_message_available():
        found.append((await read_next(reader)).data().decode())
    return found


async def test_an_awaited_reader_reads_from_the_beginning_and_knows_when_it_is_done(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    reader = await async_client.create_reader(topic, FIRST)
    assert (reader.topic(), reader.is_connected()) == (topic, True)
    assert not await reader.has_message_available()
    sent = await send_texts(async_client, topic, 5)
    assert await read_all(reader) == sent
    await reader.close()
    assert not reader.is_connected()
    with pytest.raises(pulsar.asyncio.PulsarException) as refused:
        await reader.read_next()
    assert refused.value.error() == pulsar.Result.AlreadyClosed


async def test_an_awaited_reader_from_the_end_sees_only_what_comes(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    await send_texts(async_client, topic, 5)
    reader = await async_client.create_reader(topic, LAST, reader_name="late", subscription_role_prefix="role")
    assert not await reader.has_message_available()
    reading = asyncio.create_task(reader.read_next())
    producer = await async_client.create_producer(topic)
    await producer.send(b"new")
    assert (await asyncio.wait_for(reading, PATIENCE_S)).data() == b"new"


@pytest.mark.parametrize("inclusive", [False, True])
async def test_an_awaited_reader_begins_behind_a_message_or_with_it(
    async_client: pulsar.asyncio.Client, topic: str, inclusive: bool
) -> None:
    producer = await async_client.create_producer(topic, batching_enabled=False)
    ids = [await producer.send(f"m-{number}".encode()) for number in range(5)]
    reader = await async_client.create_reader(topic, ids[2], start_message_id_inclusive=inclusive)
    assert await read_all(reader) == [f"m-{number}" for number in range(2 if inclusive else 3, 5)]


async def test_an_awaited_reader_begins_inside_a_batch(async_client: pulsar.asyncio.Client, topic: str) -> None:
    await send_batch(async_client, topic, 10)
    reader = await async_client.create_reader(topic, FIRST)
    ids = [(await read_next(reader)).message_id() for _ in range(10)]
    assert await read_all(await async_client.create_reader(topic, ids[6])) == ["m-7", "m-8", "m-9"]


@pytest.mark.quiet_owner(reason="a reader that sought a time comes back to where it began")
async def test_an_awaited_reader_seeks_to_a_message_and_to_a_time(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    producer = await async_client.create_producer(topic, batching_enabled=False)
    ids = [await producer.send(f"m-{number}".encode()) for number in range(3)]
    between_ms = int(time.time() * 1000) + 1  # The broker goes by its own clock.
    await until(lambda: time.time() * 1000 > between_ms, "a later time")
    await producer.send(b"m-3")
    reader = await async_client.create_reader(topic, FIRST)
    assert len(await read_all(reader)) == 4
    await reader.seek(ids[1])
    assert await read_all(reader) == ["m-2", "m-3"]
    await reader.seek(between_ms)
    assert (await read_next(reader)).data() == b"m-3"
    await reader.seek(place_of(FIRST))
    assert len(await read_all(reader)) == 4
    with pytest.raises(ValueError, match="invalid messageid"):
        await reader.seek("earliest")


async def test_an_awaited_reader_decodes_and_decrypts(
    async_client: pulsar.asyncio.Client, topic: str, tmp_path: Path
) -> None:
    keys = key_reader(tmp_path)
    producer = await async_client.create_producer(
        topic, schema=StringSchema(), encryption_key="client-key", crypto_key_reader=keys
    )
    await producer.send("secret")
    reader = await async_client.create_reader(topic, FIRST, schema=StringSchema(), crypto_key_reader=keys)
    assert (await read_next(reader)).value() == "secret"


async def test_awaited_compacted_reads_see_the_last_value_of_each_key(
    async_client: pulsar.asyncio.Client, server: Server, topic: str
) -> None:
    producer = await async_client.create_producer(topic, batching_enabled=False)
    for number in range(20):
        await producer.send(f"{number}".encode(), partition_key=f"k{number % 4}")
    await asyncio.to_thread(compact, server, topic)
    await producer.send(b"after", partition_key="k9")
    reader = await async_client.create_reader(topic, FIRST, is_read_compacted=True)
    assert await read_all(reader) == ["16", "17", "18", "19", "after"]
    consumer = await async_client.subscribe(
        topic, "s", is_read_compacted=True, initial_position=pulsar.InitialPosition.Earliest
    )
    found = [await asyncio.wait_for(consumer.receive(), PATIENCE_S) for _ in range(5)]
    assert [message.data().decode() for message in found] == ["16", "17", "18", "19", "after"]
