"""/admin/v2/clusters and /admin/v2/tenants: what namespaces belong to."""

from __future__ import annotations

from typing import Any

from magnetar.admin.cluster.namespaces import delete_namespace_of
from magnetar.admin.http.call import Call, Query, Route
from magnetar.admin.http.errors import CONFLICT, PRECONDITION_FAILED, RestError, refusing_malformed
from magnetar.broker.policies.values import names, text
from magnetar.broker.resources.namespaces import new_cluster

_URLS = ("serviceUrl", "serviceUrlTls", "brokerServiceUrl", "brokerServiceUrlTls")


async def list_clusters(call: Call) -> list[str]:
    return sorted(await call.service.resources.clusters.names())


async def get_cluster(call: Call) -> dict[str, Any]:
    return await call.service.resources.clusters.get(call.name("cluster"))


async def create_cluster(call: Call) -> None:
    document = new_cluster() | _given(call)
    await call.service.resources.clusters.create(call.name("cluster"), document)


async def update_cluster(call: Call) -> None:
    given = _given(call)
    await call.service.resources.clusters.update(call.name("cluster"), lambda found: found | given)


def _given(call: Call) -> dict[str, Any]:
    given = {name: value for name, value in call.json_object().items() if value is not None}
    with refusing_malformed():
        names(given, "peerClusterNames")
        for url in _URLS:
            text(given, url)
    return given


async def delete_cluster(call: Call) -> None:
    name, resources = call.name("cluster"), call.service.resources
    for tenant in await resources.tenants.names():
        for namespace in await resources.namespaces.names(tenant):
            if name in ((await resources.namespaces.policies(namespace)).get("replication_clusters") or ()):
                raise RestError(PRECONDITION_FAILED, f"Cluster not empty: namespace {namespace} uses it")
    await resources.clusters.delete(name)


async def get_peers(call: Call) -> list[str]:
    return list((await call.service.resources.clusters.get(call.name("cluster"))).get("peerClusterNames") or [])


async def set_peers(call: Call) -> None:
    name, peers = call.name("cluster"), call.json_names()
    if name in peers:
        raise RestError(PRECONDITION_FAILED, f"{name} itself can't be part of peer-list")
    known = await call.service.resources.clusters.names()
    if unknown := [each for each in peers if each not in known]:
        raise RestError(PRECONDITION_FAILED, f"Peer cluster {unknown[0]} does not exist")
    await call.service.resources.clusters.update(name, lambda found: found | {"peerClusterNames": peers})


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
            await delete_namespace_of(call, namespace, force=True)
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
    return {"adminRoles": sorted(set(roles)), "allowedClusters": sorted({str(each) for each in clusters})}


async def _clusters_in_use(call: Call) -> set[str]:
    namespaces = call.service.resources.namespaces
    used: set[str] = set()
    for namespace in await namespaces.names(call.name("tenant")):
        used.update((await namespaces.policies(namespace)).get("replication_clusters") or ())
    return used


_CLUSTERS, _CLUSTER = "/admin/v2/clusters", "/admin/v2/clusters/{cluster}"
_TENANTS, _TENANT = "/admin/v2/tenants", "/admin/v2/tenants/{tenant}"
_CLUSTER_BODY = "ClusterData: serviceUrl, brokerServiceUrl, …"
_TENANT_BODY = "TenantInfo: adminRoles, allowedClusters"
_FORCE = (Query("force", "with all its namespaces and topics"),)
ROUTES = [
    Route("GET", _TENANTS, "List the tenants", list_tenants),
    Route("GET", _TENANT, "Get the description of a tenant", get_tenant),
    Route("PUT", _TENANT, "Create a tenant", create_tenant, body=_TENANT_BODY),
    Route("POST", _TENANT, "Update a tenant", update_tenant, body=_TENANT_BODY),
    Route("DELETE", _TENANT, "Delete a tenant", delete_tenant, query=_FORCE),
    Route("GET", _CLUSTERS, "List the clusters", list_clusters),
    Route("GET", _CLUSTER, "Get the description of a cluster", get_cluster),
    Route("PUT", _CLUSTER, "Make a cluster known", create_cluster, body=_CLUSTER_BODY),
    Route("POST", _CLUSTER, "Change the description of a cluster", update_cluster, body=_CLUSTER_BODY),
    Route("DELETE", _CLUSTER, "Forget a cluster", delete_cluster),
    Route("GET", f"{_CLUSTER}/peers", "Get the peers of a cluster", get_peers),
    Route("POST", f"{_CLUSTER}/peers", "Set the peers of a cluster", set_peers, body="a list of clusters"),
]
