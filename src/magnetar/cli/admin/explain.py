"""`magnetar explain SUBSCRIPTION`: what holds delivery, and what keeps a message from being deleted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

import typer

from magnetar.cli.admin.client import AdminClient, AdminError, namespace_path, quote, topic_path
from magnetar.cli.cluster_options import DEFAULT_ADMIN_URL, DEFAULT_NAMESPACE, AdminUrl, SubscriptionArgument
from magnetar.cli.cluster_options import topic as topic_name
from magnetar.cli.output import AsJson, note, print_json, printable
from magnetar.errors import CursorMissingError
from magnetar.names import TopicName
from magnetar.words import at_least, counted

_SEARCHED_MAX = 1_000  # Topics that are asked whether they have the subscription.
_NOT_FOUND = 404

Topic: TypeAlias = Annotated[
    TopicName | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        parser=topic_name,
        help="Topic of the subscription. Default: search all topics of the namespace.",
    ),
]
Namespace: TypeAlias = Annotated[
    str,
    typer.Option(
        "--namespace", metavar="NAMESPACE", help="Namespace to search when --topic is not given: TENANT/NAMESPACE."
    ),
]
MessageId: TypeAlias = Annotated[
    str | None,
    typer.Option("--message", metavar="ID", help="Also explain why this message is still stored, such as 12:34."),
]

app = typer.Typer(help="Explain why a subscription does not deliver messages.")


@app.command()
def explain(
    subscription: SubscriptionArgument,
    topic: Topic = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
    message: MessageId = None,
    url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: AsJson = False,
) -> None:
    """Explain why a subscription does not deliver messages: no consumer is ready, a limit is reached, messages
    are delayed, …
    """
    client = AdminClient(url)
    topics = _topics(client, topic, namespace)
    if len(topics) > _SEARCHED_MAX:
        note(f"{namespace} has {counted(len(topics), 'topic')}, only {_SEARCHED_MAX:,} were searched: give --topic")
    found = [
        explained
        for name in topics[:_SEARCHED_MAX]
        if (explained := _ask(client, name, subscription, message)) is not None
    ]
    if not found:
        where = f"topic {topic}" if topic is not None else f"namespace {namespace} (another one: --namespace)"
        raise CursorMissingError(f"there is no subscription {subscription!r} in {where}")
    if as_json:
        print_json(found)
    else:
        for explained in found:
            _print(explained)


def _topics(client: AdminClient, topic: TopicName | None, namespace: str) -> list[TopicName]:
    if topic is None:
        return [TopicName.parse(name) for name in sorted(client.get(f"persistent/{namespace_path(namespace)}"))]
    count = client.get(f"{topic_path(topic)}/partitions")["partitions"]
    return [topic.with_partition(number) for number in range(count)] or [topic]


def _ask(client: AdminClient, topic: TopicName, subscription: str, message: str | None) -> dict[str, Any] | None:
    path = f"{topic_path(topic)}/subscription/{quote(subscription)}/explain"
    try:
        found: dict[str, Any] = client.get(path, message=message)
    except AdminError as error:
        if error.status == _NOT_FOUND:
            return None
        raise
    return found


# --- for people -------------------------------------------------------------------------------------------------------


def _print(explained: dict[str, Any]) -> None:
    kind = explained["type"] or "no consumer yet"
    print(printable(f"{explained['topic']}, subscription {explained['subscription']} ({kind})"))
    waiting = counted(explained["backlog_messages"], "message")
    waiting = at_least(waiting, is_exact=explained["backlog_messages_exact"])
    print(f"  backlog: {waiting}; acknowledged up to {explained['mark_delete']}")
    for holding in explained["holdings"]:
        _print_fact(holding["hold"], holding)
    if explained["publishing_refused"]:
        print(printable(f"  producers are refused: {explained['publishing_refused']}"))
    if "message" in explained:
        _print_message(explained["message"])


def _print_message(message: dict[str, Any]) -> None:
    whose = f", with consumer {message['consumer']}" if message["consumer"] else ""
    print(printable(f"  message {message['position']}: {message['progress']}{whose}"))
    for keeping in message["kept_by"]:
        _print_fact(f"kept by {keeping['keep']}", keeping)


def _print_fact(what: str, fact: dict[str, Any]) -> None:
    print(printable(f"  {what}: {fact['text']}"))
    if fact["until_ms"] is not None:
        until = datetime.fromtimestamp(fact["until_ms"] / 1000, UTC).isoformat(timespec="seconds")
        print(f"    until {until}")
    if fact["advice"]:
        print(printable(f"    {fact['advice']}"))
