"""/admin/v2/clusters"""

from __future__ import annotations

from typing import Any

from magnetar.admin.http.call import Call
from magnetar.admin.http.errors import PRECONDITION_FAILED, RestError, refusing_malformed
from magnetar.admin.http.route import Route
from magnetar.broker.policies.values import names, text
from magnetar.broker.resources.clusters import new_cluster

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


_ALL, _ONE = "/admin/v2/clusters", "/admin/v2/clusters/{cluster}"
_BODY = "ClusterData: serviceUrl, brokerServiceUrl, …"
ROUTES = [
    Route("GET", _ALL, "List the clusters", list_clusters),
    Route("GET", _ONE, "Get the description of a cluster", get_cluster),
    Route("PUT", _ONE, "Make a cluster known", create_cluster, body=_BODY),
    Route("POST", _ONE, "Change the description of a cluster", update_cluster, body=_BODY),
    Route("DELETE", _ONE, "Forget a cluster", delete_cluster),
    Route("GET", f"{_ONE}/peers", "Get the peers of a cluster", get_peers),
    Route("POST", f"{_ONE}/peers", "Set the peers of a cluster", set_peers, body="a list of clusters"),
]
