"""`magnetar read TOPIC`: prints what is in a topic, and leaves nothing behind there."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final, TypeAlias

import typer

from magnetar.broker.names import TopicName
from magnetar.cli.admin_client import AdminClient, topic_path
from magnetar.cli.admin_options import DEFAULT_ADMIN_URL, DEFAULT_URL, AdminUrl, ServiceUrl
from magnetar.cli.consume import Count
from magnetar.cli.flags import AsJson
from magnetar.cli.message_lines import flush, print_message
from magnetar.cli.output import EXIT_INTERRUPTED
from magnetar.client import EARLIEST, LATEST, MessageId, PulsarClient, Reader
from magnetar.errors import ArgumentError, EndOfTopicError
from magnetar.runtime.event_loop import run
from magnetar.runtime.system import SystemRuntime
from magnetar.topic.seek import AtMessage, AtTime, TimeAgo, parse_place

_PATIENCE_S: Final = 30.0

From: TypeAlias = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="earliest, latest, a message id (12:34), -1000 (messages), -10m (ago), a time, or index:42.",
    ),
]
Follow: TypeAlias = Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end.")]
Compacted: TypeAlias = Annotated[bool, typer.Option("--compacted", help="Of each key only the last, as compacted.")]

app = typer.Typer(help="Print what is in a topic.")


@app.command()
def read(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    begin: From = "earliest",
    count: Count = 0,
    follow: Follow = False,
    compacted: Compacted = False,
    url: ServiceUrl = DEFAULT_URL,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic, each on a line, up to its end; subscriptions are not touched."""
    entropy = SystemRuntime().entropy
    start = _start(begin, topic, admin_url, entropy.wall_ms())

    async def main() -> bool:
        async with PulsarClient(url, entropy) as client:
            first = start if isinstance(start, MessageId) else EARLIEST
            reader = await client.reader(topic, first, is_inclusive=True, read_compacted=compacted)
            if isinstance(start, int):
                await reader.seek(start)
            await _read(reader, count, follow, as_json)
        return True

    if run(main) is None:
        raise typer.Exit(EXIT_INTERRUPTED)


def _start(text: str, topic: str, admin_url: str, now_ms: int) -> MessageId | int:
    """A message, or a publish time in ms. Only numbers of messages need the admin interface."""
    place = parse_place(text)
    match place:
        case AtMessage(position, batch_index):
            if text in ("earliest", "latest"):
                return EARLIEST if text == "earliest" else LATEST
            return MessageId(*position, batch_index)
        case AtTime(publish_ms):
            return publish_ms
        case TimeAgo(ms):
            return max(now_ms - ms, 0)
    client, path = AdminClient(admin_url), topic_path(TopicName.parse(topic))
    if client.get(f"{path}/partitions")["partitions"]:
        raise ArgumentError(f"{text} counts messages of one topic, and {topic} has partitions: read one of them")
    found = client.get(f"{path}/place", at=text)
    if found["ledgerId"] >= LATEST.ledger_id:
        return LATEST
    return MessageId(found["ledgerId"], found["entryId"], found["batchIndex"])


async def _read(reader: Reader, count: int, follow: bool, as_json: bool) -> None:
    printed = 0
    while not count or printed < count:
        message = reader.read_nowait()
        if message is None:
            flush()
            if not follow and not await reader.has_next():
                break
            try:
                message = await reader.read(_PATIENCE_S)
            except TimeoutError:
                await asyncio.sleep(0)
                continue
            except EndOfTopicError:
                break
        print_message(message, as_json)
        printed += 1
    flush()
