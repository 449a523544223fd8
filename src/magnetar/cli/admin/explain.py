"""`magnetar explain`: what holds delivery on a subscription, what keeps a message, and which broker owns a topic."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

import typer

from magnetar.cli.admin.client import AdminClient, AdminError, namespace_path, quote, topic_path
from magnetar.cli.cluster_options import DEFAULT_ADMIN_URL, DEFAULT_NAMESPACE, AdminUrl
from magnetar.cli.cluster_options import topic as topic_name
from magnetar.cli.output import AsJson, note, print_json, printable
from magnetar.errors import ArgumentError, CursorMissingError
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
        help="Topic of the subscription; without a subscription, the topic to explain. Default: search all topics of "
        "the namespace for the subscription.",
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

Subscription: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="[SUBSCRIPTION]",
        help="Name of the subscription. Without one, explain which broker owns the topic that --topic names.",
    ),
]

app = typer.Typer(help="Explain why a subscription does not deliver messages, or which broker owns a topic.")


@app.command()
def explain(
    subscription: Subscription = None,
    topic: Topic = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
    message: MessageId = None,
    url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: AsJson = False,
) -> None:
    """Explain why a subscription does not deliver messages: no consumer is ready, a limit is reached, messages
    are delayed, … With --topic and no subscription, explain which broker owns the topic, since when, and why.
    """
    client = AdminClient(url)
    if subscription is None:
        _explain_owner(client, topic, message, as_json=as_json)
        return
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


def _explain_owner(client: AdminClient, topic: TopicName | None, message: str | None, *, as_json: bool) -> None:
    if topic is None:
        raise ArgumentError("nothing to explain: give a SUBSCRIPTION, or a topic with --topic")
    if message is not None:
        raise ArgumentError("--message needs a SUBSCRIPTION: a message is explained for one")
    found = [client.get(f"{topic_path(name)}/explain") for name in _topics(client, topic, "")]
    if as_json:
        print_json(found)
    else:
        for explained in found:
            _print_owner(explained)


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


def _print_owner(explained: dict[str, Any]) -> None:
    print(printable(f"{explained['topic']}, bundle {explained['bundle']}"))
    if explained["owner"] is None:
        print("  owner: none; a broker is chosen when a client looks up a topic of the bundle")
        return
    since = f", since {_time(explained['since_ms'])}" if explained["since_ms"] is not None else ""
    print(printable(f"  owner: {explained['owner']}{since}"))
    if explained["is_being_unloaded"]:
        print("  the owner is unloading the bundle: another broker will own it")
    if explained["acquired"] is not None:
        print(printable(f"  how it became the owner: {explained['acquired']['text']}"))
    decision = explained["decision"]
    if decision is not None:
        print(printable(f"  chosen by {decision['by']} at {_time(decision['made_ms'])}: {decision['text']}"))
    elif explained["since_ms"] is not None:
        print("  why this broker was chosen is not known: the owner and the leader do not remember a choice")
    for why in explained["not_asked"]:
        print(printable(f"  not asked: {why}"))


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


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
        print(f"    until {_time(fact['until_ms'])}")
    if fact["advice"]:
        print(printable(f"    {fact['advice']}"))
