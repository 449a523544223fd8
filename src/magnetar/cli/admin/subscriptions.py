"""`magnetar subscriptions`: list, create, move and delete the subscriptions of a topic."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final, TypeAlias

import typer

from magnetar.cli.admin.client import AdminClient, Answer, quote, topic_path
from magnetar.cli.admin.summaries import backlog_messages
from magnetar.cli.cluster_options import DEFAULT_ADMIN_URL, POSITIONS, AdminUrl, SubscriptionArgument, TopicArgument
from magnetar.cli.messages.lines import payload_fields
from magnetar.cli.output import AsJson, Yes, confirm, note, print_json, print_table, printable
from magnetar.errors import ArgumentError
from magnetar.topic.seek_targets import parse_seek_target
from magnetar.wire.pulsar.entry import messages_of_batch
from magnetar.wire.pulsar.frames import Buffer
from magnetar.words import at_least, counted

_NO_TYPE: Final = ("None", "Null", "")  # How servers name the type of a subscription without consumers.

Place: TypeAlias = Annotated[str, typer.Option("--to", metavar="POSITION", help=POSITIONS)]
Disconnect: TypeAlias = Annotated[
    bool, typer.Option("--force", help="Disconnect all consumers of the subscription first.")
]

app = typer.Typer(no_args_is_help=True, help="List, create, move and delete subscriptions.")


@app.command(name="list")
def list_(topic: TopicArgument, url: AdminUrl = DEFAULT_ADMIN_URL, as_json: AsJson = False) -> None:
    """List the subscriptions of a topic with their backlogs, in messages."""
    client, path = AdminClient(url), topic_path(topic)
    is_partitioned = client.get(f"{path}/partitions")["partitions"] > 0
    found = client.get(f"{path}/{'partitioned-stats' if is_partitioned else 'stats'}")["subscriptions"]
    rows = [_row(name, found[name]) for name in sorted(found)]
    if as_json:
        print_json(rows)
    else:
        print_table(["subscription", "type", "backlog", "unacknowledged", "consumers"], [_shown(row) for row in rows])


def _row(name: str, stats: dict[str, Any]) -> dict[str, Any]:
    """The type is known only while there are consumers."""
    kind = stats.get("type") or ""
    messages, is_exact = backlog_messages(stats)
    return {
        "subscription": name,
        "type": "-" if kind in _NO_TYPE else kind,
        "backlog_messages": messages,
        "backlog_entries": stats["msgBacklog"],
        "backlog_messages_exact": is_exact,
        "unacknowledged": stats["unackedMessages"],
        "consumers": len(stats["consumers"]),
    }


def _shown(row: dict[str, Any]) -> list[object]:
    backlog = at_least(str(row["backlog_messages"]), is_exact=row["backlog_messages_exact"])
    return [row["subscription"], row["type"], backlog, row["unacknowledged"], row["consumers"]]


@app.command()
def create(
    topic: TopicArgument, subscription: SubscriptionArgument, to: Place = "latest", url: AdminUrl = DEFAULT_ADMIN_URL
) -> None:
    """Create a subscription without a consumer. Messages after its position are kept until they are
    acknowledged.
    """
    parse_seek_target(to)
    client = AdminClient(url)
    is_new_topic = not client.exists(f"{topic_path(topic)}/partitions")
    if to in ("earliest", "latest"):
        client.put(_path(topic, subscription), to)
    else:
        client.put(_path(topic, subscription), to=to)
    if is_new_topic:
        note(f"there was no topic {topic}: it was created")


@app.command()
def delete(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    force: Disconnect = False,
    yes: Yes = False,
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a subscription. While consumers are connected, --force is needed."""
    confirm(f"Delete subscription {subscription} of {topic}?", yes)
    AdminClient(url).delete(_path(topic, subscription), force=force)


@app.command()
def seek(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    to: Place,
    url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: AsJson = False,
) -> None:
    """Move a subscription to another position, on all partitions or on none. The message at that position is
    delivered next.
    """
    parse_seek_target(to)
    moved = AdminClient(url).post(f"{_path(topic, subscription)}/seek", to=to)
    if as_json:
        print_json(moved)
        return
    for each in moved:
        print(printable(f"{each['topic']}: {_outcome(each)}"))


def _outcome(moved: dict[str, Any]) -> str:
    if not moved["backlogEntries"]:
        return "at the end, nothing is left to deliver"
    left = at_least(counted(moved["backlogMessages"], "message"), is_exact=moved["backlogMessagesExact"])
    batch = f" from message {moved['batchIndex']} of its batch on" if moved["batchIndex"] > 0 else ""
    return f"next is {moved['ledgerId']}:{moved['entryId']}{batch}, {left} to deliver"


@app.command()
def skip(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    count: Annotated[
        int,
        typer.Option("--count", min=0, metavar="N", help="Number of entries to skip; a batch is one entry."),
    ] = 0,
    everything: Annotated[bool, typer.Option("--all", help="Skip the whole backlog.")] = False,
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Acknowledge the next messages of a subscription without delivering them."""
    if everything == bool(count):
        raise ArgumentError("give the number of entries to skip: --count N, or --all")
    AdminClient(url).post(f"{_path(topic, subscription)}/{'skip_all' if everything else f'skip/{count}'}")


@app.command()
def expire(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    seconds: Annotated[
        int,
        typer.Option(
            "--older-than", min=0, metavar="SECONDS", help="Smallest age in seconds of the messages to acknowledge."
        ),
    ],
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Acknowledge all messages of a subscription that are older than the given age."""
    AdminClient(url).post(f"{_path(topic, subscription)}/expireMessages/{seconds}")


@app.command()
def peek(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    number: Annotated[
        int,
        typer.Option(
            "--number", min=1, metavar="N", help="Number of the entry in the backlog; 1 is the next to be delivered."
        ),
    ] = 1,
    url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: AsJson = False,
) -> None:
    """Print an entry of the backlog, without delivering it. If it is a batch, each of its messages is a line. --json
    prints the batch as it is stored."""
    answer = AdminClient(url).call("GET", f"{_path(topic, subscription)}/position/{number}")
    if as_json:
        print_json({"id": answer.headers.get("x-pulsar-message-id")} | payload_fields(answer.body))
        return
    for payload in _payloads(answer):
        sys.stdout.buffer.write(payload)
        sys.stdout.buffer.write(b"\n")


def _payloads(answer: Answer) -> list[Buffer]:
    """Returns those of a batch, without messages that compaction removed. What is encrypted cannot be divided."""
    in_batch = int(answer.headers.get("x-pulsar-num-batch-message", 0))
    if not in_batch or answer.headers.get("x-pulsar-is-encrypted") == "true":
        return [answer.body]
    return [
        message.payload for message in messages_of_batch(answer.body, in_batch) if not message.metadata.compacted_out
    ]


def _path(topic: TopicArgument, subscription: str) -> str:
    return f"{topic_path(topic)}/subscription/{quote(subscription)}"
