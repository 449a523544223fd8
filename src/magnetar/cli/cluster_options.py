"""Options that commands share which talk to a running cluster: its addresses, and names of topics and namespaces."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from magnetar.errors import ArgumentError
from magnetar.names import NamespaceName, TopicName

DEFAULT_ADMIN_URL: Final = "http://127.0.0.1:8080"
DEFAULT_URL: Final = "pulsar://127.0.0.1:6650"
DEFAULT_NAMESPACE: Final = "public/default"
_TOPIC_HELP: Final = "Topic: NAME (in public/default), TENANT/NAMESPACE/NAME or persistent://TENANT/NAMESPACE/NAME."
POSITIONS: Final = (
    "Position in the topic: earliest, latest, a message id (12:34), -1000 (messages before the end), -10m "
    "(minutes ago), a time, or index:42."
)


def topic(text: str) -> TopicName:
    """Parses an argument. `--help` shows this function's name as the type."""
    return TopicName.parse(_text(text))


def namespace(text: str) -> NamespaceName:
    """Parses an argument. `--help` shows this function's name as the type."""
    return NamespaceName.parse(_text(text))


def _text(argument: str) -> str:
    """An argument that has bytes which are not UTF-8 cannot be a name."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"{argument!r} is not UTF-8: it cannot be a name") from None
    return argument


AdminUrl: TypeAlias = Annotated[
    str,
    typer.Option(
        "--admin-url",
        metavar="URL",
        envvar="MAGNETAR_ADMIN_URL",
        help="URL of the broker's admin interface: http://HOST:PORT.",
    ),
]
ServiceUrl: TypeAlias = Annotated[
    str,
    typer.Option(
        "--url", metavar="URL", envvar="MAGNETAR_URL", help="URL of the broker for clients: pulsar://HOST:PORT."
    ),
]
HostAdminUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--admin-url",
        metavar="URL",
        envvar="MAGNETAR_ADMIN_URL",
        help="URL of the broker's admin interface: http://HOST:PORT. Default: port 8080 of the host in --url.",
    ),
]
TopicArgument: TypeAlias = Annotated[TopicName, typer.Argument(metavar="TOPIC", parser=topic, help=_TOPIC_HELP)]
NewTopic: TypeAlias = Annotated[
    TopicName, typer.Argument(metavar="TOPIC", parser=topic, help=f"{_TOPIC_HELP} It is created if it does not exist.")
]
NamespaceArgument: TypeAlias = Annotated[
    NamespaceName, typer.Argument(metavar="NAMESPACE", parser=namespace, help="Namespace, as TENANT/NAMESPACE.")
]
SubscriptionArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", help="Name of the subscription.")
]
