"""The client's asyncio API on the same server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pulsar
import pulsar.asyncio
import pytest

from tests.integration.pulsar.features.conftest import Server

PATIENCE_S = 20.0


@pytest.fixture
async def async_client(server: Server) -> AsyncIterator[pulsar.asyncio.Client]:
    client = pulsar.asyncio.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    await client.close()


async def test_messages_are_sent_and_received(async_client: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await async_client.subscribe(topic, "s")
    producer = await async_client.create_producer(topic)
    for number in range(10):
        await producer.send(f"m-{number}".encode())
    async with asyncio.timeout(PATIENCE_S):
        found = []
        for _ in range(10):
            message = await consumer.receive()
            found.append(message.data().decode())
            await consumer.acknowledge(message)
    assert found == [f"m-{number}" for number in range(10)]


async def test_an_acknowledgement_is_kept(async_client: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await async_client.subscribe(topic, "s")
    producer = await async_client.create_producer(topic)
    for number in range(4):
        await producer.send(f"m-{number}".encode())
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            message = await consumer.receive()
        await consumer.acknowledge_cumulative(message)
        await consumer.close()
        again = await async_client.subscribe(topic, "s")
        assert (await again.receive()).data() == b"m-2"


async def test_a_consumer_seeks(async_client: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await async_client.subscribe(topic, "s")
    producer = await async_client.create_producer(topic)
    await producer.send(b"one")
    async with asyncio.timeout(PATIENCE_S):
        await consumer.acknowledge(await consumer.receive())
        await consumer.seek(1)  # A time in milliseconds.
        assert (await consumer.receive()).data() == b"one"


async def test_an_error_is_raised_where_it_is_awaited(async_client: pulsar.asyncio.Client, topic: str) -> None:
    holder = await async_client.subscribe(topic, "s")
    with pytest.raises(pulsar.asyncio.PulsarException):
        await async_client.subscribe(topic, "s")
    await holder.close()
