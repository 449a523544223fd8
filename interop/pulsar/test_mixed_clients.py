"""What one official client wrote, the other one reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pulsar

from interop.comparing import same
from interop.pulsar.conftest import Server

COUNT = 500
_PATIENCE_MS = 20_000


async def _with_python(server: Server, work: Callable[[pulsar.Client], Any]) -> Any:
    def run() -> Any:
        client = pulsar.Client(server.standalone.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            return work(client)
        finally:
            client.close()

    return await asyncio.to_thread(run)


async def test_the_java_client_reads_what_the_python_client_wrote(server: Server) -> None:
    for compression in (pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZSTD):
        topic = server.new_topic()

        def write(client: pulsar.Client, topic: str = topic, kind: pulsar.CompressionType = compression) -> None:
            producer = client.create_producer(topic, batching_enabled=True, compression_type=kind)
            for number in range(COUNT):
                producer.send_async(f"m-{number}".encode(), None, partition_key=f"k-{number % 7}")
            producer.flush()

        await _with_python(server, write)
        found = await server.ask("read", topic=topic)
        same("texts", [message["text"] for message in found], [f"m-{number}" for number in range(COUNT)])
        same("keys", [message["key"] for message in found], [f"k-{number % 7}" for number in range(COUNT)])


async def test_the_python_client_reads_what_the_java_client_wrote(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("produce", topic=topic, count=COUNT, batching=True, keys=7)

    def read(client: pulsar.Client) -> list[str]:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        return [reader.read_next(_PATIENCE_MS).data().decode() for _ in range(COUNT)]

    same("texts", await _with_python(server, read), [f"m-{number}" for number in range(COUNT)])
