"""`magnetar tenants`: who may have namespaces."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from magnetar.cli.admin_client import AdminClient, quote
from magnetar.cli.admin_options import DEFAULT_ADMIN_URL, AdminUrl
from magnetar.cli.flags import AsJson, Force, confirm
from magnetar.cli.output import print_json, print_names

Tenant: TypeAlias = Annotated[str, typer.Argument(metavar="TENANT", help="Its name.")]
Clusters: TypeAlias = Annotated[
    list[str] | None, typer.Option("--cluster", help="One it may use; may be repeated. Else all there are.")
]
Roles: TypeAlias = Annotated[
    list[str] | None, typer.Option("--admin-role", help="Who may administrate it; may be repeated.")
]

app = typer.Typer(no_args_is_help=True, help="List, make and delete tenants.")


@app.command(name="list")
def list_(url: AdminUrl = DEFAULT_ADMIN_URL, as_json: AsJson = False) -> None:
    """List the tenants."""
    print_names(AdminClient(url).get("tenants"), as_json)


@app.command()
def show(tenant: Tenant, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Print what is known of a tenant, as JSON."""
    print_json(AdminClient(url).get(f"tenants/{quote(tenant)}"))


@app.command()
def create(
    tenant: Tenant, clusters: Clusters = None, admin_roles: Roles = None, url: AdminUrl = DEFAULT_ADMIN_URL
) -> None:
    """Make a tenant."""
    client = AdminClient(url)
    allowed = clusters or client.get("clusters")
    client.put(f"tenants/{quote(tenant)}", {"allowedClusters": allowed, "adminRoles": admin_roles or []})


@app.command()
def delete(tenant: Tenant, force: Force = False, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Delete a tenant that has no namespaces."""
    confirm(f"Delete tenant {tenant}?", force)
    AdminClient(url).delete(f"tenants/{quote(tenant)}")
