"""`magnetar consume TOPIC SUBSCRIPTION` and `magnetar read TOPIC`: they print messages.

`consume` takes messages from a subscription. A message is acknowledged after it was printed, so the reader of the
output has it, or it is delivered again. `read` makes no subscription.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final, TypeAlias

import typer

from magnetar.cli.admin.client import AdminError, topic_path
from magnetar.cli.cluster_options import (
    DEFAULT_URL,
    POSITIONS,
    HostAdminUrl,
    NewTopic,
    ServiceUrl,
    SubscriptionArgument,
    TopicArgument,
)
from magnetar.cli.messages.broker_call import admin_of, exists, run_with_broker
from magnetar.cli.messages.lines import flush, print_message
from magnetar.cli.output import AsJson, note
from magnetar.client import (
    EARLIEST,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    LATEST,
    SHARED,
    Consumer,
    ConsumerOptions,
    Message,
    MessageId,
    PulsarClient,
    Reader,
)
from magnetar.errors import ArgumentError, EndOfTopicError, InvalidCursorPositionError, TopicNotFoundError
from magnetar.names import TopicName
from magnetar.runtime.system import SystemRuntime
from magnetar.topic.seek_targets import AtMessage, AtTime, SeekTarget, TimeAgo, is_of_one_log, parse_seek_target
from magnetar.words import counted

TYPES: Final = {"exclusive": EXCLUSIVE, "shared": SHARED, "failover": FAILOVER, "key_shared": KEY_SHARED}
_LOOK_AGAIN_S: Final = 3_600.0  # Between two looks at whether there is an end; not a limit.
_NAME_DIGITS: Final = 6
_LOOK_S: Final = 2.0  # For the admin interface, which only knows whether the subscription is new.

Type: TypeAlias = Annotated[
    str, typer.Option("--type", metavar="TYPE", help=f"Type of the subscription: {', '.join(TYPES)}.")
]
Count: TypeAlias = Annotated[
    int, typer.Option("--count", min=0, metavar="N", help="Exit after this many messages. 0: no limit.")
]
Seconds: TypeAlias = Annotated[
    float,
    typer.Option("--wait", min=0, metavar="SECONDS", help="Exit after this many seconds without a message. 0: never."),
]
Earliest: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--earliest",
        help="If the subscription does not exist yet, start it at the first message of the topic. Default: at new "
        "messages.",
    ),
]
Keep: TypeAlias = Annotated[
    bool, typer.Option("--no-ack", help="Do not acknowledge messages, so that they are delivered again.")
]

consume_app = typer.Typer()


@consume_app.command()
def consume(
    topic: NewTopic,
    subscription: SubscriptionArgument,
    kind: Type = "exclusive",
    count: Count = 0,
    wait: Seconds = 0,
    earliest: Earliest = False,
    no_ack: Keep = False,
    url: ServiceUrl = DEFAULT_URL,
    admin_url: HostAdminUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print messages of a subscription as they arrive, one per line, and acknowledge them."""
    if kind not in TYPES:
        raise ArgumentError(f"--type is one of {', '.join(TYPES)}, not {kind!r}")
    name = f"magnetar-consume-{SystemRuntime().entropy.uuid().hex[:_NAME_DIGITS]}"
    options = ConsumerOptions(type=TYPES[kind], name=name, from_earliest=earliest)

    async def command(client: PulsarClient) -> None:
        is_new_topic = not await exists(client, str(topic))
        is_new = is_new_topic or _is_new(topic, subscription, url, admin_url)
        consumer = await client.consumer(str(topic), subscription, options)
        if is_new_topic:
            note(f"there was no topic {consumer.topic}: it was created, with subscription {subscription}")
        elif is_new:
            note(f"there was no subscription {subscription} of {consumer.topic}: it was created")
        await _consume(consumer, count, wait or _LOOK_AGAIN_S, as_json, ends=wait > 0, acknowledges=not no_ack)

    run_with_broker(command, url)


def _is_new(topic: TopicName, subscription: str, url: str, admin_url: str | None) -> bool:
    """False also where the admin interface does not answer: the protocol of clients cannot tell."""
    path = f"{topic_path(topic)}/subscriptions"
    try:
        return subscription not in admin_of(url, admin_url, timeout_s=_LOOK_S).get(path)
    except AdminError:
        return False


