"""`magnetar produce TOPIC`: publishes lines of standard input, or arguments, as messages.

Failure:   a message that cannot be sent ends it. Messages before it are stored first, and counted; the error names the
           line. Messages after it are not sent, unless the broker refused it: some may have been in flight by then.
Limits:    a message is as large as the broker takes; with --chunking, as large as consumers join.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import typer

from magnetar.cli.cluster_options import DEFAULT_URL, NewTopic, ServiceUrl
from magnetar.cli.input import lines
from magnetar.cli.messages.broker_call import exists, run_with_broker
from magnetar.cli.messages.lines import ToSend, parse_line
from magnetar.cli.output import note
from magnetar.client import MessageId, ProducerOptions, PulsarClient
from magnetar.client.consuming.incoming import CHUNKED_BYTES_MAX
from magnetar.client.producing.producer import Producer, Sent
from magnetar.errors import ArgumentError, InputLineError, LineTooLongError, MagnetarError, MessageTooLargeError
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, CompressionType
from magnetar.words import counted

COMPRESSIONS: Final = {"none": NONE, "lz4": LZ4, "zlib": ZLIB, "zstd": ZSTD, "snappy": SNAPPY}
_JSON_ROOM: Final = 4  # A line of JSON may be this many times as long as the message in it: escapes, base64, a key.

Texts: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MESSAGE...]", help="Messages to publish. Default: each line of standard input."),
]
Key: TypeAlias = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Key to give to every message.")]
Properties: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--property", metavar="NAME=VALUE", help="Property to give to every message; may be repeated."),
]
Name: TypeAlias = Annotated[
    str,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Name of the producer. The broker needs it for deduplication. Default: the broker chooses one.",
    ),
]
Compression: TypeAlias = Annotated[
    str,
    typer.Option("--compression", metavar="CODEC", help="Compression of messages: none, lz4, zlib, zstd or snappy."),
]
Chunking: TypeAlias = Annotated[
    bool, typer.Option("--chunking", help="Split messages that are larger than the broker's limit into chunks.")
]
WithIds: TypeAlias = Annotated[bool, typer.Option("--ids", help="Print the id of each message when it is stored.")]
JsonInput: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Read each message as a JSON object (see docs/cli.md).")
]

app = typer.Typer(help="Publish messages to a topic.")


@app.command()
def produce(
    topic: NewTopic,
    messages: Texts = None,
    key: Key = None,
    properties: Properties = None,
    name: Name = "",
    compression: Compression = "none",
    chunking: Chunking = False,
    ids: WithIds = False,
    url: ServiceUrl = DEFAULT_URL,
    as_json: JsonInput = False,
) -> None:
    """Publish messages to a topic, and exit when all of them are stored."""
    options = ProducerOptions(name=name, compression=_compression(compression), chunking=chunking)
    common: dict[str, Any] = {}
    if key is not None:
        common["key"] = key
    if properties:
        common["properties"] = dict(_property(text) for text in properties)

    async def command(client: PulsarClient) -> None:
        is_new = not await exists(client, str(topic))
        producer = await client.producer(str(topic), options)
        if is_new:
            note(f"there was no topic {producer.topic}: it was created")
        limit = CHUNKED_BYTES_MAX if chunking else producer.message_bytes_max
        publishing = _Publishing(producer, common, limit=limit, prints_ids=ids)
        await publishing.publish(_source(messages, limit, as_json), as_json=as_json, from_input=not messages)

    run_with_broker(command, url)


async def _source(texts: list[str] | None, limit: int, as_json: bool) -> AsyncIterator[bytes]:
    if texts:
        for text in texts:
            yield text.encode("utf-8", "surrogateescape")
        return
    async for line in lines(limit * _JSON_ROOM if as_json else limit):
        yield line


class _InFlight(NamedTuple):
    number: int
    sent: Sent


class _Publishing:
    """Sends messages and follows each until it is stored. Numbers count from 1, as lines do."""

    def __init__(self, producer: Producer, common: dict[str, Any], *, limit: int, prints_ids: bool) -> None:
        self._producer = producer
        self._common = common
        self._limit = limit
        self._prints_ids = prints_ids
        self._in_flight: asyncio.Queue[_InFlight | None] = asyncio.Queue()  # As many as the producer has room for.
        self._number = 0
        self._stored = 0

    async def publish(self, source: AsyncIterator[bytes], *, as_json: bool, from_input: bool) -> None:
        """The first failure ends it, also while the input continues. What was sent before it is stored by then."""
        sending = asyncio.ensure_future(self._send(source, as_json))
        settling = asyncio.ensure_future(self._settle())
        try:
            await settling  # Ends at once where the broker refuses a message, and otherwise after the last one.
            await sending
        except MagnetarError as error:
            raise InputLineError(self._described(error, from_input=from_input)) from error
        finally:
            for task in (sending, settling):
                task.cancel()
            await asyncio.gather(sending, settling, return_exceptions=True)

    async def _send(self, source: AsyncIterator[bytes], as_json: bool) -> None:
        try:
            async for line in source:
                self._number += 1
                message = parse_line(line) if as_json else ToSend(line)
                await self._producer.wait_room()
                sent = self._producer.send_nowait(message.payload, **{**self._common, **message.options})
                self._in_flight.put_nowait(_InFlight(self._number, sent))
        except LineTooLongError as error:
            self._number = error.number
            raise
        finally:
            self._in_flight.put_nowait(None)

    async def _settle(self) -> None:
        while (waiting := await self._in_flight.get()) is not None:
            try:
                message_id = await waiting.sent
            except MagnetarError:
                self._number = waiting.number
                raise
            self._stored += 1
            if self._prints_ids:
                self._print(message_id)

    def _print(self, message_id: MessageId) -> None:
        """Messages are stored even if the reader of the ids has left."""
        try:
            print(message_id, flush=True)
        except BrokenPipeError:
            self._prints_ids = False

    def _described(self, error: MagnetarError, *, from_input: bool) -> str:
        which = f"line {self._number} of the input" if from_input else f"message {self._number}"
        is_too_large = isinstance(error, LineTooLongError | MessageTooLargeError)
        why = f"it exceeds the limit of {self._limit:,} bytes with metadata" if is_too_large else str(error)
        if is_too_large and self._limit < CHUNKED_BYTES_MAX:
            why += ": give --chunking, or make it smaller"
        before = f"{counted(self._stored, 'message')} before it {'is' if self._stored == 1 else 'are'} stored"
        resume = f", continue with line {self._number} (tail -n +{self._number})" if from_input else ""
        return f"{which}: {why}; {before if self._stored else 'nothing is stored'}{resume}"


def _compression(name: str) -> CompressionType:
    if name.lower() not in COMPRESSIONS:
        raise ArgumentError(f"--compression is one of {', '.join(COMPRESSIONS)}, not {name!r}")
    return COMPRESSIONS[name.lower()]


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ArgumentError(f"--property takes NAME=VALUE, not {text!r}")
    return name, value
