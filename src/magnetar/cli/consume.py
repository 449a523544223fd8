"""`magnetar consume TOPIC SUBSCRIPTION`: takes messages from a subscription and prints them.

A message is acknowledged after it was printed: whoever reads the output has it, or it comes again.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from magnetar.cli.admin_options import DEFAULT_URL, ServiceUrl, SubscriptionArgument
from magnetar.cli.flags import AsJson
from magnetar.cli.message_lines import flush, print_message
from magnetar.cli.output import EXIT_INTERRUPTED
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
from magnetar.runtime.event_loop import run
from magnetar.runtime.system import SystemRuntime

TYPES: Final = {"exclusive": EXCLUSIVE, "shared": SHARED, "failover": FAILOVER, "key_shared": KEY_SHARED}
_PATIENCE_S: Final = 3_600.0  # Between two looks at whether there is an end; not a limit.

Type: TypeAlias = Annotated[str, typer.Option("--type", help=f"{', '.join(TYPES)}.")]
Count: TypeAlias = Annotated[int, typer.Option("--count", min=0, help="So many messages. 0: without end.")]
Seconds: TypeAlias = Annotated[
    float, typer.Option("--wait", min=0, metavar="SECONDS", help="End after so long without a message. 0: never.")
]
Earliest: TypeAlias = Annotated[bool, typer.Option("--earliest", help="A new subscription begins with the first one.")]
Keep: TypeAlias = Annotated[bool, typer.Option("--no-ack", help="Acknowledge nothing: all of it comes again.")]

app = typer.Typer(help="Take messages from a subscription.")


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Made if it is not there.")],
    subscription: SubscriptionArgument,
    kind: Type = "exclusive",
    count: Count = 0,
    wait: Seconds = 0,
    earliest: Earliest = False,
    no_ack: Keep = False,
    url: ServiceUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Print messages as they come, each on a line, and acknowledge them."""
    if kind not in TYPES:
        raise ArgumentError(f"--type is one of {', '.join(TYPES)}, not {kind!r}")
    options = ConsumerOptions(type=TYPES[kind], from_earliest=earliest)

    async def main() -> bool:
        async with PulsarClient(url, SystemRuntime().entropy) as client:
            consumer = await client.consumer(topic, subscription, options)
            await _consume(consumer, count, wait or _PATIENCE_S, as_json, ends=wait > 0, acknowledges=not no_ack)
        return True

    if run(main) is None:
        raise typer.Exit(EXIT_INTERRUPTED)


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
        await consumer.acknowledge(last)  # Behind all others: with its receipt they are durable, too.
