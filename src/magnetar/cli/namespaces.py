"""`magnetar namespaces`: groups of topics with policies in common."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from magnetar.broker.names import NamespaceName
from magnetar.cli.admin_client import AdminClient, namespace_path, quote
from magnetar.cli.admin_options import DEFAULT_ADMIN_URL, AdminUrl, NamespaceArgument
from magnetar.cli.flags import AsJson, Force, confirm
from magnetar.cli.output import print_json, print_names
from magnetar.errors import ArgumentError

_QUOTA_POLICIES: Final = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")

WithTopics: TypeAlias = Annotated[bool, typer.Option("--with-topics", help="And everything in it.")]

app = typer.Typer(no_args_is_help=True, help="List, make and delete namespaces, and set their policies.")


@app.command(name="list")
def list_(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose.")] = "public",
    url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: AsJson = False,
) -> None:
    """List the namespaces of a tenant."""
    print_names(AdminClient(url).get(f"namespaces/{quote(tenant)}"), as_json)


@app.command()
def create(
    namespace: NamespaceArgument,
    bundles: Annotated[int | None, typer.Option("--bundles", min=1, help="Parts it is shared out in.")] = None,
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Make a namespace."""
    body = {} if bundles is None else {"bundles": {"numBundles": bundles}}
    AdminClient(url).put(_path(namespace), body)


@app.command()
def delete(
    namespace: NamespaceArgument,
    with_topics: WithTopics = False,
    force: Force = False,
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a namespace."""
    confirm(f"Delete namespace {namespace}{' with all its messages' if with_topics else ''}?", force)
    AdminClient(url).delete(_path(namespace), force=with_topics)


@app.command()
def policies(namespace: NamespaceArgument, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Print the policies of a namespace, as JSON."""
    print_json(AdminClient(url).get(_path(namespace)))


@app.command()
def set_retention(
    namespace: NamespaceArgument,
    minutes: Annotated[int, typer.Option("--minutes", min=-1, help="-1: for ever.")],
    megabytes: Annotated[int, typer.Option("--megabytes", min=-1, help="-1: without limit.")] = -1,
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Keep messages that all subscriptions have acknowledged."""
    body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
    AdminClient(url).post(f"{_path(namespace)}/retention", body)


@app.command()
def set_ttl(
    namespace: NamespaceArgument,
    seconds: Annotated[int, typer.Option("--seconds", min=0, help="0: never.")],
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Count messages that are so old as acknowledged."""
    AdminClient(url).post(f"{_path(namespace)}/messageTTL", seconds)


@app.command()
def set_deduplication(
    namespace: NamespaceArgument,
    enabled: Annotated[bool, typer.Option("--on/--off", help="Whether it is.")],
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Store messages that a producer sends again once."""
    AdminClient(url).post(f"{_path(namespace)}/deduplication", enabled)


@app.command()
def set_backlog_quota(
    namespace: NamespaceArgument,
    megabytes: Annotated[int, typer.Option("--megabytes", min=1, help="What may be unacknowledged.")],
    policy: Annotated[str, typer.Option("--policy", help=f"{', '.join(_QUOTA_POLICIES)}.")] = _QUOTA_POLICIES[0],
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Say how large a subscription's backlog may be, and what happens beyond."""
    if policy not in _QUOTA_POLICIES:
        raise ArgumentError(f"--policy is one of {', '.join(_QUOTA_POLICIES)}, not {policy!r}")
    body = {"limitSize": megabytes * 2**20, "limitTime": -1, "policy": policy}
    AdminClient(url).post(f"{_path(namespace)}/backlogQuota", body, backlogQuotaType="destination_storage")


def _path(namespace: NamespaceName) -> str:
    return f"namespaces/{namespace_path(str(namespace))}"
