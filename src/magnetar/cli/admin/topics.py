"""`magnetar topics`: list, create, inspect and delete topics."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from magnetar.cli.admin.client import AdminClient, namespace_path, topic_path
from magnetar.cli.admin.summaries import print_internal_stats, print_stats
from magnetar.cli.cluster_options import DEFAULT_ADMIN_URL, DEFAULT_NAMESPACE, AdminUrl, TopicArgument
from magnetar.cli.output import AsJson, Yes, confirm, note, print_json, print_names
from magnetar.words import counted

_NOTED_PARTITIONS: Final = 1_000  # Creating more takes a moment, so a note explains the wait.

Partitions: TypeAlias = Annotated[
    int, typer.Option("--partitions", min=0, metavar="N", help="Number of partitions. 0: a topic without partitions.")
]
NonPersistent: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--non-persistent",
        help="List non-persistent topics, whose messages are not stored. Default: list persistent topics.",
    ),
]
PerPartition: TypeAlias = Annotated[
    bool, typer.Option("--per-partition", help="Also print the statistics of each partition.")
]
Disconnect: TypeAlias = Annotated[bool, typer.Option("--force", help="Disconnect all producers and consumers first.")]

app = typer.Typer(no_args_is_help=True, help="List, create, inspect and delete topics.")


@app.command(name="list")
def list_(
    namespace: Annotated[
        str, typer.Argument(metavar="NAMESPACE", help="Namespace, as TENANT/NAMESPACE.")
    ] = DEFAULT_NAMESPACE,
    non_persistent: NonPersistent = False,
    url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: AsJson = False,
) -> None:
    """List the topics of a namespace. A partitioned topic is listed as its partitions."""
    domain = "non-persistent" if non_persistent else "persistent"
    print_names(AdminClient(url).get(f"{domain}/{namespace_path(namespace)}"), as_json)


@app.command()
def create(topic: TopicArgument, partitions: Partitions = 0, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Create a topic, with or without partitions."""
    if partitions >= _NOTED_PARTITIONS:
        note(f"creating {counted(partitions, 'partition')}: all of them, or none")
    if partitions:
        AdminClient(url).put(f"{topic_path(topic)}/partitions", partitions)
    else:
        AdminClient(url).put(topic_path(topic))


@app.command()
def delete(
    topic: TopicArgument, force: Disconnect = False, yes: Yes = False, url: AdminUrl = DEFAULT_ADMIN_URL
) -> None:
    """Delete a topic with its messages and subscriptions. While clients are connected, --force is needed."""
    confirm(f"Delete {topic} with all its messages?", yes)
    client = AdminClient(url)
    is_partitioned = _partitions(client, topic_path(topic)) > 0
    client.delete(topic_path(topic) + ("/partitions" if is_partitioned else ""), force=force)


@app.command()
def partitions(topic: TopicArgument, url: AdminUrl = DEFAULT_ADMIN_URL, as_json: AsJson = False) -> None:
    """Print the number of partitions of a topic, or 0 if it is not partitioned."""
    count = _partitions(AdminClient(url), topic_path(topic))
    print_json({"topic": str(topic), "partitions": count}) if as_json else print(count)


@app.command()
def grow(
    topic: TopicArgument,
    count: Annotated[int, typer.Option("--partitions", min=1, metavar="N", help="New total number of partitions.")],
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Add partitions to a partitioned topic."""
    AdminClient(url).post(f"{topic_path(topic)}/partitions", count)


@app.command()
def stats(
    topic: TopicArgument,
    per_partition: PerPartition = False,
    url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: AsJson = False,
) -> None:
    """Print statistics of a topic: messages, rates, backlogs, producers and consumers."""
    client, path = AdminClient(url), topic_path(topic)
    if _partitions(client, path):
        found = client.get(f"{path}/partitioned-stats", perPartition=per_partition)
    else:
        found = client.get(f"{path}/stats")
    print_json(found) if as_json else print_stats(str(topic), found)


@app.command()
def internal_stats(topic: TopicArgument, url: AdminUrl = DEFAULT_ADMIN_URL, as_json: AsJson = False) -> None:
    """Print the ledgers and cursors of a topic, or of each of its partitions."""
    client, path = AdminClient(url), topic_path(topic)
    which = "partitioned-internalStats" if _partitions(client, path) else "internalStats"
    found = client.get(f"{path}/{which}")
    print_json(found) if as_json else print_internal_stats(str(topic), found)


@app.command()
def last_id(topic: TopicArgument, url: AdminUrl = DEFAULT_ADMIN_URL, as_json: AsJson = False) -> None:
    """Print the id of the last message, as LEDGER:ENTRY."""
    found = AdminClient(url).get(f"{topic_path(topic)}/lastMessageId")
    print_json(found) if as_json else print(f"{found['ledgerId']}:{found['entryId']}")


@app.command()
def unload(topic: TopicArgument, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Close a topic on its broker. Clients reconnect, and the topic is opened again."""
    AdminClient(url).put(f"{topic_path(topic)}/unload")


@app.command()
def compact(topic: TopicArgument, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Start the compaction of a topic. Readers can then choose to see only the last message of each key."""
    AdminClient(url).put(f"{topic_path(topic)}/compaction")


@app.command()
def terminate(topic: TopicArgument, yes: Yes = False, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """End a topic: it accepts no new messages, ever. Its existing messages can still be read."""
    confirm(f"Close {topic} to new messages forever?", yes)
    client, path = AdminClient(url), topic_path(topic)
    is_partitioned = _partitions(client, path) > 0
    client.post(f"{path}/terminate" + ("/partitions" if is_partitioned else ""))


@app.command()
def truncate(topic: TopicArgument, yes: Yes = False, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Delete all messages of a topic, whether or not they are acknowledged."""
    confirm(f"Delete all messages of {topic}?", yes)
    AdminClient(url).delete(f"{topic_path(topic)}/truncate")


def _partitions(client: AdminClient, path: str) -> int:
    found: int = client.get(f"{path}/partitions")["partitions"]
    return found
