"""The client's asyncio API: what its tests share.

Order:     the client lives as long as a test's event loop: later answers would find that loop closed.
Limits:    a receive cannot be cancelled, only forgotten. The C++ client ends the process (`bad_weak_ptr`) if a consumer
           that is not closed is dropped while a receive waits: a test that stops waiting closes the consumer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pulsar
import pulsar.asyncio

PATIENCE_S = 20.0
QUIET_S = 0.4  # Long enough for a message that must not come to have come.


def new_client(url: str) -> pulsar.asyncio.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.asyncio.Client(url, logger=quiet, operation_timeout_seconds=20)


def place_of(message_id: pulsar.MessageId | Any) -> pulsar.MessageId:
    """For a seek, which does not take the ids that messages have, nor those of the first and the last one."""
    return message_id if isinstance(message_id, pulsar.MessageId) else pulsar.MessageId.wrap(message_id)


async def send_texts(client: pulsar.asyncio.Client, topic: str, count: int, **settings: Any) -> list[str]:
    """Sends them one after the other; each is answered before the next is sent."""
    producer = await client.create_producer(topic, **{"batching_enabled": False, **settings})
    sent = [f"m-{number}" for number in range(count)]
    for text in sent:
        await producer.send(text.encode())
    await producer.close()
    return sent


async def send_batch(client: pulsar.asyncio.Client, topic: str, count: int) -> list[pulsar.MessageId]:
    """All in one entry."""
    producer = await client.create_producer(topic, batching_max_messages=count, batching_max_publish_delay_ms=10_000)
    ids = await asyncio.gather(*(producer.send(f"m-{number}".encode()) for number in range(count)))
    await producer.close()
    return list(ids)


async def receive(consumer: pulsar.asyncio.Consumer) -> pulsar.Message:
    return await asyncio.wait_for(consumer.receive(), PATIENCE_S)


async def messages(consumer: pulsar.asyncio.Consumer, count: int) -> list[pulsar.Message]:
    return [await receive(consumer) for _ in range(count)]


async def texts(consumer: pulsar.asyncio.Consumer, count: int) -> list[str]:
    """The next messages, acknowledged."""
    found = []
    for _ in range(count):
        message = await receive(consumer)
        found.append(message.data().decode())
        await consumer.acknowledge(message)
    return found


async def is_quiet(consumer: pulsar.asyncio.Consumer) -> bool:
    """Whether nothing more comes. The consumer is closed then."""
    try:
        await asyncio.wait_for(consumer.receive(), QUIET_S)
    except TimeoutError:
        await consumer.close()
        return True
    return False


async def drain(*consumers: pulsar.asyncio.Consumer, count: int) -> list[list[pulsar.Message]]:
    """Receives and acknowledges `count` messages in all, closes the consumers, and returns what each of them got."""
    found: list[list[pulsar.Message]] = [[] for _ in consumers]
    enough = asyncio.Event()

    async def take(which: int) -> None:
        while True:
            message = await consumers[which].receive()
            await consumers[which].acknowledge(message)
            found[which].append(message)
            if sum(map(len, found)) >= count:
                enough.set()

    taking = [asyncio.create_task(take(which)) for which in range(len(consumers))]
    try:
        await asyncio.wait_for(enough.wait(), PATIENCE_S)
    finally:
        for task in taking:
            task.cancel()
        await asyncio.wait(taking)
        for consumer in consumers:
            await consumer.close()
    return found
