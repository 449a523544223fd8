"""`magnetar topics`: which there are, how they are, and what can be done to them as a whole."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from magnetar.cli.admin_client import AdminClient, namespace_path, topic_path
from magnetar.cli.admin_options import DEFAULT_ADMIN_URL, DEFAULT_NAMESPACE, AdminUrl, TopicArgument
from magnetar.cli.flags import AsJson, Force, confirm
from magnetar.cli.output import print_json, print_names

Partitions: TypeAlias = Annotated[int, typer.Option("--partitions", min=0, help="0: not partitioned.")]
NonPersistent: TypeAlias = Annotated[bool, typer.Option("--non-persistent", help="Those whose messages are not kept.")]
PerPartition: TypeAlias = Annotated[bool, typer.Option("--per-partition", help="Of each partition, too.")]

app = typer.Typer(no_args_is_help=True, help="List, make, look at and delete topics.")


@app.command(name="list")
def list_(
    namespace: Annotated[str, typer.Argument(metavar="NAMESPACE", help="TENANT/NAMESPACE.")] = DEFAULT_NAMESPACE,
    non_persistent: NonPersistent = False,
    url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: AsJson = False,
) -> None:
    """List the topics of a namespace; of partitioned ones, the partitions."""
    domain = "non-persistent" if non_persistent else "persistent"
    print_names(AdminClient(url).get(f"{domain}/{namespace_path(namespace)}"), as_json)


@app.command()
def create(topic: TopicArgument, partitions: Partitions = 0, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Make a topic."""
    if partitions:
        AdminClient(url).put(f"{topic_path(topic)}/partitions", partitions)
    else:
        AdminClient(url).put(topic_path(topic))


@app.command()
def delete(
    topic: TopicArgument,
    disconnect: Annotated[bool, typer.Option("--disconnect", help="Also while it is used.")] = False,
    force: Force = False,
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a topic with its messages and subscriptions."""
    confirm(f"Delete {topic} with all its messages?", force)
    client = AdminClient(url)
    is_partitioned = _partitions(client, topic_path(topic)) > 0
    client.delete(topic_path(topic) + ("/partitions" if is_partitioned else ""), force=disconnect)


@app.command()
def partitions(topic: TopicArgument, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Print how many partitions a topic has; 0 if it is not partitioned."""
    print(_partitions(AdminClient(url), topic_path(topic)))


@app.command()
def grow(
    topic: TopicArgument,
    count: Annotated[int, typer.Option("--partitions", min=1, help="How many it shall have in all.")],
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Give a partitioned topic more partitions."""
    AdminClient(url).post(f"{topic_path(topic)}/partitions", count)


@app.command()
def stats(topic: TopicArgument, per_partition: PerPartition = False, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Print rates, backlog, producers and consumers of a topic, as JSON."""
    client, path = AdminClient(url), topic_path(topic)
    if _partitions(client, path):
        print_json(client.get(f"{path}/partitioned-stats", perPartition=per_partition))
    else:
        print_json(client.get(f"{path}/stats"))


@app.command()
def internal_stats(topic: TopicArgument, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Print the ledgers and cursors of a topic, as JSON."""
    client, path = AdminClient(url), topic_path(topic)
    which = "partitioned-internalStats" if _partitions(client, path) else "internalStats"
    print_json(client.get(f"{path}/{which}"))


@app.command()
def last_id(topic: TopicArgument, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Print the id of the last message, as LEDGER:ENTRY."""
    found = AdminClient(url).get(f"{topic_path(topic)}/lastMessageId")
    print(f"{found['ledgerId']}:{found['entryId']}")


@app.command()
def unload(topic: TopicArgument, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Have a topic closed; whoever uses it finds it opened again."""
    AdminClient(url).put(f"{topic_path(topic)}/unload")


@app.command()
def compact(topic: TopicArgument, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Begin a compaction: readers may then see only the last message of each key."""
    AdminClient(url).put(f"{topic_path(topic)}/compaction")


@app.command()
def terminate(topic: TopicArgument, force: Force = False, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Take no more messages, for ever; what is there can be read."""
    confirm(f"Close {topic} to new messages for ever?", force)
    client, path = AdminClient(url), topic_path(topic)
    is_partitioned = _partitions(client, path) > 0
    client.post(f"{path}/terminate" + ("/partitions" if is_partitioned else ""))


@app.command()
def truncate(topic: TopicArgument, force: Force = False, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Delete all messages of a topic, acknowledged or not."""
    confirm(f"Delete all messages of {topic}?", force)
    AdminClient(url).delete(f"{topic_path(topic)}/truncate")


def _partitions(client: AdminClient, path: str) -> int:
    found: int = client.get(f"{path}/partitions")["partitions"]
    return found
