"""`magnetar consume TOPIC SUBSCRIPTION`: takes messages from a subscription and prints them.

A message is acknowledged after it was printed, so the reader of the output has it, or it is delivered again.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from magnetar.cli.admin.client import AdminError, topic_path
from magnetar.cli.cluster_options import DEFAULT_URL, HostAdminUrl, NewTopic, ServiceUrl, SubscriptionArgument
from magnetar.cli.flags import AsJson
from magnetar.cli.messages.broker_call import admin_of, exists, run_with_broker
from magnetar.cli.messages.lines import flush, print_message
from magnetar.cli.output import note
from magnetar.client import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Consumer,
    ConsumerOptions,
    Message,
    PulsarClient,
)
from magnetar.errors import ArgumentError, EndOfTopicError
from magnetar.names import TopicName
from magnetar.runtime.system import SystemRuntime

TYPES: Final = {"exclusive": EXCLUSIVE, "shared": SHARED, "failover": FAILOVER, "key_shared": KEY_SHARED}
_PATIENCE_S: Final = 3_600.0  # Between two looks at whether there is an end; not a limit.

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

app = typer.Typer(help="Print messages of a subscription, and acknowledge them.")


@app.command()
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
        await _consume(consumer, count, wait or _PATIENCE_S, as_json, ends=wait > 0, acknowledges=not no_ack)

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