async def _consume(
    consumer: Consumer, count: int, patience_s: float, as_json: bool, *, ends: bool, acknowledges: bool
) -> None:
    printed = 0
    last: Message | None = None
    while not count or printed < count:
        message = consumer.receive_nowait()
        if message is None:
            flush()
            try:
                message = await consumer.receive(patience_s)
            except TimeoutError:
                if ends:
                    break
                continue
            except EndOfTopicError:
                break
        print_message(message, as_json)
        printed += 1
        last = message
        if acknowledges:
            consumer.acknowledge_nowait(message)
    flush()
    if last is not None and acknowledges:
        await consumer.acknowledge(last)  # After all others: with its receipt they are durable, too.


_PATIENCE_S: Final = 30.0

From: TypeAlias = Annotated[str, typer.Option("--from", metavar="POSITION", help=POSITIONS)]
Follow: TypeAlias = Annotated[
    bool, typer.Option("--follow", "-f", help="At the end of the topic, wait for new messages.")
]
Compacted: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--compacted", help="Print only the last message of each key, in the part of the topic that is compacted."
    ),
]
Create: TypeAlias = Annotated[bool, typer.Option("--create", help="Create the topic if it does not exist.")]

read_app = typer.Typer()


@read_app.command()
def read(
    name: TopicArgument,
    begin: From = "earliest",
    count: Count = 0,
    follow: Follow = False,
    compacted: Compacted = False,
    create: Create = False,
    url: ServiceUrl = DEFAULT_URL,
    admin_url: HostAdminUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic, one per line, and exit at its end. Subscriptions do not change."""
    place, topic = parse_seek_target(begin), str(name)

    async def command(client: PulsarClient) -> None:
        if not create and not await exists(client, topic):
            raise TopicNotFoundError(
                f"there is no topic {topic}: `magnetar topics list` shows those that exist, --create creates it"
            )
        if is_of_one_log(place) and (partitions := await client.partitions_of(topic, create=create)):
            raise ArgumentError(
                f"{begin} is a position in one partition, and {topic} has {counted(partitions, 'partition')}: read "
                f"one of them, such as {topic}-partition-0, or start at earliest, latest or a time"
            )
        start = _start(place, name, url, admin_url, begin)
        first = start if isinstance(start, MessageId) else EARLIEST
        reader = await client.reader(topic, first, is_inclusive=True, read_compacted=compacted)
        if isinstance(start, int):
            await reader.seek(start)
        message = None
        if isinstance(place, AtMessage) and is_of_one_log(place) and not compacted:
            message = await _message_at(client, reader, topic, first)
        await _read(reader, message, count, follow, as_json)

    run_with_broker(command, url)


def _start(place: SeekTarget, topic: TopicName, url: str, admin_url: str | None, text: str) -> MessageId | int:
    """A message, or a publish time in ms. Only numbers of messages need the admin interface."""
    match place:
        case AtMessage(position, batch_index):
            if not is_of_one_log(place):
                return EARLIEST if text.strip() == "earliest" else LATEST
            return MessageId(*position, batch_index)
        case AtTime(publish_ms):
            return publish_ms
        case TimeAgo(ms):
            return max(SystemRuntime().entropy.wall_ms() - ms, 0)
    found = admin_of(url, admin_url).get(f"{topic_path(topic)}/place", at=text, existing=True)
    if found["ledgerId"] >= LATEST.ledger_id:
        return LATEST
    return MessageId(found["ledgerId"], found["entryId"], found["batchIndex"])


async def _message_at(client: PulsarClient, reader: Reader, topic: str, wanted: MessageId) -> Message:
    """The message of this id, which the reader begins with. InvalidCursorPositionError: the topic does not have it."""
    (last,) = await reader.last_message_ids()
    is_before_end = wanted[:2] <= last[:2] and await reader.has_next()
    found = await reader.read(_PATIENCE_S) if is_before_end else None
    if found is not None and found.id[:2] == wanted[:2] and wanted.batch_index in (-1, found.id.batch_index):
        return found
    if last.entry_id < 0:
        raise InvalidCursorPositionError(f"no message has the id {wanted}: {topic} is empty")
    oldest = await client.reader(topic, EARLIEST, is_inclusive=True)
    first = (await oldest.read(_PATIENCE_S)).id
    raise InvalidCursorPositionError(
        f"no message of {topic} has the id {wanted}: those that exist are {first} to {last}"
    )


async def _read(reader: Reader, message: Message | None, count: int, follow: bool, as_json: bool) -> None:
    """`message` was read already."""
    printed = 0
    while not count or printed < count:
        message = message or reader.read_nowait()
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
        message = None
        printed += 1
    flush()
