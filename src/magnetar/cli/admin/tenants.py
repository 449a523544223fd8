"""`magnetar tenants`: list, create and delete the owners of namespaces."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from magnetar.cli.admin.client import AdminClient, quote
from magnetar.cli.admin.summaries import print_tenant
from magnetar.cli.cluster_options import DEFAULT_ADMIN_URL, AdminUrl
from magnetar.cli.flags import AsJson, Yes, confirm
from magnetar.cli.output import print_json, print_names

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

app = typer.Typer(no_args_is_help=True, help="List, create and delete tenants.")


@app.command(name="list")
def list_(url: AdminUrl = DEFAULT_ADMIN_URL, as_json: AsJson = False) -> None:
    """List the tenants."""
    print_names(AdminClient(url).get("tenants"), as_json)


@app.command()
def show(tenant: Tenant, url: AdminUrl = DEFAULT_ADMIN_URL, as_json: AsJson = False) -> None:
    """Print the clusters and admin roles of a tenant."""
    found = AdminClient(url).get(f"tenants/{quote(tenant)}")
    print_json(found) if as_json else print_tenant(tenant, found)


@app.command()
def create(
    tenant: Tenant, clusters: Clusters = None, admin_roles: Roles = None, url: AdminUrl = DEFAULT_ADMIN_URL
) -> None:
    """Create a tenant."""
    client = AdminClient(url)
    allowed = clusters or client.get("clusters")
    client.put(f"tenants/{quote(tenant)}", {"allowedClusters": allowed, "adminRoles": admin_roles or []})


@app.command()
def delete(tenant: Tenant, yes: Yes = False, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Delete a tenant that has no namespaces."""
    confirm(f"Delete tenant {tenant}?", yes)
    AdminClient(url).delete(f"tenants/{quote(tenant)}")
