"""`magnetar subscriptions`: who reads a topic, how far they are, and moving them."""

from __future__ import annotations

import sys
from typing import Annotated, Any, TypeAlias

import typer

from magnetar.cli.admin_client import AdminClient, quote, topic_path
from magnetar.cli.admin_options import DEFAULT_ADMIN_URL, AdminUrl, SubscriptionArgument, TopicArgument
from magnetar.cli.flags import AsJson, Force, confirm
from magnetar.cli.output import print_json, print_table
from magnetar.errors import ArgumentError

Place: TypeAlias = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="PLACE",
        help="earliest, latest, a message id (12:34), -1000 (messages), -10m (ago), a time, or index:42.",
    ),
]

app = typer.Typer(no_args_is_help=True, help="List, make, move and delete subscriptions.")


@app.command(name="list")
def list_(topic: TopicArgument, url: AdminUrl = DEFAULT_ADMIN_URL, as_json: AsJson = False) -> None:
    """List the subscriptions of a topic, and how far behind they are."""
    client, path = AdminClient(url), topic_path(topic)
    is_partitioned = client.get(f"{path}/partitions")["partitions"] > 0
    found = client.get(f"{path}/{'partitioned-stats' if is_partitioned else 'stats'}")["subscriptions"]
    rows = [_row(name, found[name]) for name in sorted(found)]
    if as_json:
        print_json(rows)
    else:
        print_table(
            ["subscription", "type", "backlog", "unacknowledged", "consumers"], [list(row.values()) for row in rows]
        )


def _row(name: str, stats: dict[str, Any]) -> dict[str, Any]:
    return {
        "subscription": name,
        "type": stats.get("type") or "-",
        "backlog": stats["msgBacklog"],
        "unacknowledged": stats["unackedMessages"],
        "consumers": len(stats["consumers"]),
    }


@app.command()
def create(
    topic: TopicArgument, subscription: SubscriptionArgument, to: Place = "latest", url: AdminUrl = DEFAULT_ADMIN_URL
) -> None:
    """Make a subscription that nobody reads yet: messages are kept for it."""
    client = AdminClient(url)
    client.put(_path(topic, subscription), "earliest" if to == "earliest" else "latest")
    if to not in ("earliest", "latest"):
        client.post(f"{_path(topic, subscription)}/seek", to=to)


@app.command()
def delete(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    disconnect: Annotated[bool, typer.Option("--disconnect", help="Also while consumers are connected.")] = False,
    force: Force = False,
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a subscription; what only it has not read may be deleted then."""
    confirm(f"Delete subscription {subscription} of {topic}?", force)
    AdminClient(url).delete(_path(topic, subscription), force=disconnect)


@app.command()
def seek(
    topic: TopicArgument, subscription: SubscriptionArgument, to: Place, url: AdminUrl = DEFAULT_ADMIN_URL
) -> None:
    """Move a subscription: the message at that place is the next one it delivers."""
    AdminClient(url).post(f"{_path(topic, subscription)}/seek", to=to)


@app.command()
def skip(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    count: Annotated[int, typer.Option("--count", min=0, help="So many messages.")] = 0,
    everything: Annotated[bool, typer.Option("--all", help="The whole backlog.")] = False,
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Count messages as acknowledged."""
    if everything == bool(count):
        raise ArgumentError("say how many to skip: --count N, or --all")
    AdminClient(url).post(f"{_path(topic, subscription)}/{'skip_all' if everything else f'skip/{count}'}")


@app.command()
def expire(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    seconds: Annotated[int, typer.Option("--older-than", min=0, metavar="SECONDS", help="Their age.")],
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Count messages that are so old as acknowledged."""
    AdminClient(url).post(f"{_path(topic, subscription)}/expireMessages/{seconds}")


@app.command()
def peek(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    number: Annotated[int, typer.Option("--number", min=1, help="Which one of the backlog, from 1 on.")] = 1,
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Print an entry of the backlog as it is stored, without taking it: a batch comes as a whole."""
    answer = AdminClient(url).call("GET", f"{_path(topic, subscription)}/position/{number}")
    sys.stdout.buffer.write(answer.body)


def _path(topic: TopicArgument, subscription: str) -> str:
    return f"{topic_path(topic)}/subscription/{quote(subscription)}"
