"""What commands that talk to a running cluster have in common: where it is, and the names they take."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from magnetar.broker.names import NamespaceName, TopicName

DEFAULT_ADMIN_URL: Final = "http://127.0.0.1:8080"
DEFAULT_URL: Final = "pulsar://127.0.0.1:6650"
DEFAULT_NAMESPACE: Final = "public/default"

AdminUrl: TypeAlias = Annotated[
    str, typer.Option("--admin-url", metavar="URL", envvar="MAGNETAR_ADMIN_URL", help="The broker's admin interface.")
]
ServiceUrl: TypeAlias = Annotated[
    str, typer.Option("--url", metavar="URL", envvar="MAGNETAR_URL", help="Where Pulsar clients connect.")
]
TopicArgument: TypeAlias = Annotated[
    TopicName,
    typer.Argument(
        metavar="TOPIC",
        parser=TopicName.parse,
        help="NAME (in public/default), TENANT/NAMESPACE/NAME or persistent://TENANT/NAMESPACE/NAME.",
    ),
]
NamespaceArgument: TypeAlias = Annotated[
    NamespaceName, typer.Argument(metavar="NAMESPACE", parser=NamespaceName.parse, help="TENANT/NAMESPACE.")
]
SubscriptionArgument: TypeAlias = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="Its name.")]
