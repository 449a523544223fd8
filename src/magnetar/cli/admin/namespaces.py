"""`magnetar tenants` and `magnetar namespaces`: groups of topics with policies in common, and their owners."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from magnetar.cli.admin.client import AdminClient, namespace_path, quote
from magnetar.cli.admin.summaries import print_policies, print_tenant
from magnetar.cli.cluster_options import DEFAULT_ADMIN_URL, AdminUrl, NamespaceArgument
from magnetar.cli.output import AsJson, Yes, confirm, print_json, print_names
from magnetar.errors import ArgumentError
from magnetar.names import NamespaceName

Tenant: TypeAlias = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")]
Clusters: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster", metavar="CLUSTER", help="Cluster that the tenant may use; may be repeated. Default: all clusters."
    ),
]
Roles: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--admin-role", metavar="ROLE", help="Role that may administer the tenant; may be repeated."),
]

tenants_app = typer.Typer(no_args_is_help=True, help="List, create and delete tenants.")


@tenants_app.command("list")
def list_tenants(url: AdminUrl = DEFAULT_ADMIN_URL, as_json: AsJson = False) -> None:
    """List the tenants."""
    print_names(AdminClient(url).get("tenants"), as_json)


@tenants_app.command("show")
def show_tenant(tenant: Tenant, url: AdminUrl = DEFAULT_ADMIN_URL, as_json: AsJson = False) -> None:
    """Print the clusters and admin roles of a tenant."""
    found = AdminClient(url).get(f"tenants/{quote(tenant)}")
    print_json(found) if as_json else print_tenant(tenant, found)


@tenants_app.command("create")
def create_tenant(
    tenant: Tenant, clusters: Clusters = None, admin_roles: Roles = None, url: AdminUrl = DEFAULT_ADMIN_URL
) -> None:
    """Create a tenant."""
    client = AdminClient(url)
    allowed = clusters or client.get("clusters")
    client.put(f"tenants/{quote(tenant)}", {"allowedClusters": allowed, "adminRoles": admin_roles or []})


@tenants_app.command("delete")
def delete_tenant(tenant: Tenant, yes: Yes = False, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Delete a tenant that has no namespaces."""
    confirm(f"Delete tenant {tenant}?", yes)
    AdminClient(url).delete(f"tenants/{quote(tenant)}")


# --- namespaces -------------------------------------------------------------------------------------------------------

_QUOTA_POLICIES: Final = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")

WithTopics: TypeAlias = Annotated[
    bool, typer.Option("--force", help="Also delete all topics of the namespace, and disconnect their clients.")
]

app = typer.Typer(no_args_is_help=True, help="List, create and delete namespaces, and set their policies.")


@app.command(name="list")
def list_(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Tenant whose namespaces are listed.")] = "public",
    url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: AsJson = False,
) -> None:
    """List the namespaces of a tenant."""
    print_names(AdminClient(url).get(f"namespaces/{quote(tenant)}"), as_json)


@app.command()
def create(
    namespace: NamespaceArgument,
    bundles: Annotated[
        int | None,
        typer.Option(
            "--bundles",
            min=1,
            help="Number of bundles. A bundle is a group of topics that brokers move together. "
            "Default: broker.namespace_bundles.",
        ),
    ] = None,
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Create a namespace."""
    body = {} if bundles is None else {"bundles": {"numBundles": bundles}}
    AdminClient(url).put(_path(namespace), body)


@app.command()
def delete(
    namespace: NamespaceArgument, force: WithTopics = False, yes: Yes = False, url: AdminUrl = DEFAULT_ADMIN_URL
) -> None:
    """Delete a namespace."""
    confirm(f"Delete namespace {namespace}{' with all its topics and messages' if force else ''}?", yes)
    AdminClient(url).delete(_path(namespace), force=force)


@app.command()
def policies(namespace: NamespaceArgument, url: AdminUrl = DEFAULT_ADMIN_URL, as_json: AsJson = False) -> None:
    """Print the policies that a namespace has set. Defaults of the broker apply to the others."""
    found = AdminClient(url).get(_path(namespace))
    print_json(found) if as_json else print_policies(str(namespace), found)


@app.command()
def set_retention(
    namespace: NamespaceArgument,
    minutes: Annotated[
        int,
        typer.Option("--minutes", min=-1, help="Minutes to keep messages after they are acknowledged. -1: forever."),
    ],
    megabytes: Annotated[
        int,
        typer.Option(
            "--megabytes", min=-1, help="Megabytes of acknowledged messages to keep for each topic. -1: no limit."
        ),
    ] = -1,
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Set how long messages are kept after all subscriptions have acknowledged them."""
    body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
    AdminClient(url).post(f"{_path(namespace)}/retention", body)


@app.command()
def set_ttl(
    namespace: NamespaceArgument,
    seconds: Annotated[
        int, typer.Option("--seconds", min=0, help="Age in seconds at which messages expire. 0: never.")
    ],
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Set the age at which messages count as acknowledged on every subscription."""
    AdminClient(url).post(f"{_path(namespace)}/messageTTL", seconds)


@app.command()
def set_deduplication(
    namespace: NamespaceArgument,
    enabled: Annotated[bool, typer.Option("--on/--off", help="Turn deduplication on or off.")],
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Turn deduplication on or off: whether a message that its producer sends again is stored only once."""
    AdminClient(url).post(f"{_path(namespace)}/deduplication", enabled)


@app.command()
def set_backlog_quota(
    namespace: NamespaceArgument,
    megabytes: Annotated[int, typer.Option("--megabytes", min=1, help="Largest allowed backlog in megabytes.")],
    policy: Annotated[
        str, typer.Option("--policy", help=f"What happens beyond the limit: {', '.join(_QUOTA_POLICIES)}.")
    ] = _QUOTA_POLICIES[0],
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Limit the backlog of subscriptions in a namespace, and choose what happens beyond the limit."""
    if policy not in _QUOTA_POLICIES:
        raise ArgumentError(f"--policy is one of {', '.join(_QUOTA_POLICIES)}, not {policy!r}")
    body = {"limitSize": megabytes * 2**20, "limitTime": -1, "policy": policy}
    AdminClient(url).post(f"{_path(namespace)}/backlogQuota", body, backlogQuotaType="destination_storage")


def _path(namespace: NamespaceName) -> str:
    return f"namespaces/{namespace_path(str(namespace))}"
