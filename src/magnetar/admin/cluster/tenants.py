"""/admin/v2/tenants"""

from __future__ import annotations

from typing import Any

from magnetar.admin.cluster.namespaces import delete_namespace_of
from magnetar.admin.http.call import Call
from magnetar.admin.http.errors import CONFLICT, PRECONDITION_FAILED, RestError, refusing_malformed
from magnetar.admin.http.route import Query, Route
from magnetar.broker.policies.values import names

_BODY = "TenantInfo: adminRoles, allowedClusters"


async def list_tenants(call: Call) -> list[str]:
    return sorted(await call.service.resources.tenants.names())


async def get_tenant(call: Call) -> dict[str, Any]:
    return await call.service.resources.tenants.get(call.name("tenant"))


async def create_tenant(call: Call) -> None:
    await call.service.resources.tenants.create(call.name("tenant"), await _checked(call))


async def update_tenant(call: Call) -> None:
    wanted = await _checked(call)
    in_use = await _clusters_in_use(call)
    if missing := sorted(in_use - set(wanted["allowedClusters"])):
        raise RestError(CONFLICT, f"namespaces of the tenant use cluster {missing[0]!r}: it must stay allowed")
    await call.service.resources.tenants.update(call.name("tenant"), lambda found: found | wanted)


async def delete_tenant(call: Call) -> None:
    name, service = call.name("tenant"), call.service
    if call.flag("force"):
        if not service.config.broker.force_delete_tenant:
            raise RestError(405, "broker.force_delete_tenant is not set: delete the tenant's namespaces first")
        await service.resources.tenants.get(name)
        for namespace in await service.resources.namespaces.names(name):
            await delete_namespace_of(service, namespace, force=True)
    await service.resources.tenants.delete(name)


async def _checked(call: Call) -> dict[str, Any]:
    body = call.json() or {}
    clusters = body.get("allowedClusters") if isinstance(body, dict) else None
    if not isinstance(clusters, list) or not clusters:
        raise RestError(PRECONDITION_FAILED, "Clusters cannot be null: name at least one in allowedClusters")
    known = set(await call.service.resources.clusters.names())
    if unknown := sorted({str(each) for each in clusters} - known - {"global"}):
        raise RestError(PRECONDITION_FAILED, f"Clusters do not exist: {unknown[0]!r}")
    with refusing_malformed():
        roles = names(body, "adminRoles")
    return {
        "adminRoles": sorted(set(roles)),
        "allowedClusters": sorted({str(each) for each in clusters}),
    }


async def _clusters_in_use(call: Call) -> set[str]:
    namespaces = call.service.resources.namespaces
    used: set[str] = set()
    for namespace in await namespaces.names(call.name("tenant")):
        used.update((await namespaces.policies(namespace)).get("replication_clusters") or ())
    return used


_ALL, _ONE = "/admin/v2/tenants", "/admin/v2/tenants/{tenant}"
ROUTES = [
    Route("GET", _ALL, "List the tenants", list_tenants),
    Route("GET", _ONE, "Get the description of a tenant", get_tenant),
    Route("PUT", _ONE, "Create a tenant", create_tenant, body=_BODY),
    Route("POST", _ONE, "Update a tenant", update_tenant, body=_BODY),
    Route(
        "DELETE",
        _ONE,
        "Delete a tenant",
        delete_tenant,
        query=(Query("force", "with all its namespaces and topics"),),
    ),
]
