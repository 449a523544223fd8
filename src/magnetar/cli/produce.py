"""`magnetar produce TOPIC`: lines of standard input, or what is on the command line, as messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, TypeAlias

import typer

from magnetar.cli.admin_options import DEFAULT_URL, ServiceUrl
from magnetar.cli.flags import AsJson
from magnetar.cli.ledger_source import lines
from magnetar.cli.message_lines import ToSend, parse_line
from magnetar.cli.output import EXIT_INTERRUPTED
from magnetar.client import ProducerOptions, PulsarClient
from magnetar.client.producer import Producer
from magnetar.client.topic_producer import Sent
from magnetar.errors import ArgumentError
from magnetar.runtime.event_loop import run
from magnetar.runtime.system import SystemRuntime
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, CompressionType

COMPRESSIONS: Final = {"none": NONE, "lz4": LZ4, "zlib": ZLIB, "zstd": ZSTD, "snappy": SNAPPY}

Texts: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="[MESSAGE...]", help="Messages; else the lines of standard input.")
]
Key: TypeAlias = Annotated[str | None, typer.Option("--key", help="Of every message.")]
Properties: TypeAlias = Annotated[
    list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="Of every message; may be repeated.")
]
Name: TypeAlias = Annotated[str, typer.Option("--name", help="The producer's; deduplication goes by it.")]
Compression: TypeAlias = Annotated[str, typer.Option("--compression", help="none, lz4, zlib, zstd or snappy.")]
WithIds: TypeAlias = Annotated[bool, typer.Option("--ids", help="Print the id of each message when it is stored.")]

app = typer.Typer(help="Publish messages.")


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Made if it is not there.")],
    messages: Texts = None,
    key: Key = None,
    properties: Properties = None,
    name: Name = "",
    compression: Compression = "none",
    ids: WithIds = False,
    url: ServiceUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Publish messages; ends when all of them are stored. With --json each line of the input is an object."""
    options = ProducerOptions(name=name, compression=_compression(compression))
    common: dict[str, Any] = {}
    if key is not None:
        common["key"] = key
    if properties:
        common["properties"] = dict(_property(text) for text in properties)

    async def main() -> bool:
        async with PulsarClient(url, SystemRuntime().entropy) as client:
            producer = await client.producer(topic, options)
            await _send_all(producer, _source(messages, as_json), common, ids)
        return True

    if run(main) is None:
        raise typer.Exit(EXIT_INTERRUPTED)


async def _source(texts: list[str] | None, as_json: bool) -> AsyncIterator[ToSend]:
    number = 0
    if texts:
        for text in texts:
            number += 1
            encoded = text.encode("utf-8", "surrogateescape")
            yield parse_line(encoded, number) if as_json else ToSend(encoded)
        return
    async for line in lines():
        number += 1
        yield parse_line(line, number) if as_json else ToSend(line)


async def _send_all(
    producer: Producer, source: AsyncIterator[ToSend], common: dict[str, Any], prints_ids: bool
) -> None:
    """Every failure ends it, also while the input goes on: the first one is told."""
    under_way: asyncio.Queue[Sent | None] = asyncio.Queue()  # As many as the producer has room for.
    settling = asyncio.ensure_future(_settle(under_way, prints_ids))
    sending = asyncio.ensure_future(_send(producer, source, common, under_way))
    try:
        await asyncio.wait([sending, settling], return_when=asyncio.FIRST_EXCEPTION)
        await settling
        await sending
    finally:
        for task in (sending, settling):
            task.cancel()
        await asyncio.gather(sending, settling, return_exceptions=True)


async def _send(
    producer: Producer,
    source: AsyncIterator[ToSend],
    common: dict[str, Any],
    under_way: asyncio.Queue[Sent | None],
) -> None:
    try:
        async for message in source:
            await producer.wait_room()
            under_way.put_nowait(producer.send_nowait(message.payload, **{**common, **message.options}))
    finally:
        under_way.put_nowait(None)


async def _settle(under_way: asyncio.Queue[Sent | None], prints_ids: bool) -> None:
    while (sent := await under_way.get()) is not None:
        message_id = await sent
        if prints_ids:
            print(message_id, flush=True)


def _compression(name: str) -> CompressionType:
    if name.lower() not in COMPRESSIONS:
        raise ArgumentError(f"--compression is one of {', '.join(COMPRESSIONS)}, not {name!r}")
    return COMPRESSIONS[name.lower()]


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ArgumentError(f"--property takes NAME=VALUE, not {text!r}")
    return name, value
