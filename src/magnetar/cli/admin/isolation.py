"""`magnetar isolation`: policies that keep namespaces on brokers of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import typer

from magnetar.cli.admin.client import AdminClient, quote
from magnetar.cli.cluster_options import DEFAULT_ADMIN_URL, AdminUrl
from magnetar.cli.output import AsJson, Yes, confirm, print_json, print_table
from magnetar.errors import ArgumentError

Json: TypeAlias = Mapping[str, Any]

Name: TypeAlias = Annotated[str, typer.Argument(metavar="POLICY", help="Name of the isolation policy.")]
Cluster: TypeAlias = Annotated[
    str | None,
    typer.Option("--cluster", metavar="CLUSTER", help="Name of the cluster. Default: the only existing cluster."),
]

app = typer.Typer(
    no_args_is_help=True, help="List, set and delete the policies that keep namespaces on brokers of their own."
)


@app.command(name="list")
def list_(cluster: Cluster = None, url: AdminUrl = DEFAULT_ADMIN_URL, as_json: AsJson = False) -> None:
    """List the isolation policies of the cluster."""
    client = AdminClient(url)
    path = _path(client, cluster)
    found: Json = client.get(path) if client.exists(path) else {}
    if as_json:
        print_json(found)
        return
    columns = ["policy", "namespaces", "primary", "secondary", "least primary brokers"]
    print_table(columns, [_row(name, found[name]) for name in sorted(found)])


@app.command(name="set")
def set_(
    name: Name,
    namespaces: Annotated[
        list[str],
        typer.Option(
            "--namespace",
            metavar="PATTERN",
            help="Regular expression that matches names of namespaces, such as sales/.*; may be repeated.",
        ),
    ],
    primary: Annotated[
        list[str],
        typer.Option(
            "--primary",
            metavar="PATTERN",
            help="Regular expression that matches hosts of brokers that serve only these namespaces; may be repeated.",
        ),
    ],
    secondary: Annotated[
        list[str] | None,
        typer.Option(
            "--secondary",
            metavar="PATTERN",
            help="Regular expression that matches hosts of brokers that help if too few primary ones run; may be "
            "repeated.",
        ),
    ] = None,
    least_primary: Annotated[
        int,
        typer.Option("--least-primary", min=0, help="Number of primary brokers below which the secondary ones help."),
    ] = 1,
    cluster: Cluster = None,
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Create an isolation policy, or replace it. Bundles that are served by other brokers move within a few minutes."""
    client = AdminClient(url)
    policy = {
        "namespaces": namespaces,
        "primary": primary,
        "secondary": secondary or [],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": str(least_primary), "usage_threshold": "100"},
        },
    }
    client.post(f"{_path(client, cluster)}/{quote(name)}", policy)


@app.command()
def delete(name: Name, cluster: Cluster = None, yes: Yes = False, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Delete an isolation policy."""
    confirm(f"Delete isolation policy {name}?", yes)
    client = AdminClient(url)
    client.delete(f"{_path(client, cluster)}/{quote(name)}")


def _path(client: AdminClient, cluster: str | None) -> str:
    if cluster is None:
        known = client.get("clusters")
        if len(known) != 1:
            raise ArgumentError(f"choose one of the clusters {', '.join(known) or '(there are none)'} with --cluster")
        (cluster,) = known
    return f"clusters/{quote(cluster)}/namespaceIsolationPolicies"


def _row(name: str, policy: Json) -> list[str]:
    lists = [", ".join(policy.get(field) or []) or "-" for field in ("namespaces", "primary", "secondary")]
    failover: Json = policy.get("auto_failover_policy") or {}
    return [name, *lists, str((failover.get("parameters") or {}).get("min_limit", "1"))]
