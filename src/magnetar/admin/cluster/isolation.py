"""/admin/v2/clusters/…/namespaceIsolationPolicies, …/failureDomains, and the anti-affinity groups of namespaces.

A policy or group that was set is in force for the next lookup. The leader moves bundles that are served elsewhere in
its next rounds, not within the request as Pulsar does.
"""

from __future__ import annotations

from typing import Any

from magnetar.admin.http.call import Call, Query, Reply, Route
from magnetar.admin.http.errors import BAD_REQUEST, NOT_FOUND, PRECONDITION_FAILED, RestError
from magnetar.broker.cluster.isolation import IsolationPolicy
from magnetar.broker.resources.documents import Document
from magnetar.errors import InvalidPolicyError


async def _cluster(call: Call) -> str:
    name = call.name("cluster")
    if not await call.service.resources.clusters.exists(name):
        raise RestError(PRECONDITION_FAILED, f"Cluster {name} does not exist.")
    return name


# --- isolation policies -----------------------------------------------------------------------------------------------


async def _policies(call: Call) -> Document:
    cluster = await _cluster(call)
    found = await call.service.resources.isolation_policies.all(cluster)
    if not found:
        raise RestError(NOT_FOUND, f"NamespaceIsolationPolicies for cluster {cluster} does not exist")
    return found


async def list_policies(call: Call) -> Document:
    return await _policies(call)


async def get_policy(call: Call) -> Document:
    await _cluster(call)
    return await call.service.resources.isolation_policies.get(call.name("cluster"), call.name("policy"))


async def set_policy(call: Call) -> None:
    cluster, policy = await _cluster(call), call.json_object()
    try:
        IsolationPolicy.from_json(policy)
    except InvalidPolicyError as error:
        raise RestError(BAD_REQUEST, str(error)) from None
    given = {name: value for name, value in policy.items() if value is not None}
    await call.service.resources.isolation_policies.set(cluster, call.name("policy"), given)


async def delete_policy(call: Call) -> None:
    await call.service.resources.isolation_policies.delete(await _cluster(call), call.name("policy"))


async def list_of_brokers(call: Call) -> list[Document]:
    policies = await _policies(call)
    return [_of_broker(broker, policies) for broker in await call.service.membership.alive()]


async def get_of_broker(call: Call) -> Document:
    return _of_broker(call.name("broker"), await _policies(call))


def _of_broker(broker: str, policies: Document) -> Document:
    """Returns Pulsar's BrokerNamespaceIsolationData: the namespaces of all policies that name the broker."""
    found: dict[str, Any] = {"brokerName": broker, "namespaceRegex": [], "primary": False}
    for name, document in policies.items():
        policy = IsolationPolicy.from_json(document)
        if policy.is_primary(broker) or policy.is_secondary(broker):
            found["policyName"] = name
            found["primary"] = policy.is_primary(broker)
            found["namespaceRegex"] += document["namespaces"]
    return found


# --- failure domains --------------------------------------------------------------------------------------------------


async def list_domains(call: Call) -> Document:
    found = await call.service.resources.failure_domains.all(await _cluster(call))
    return {name: {"brokers": brokers} for name, brokers in found.items()}


async def get_domain(call: Call) -> Document:
    return {"brokers": await call.service.resources.failure_domains.get(await _cluster(call), call.name("domain"))}


async def set_domain(call: Call) -> None:
    cluster, brokers = await _cluster(call), call.json_object().get("brokers") or []
    if not isinstance(brokers, list) or not all(isinstance(broker, str) for broker in brokers):
        raise RestError(BAD_REQUEST, f"`brokers` of a failure domain is a list of broker ids, not {brokers!r}")
    await call.service.resources.failure_domains.set(cluster, call.name("domain"), brokers)


async def delete_domain(call: Call) -> None:
    await call.service.resources.failure_domains.delete(await _cluster(call), call.name("domain"))


# --- anti-affinity groups ---------------------------------------------------------------------------------------------


async def get_group(call: Call) -> Reply | None:
    group = await call.service.resources.namespaces.anti_affinity_group(call.namespace)
    return None if group is None else Reply(group.encode())


async def set_group(call: Call) -> None:
    """The body is the name, with or without JSON's quotes."""
    text = call.body.decode("utf-8", "replace").strip()
    group = call.json() if text.startswith('"') else text
    if not isinstance(group, str) or not group.strip():
        raise RestError(PRECONDITION_FAILED, "Anti-affinity group can't be empty: send its name as the body")
    await call.service.resources.namespaces.set_anti_affinity_group(call.namespace, group)


async def remove_group(call: Call) -> None:
    await call.service.resources.namespaces.set_anti_affinity_group(call.namespace, None)


async def list_group(call: Call) -> list[str]:
    await _cluster(call)
    tenant, group = call.query.get("tenant", ""), call.name("group")
    if not tenant:
        raise RestError(PRECONDITION_FAILED, "Tenant should not be null: add ?tenant=NAME")
    namespaces = call.service.resources.namespaces
    return [str(name) for name in await namespaces.names(tenant) if await namespaces.anti_affinity_group(name) == group]


_POLICIES = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies"
_DOMAINS = "/admin/v2/clusters/{cluster}/failureDomains"
_GROUP = "/admin/v2/namespaces/{tenant}/{namespace}/antiAffinity"
ROUTES = [
    Route("GET", _POLICIES, "List the isolation policies of a cluster", list_policies),
    Route(
        "GET",
        f"{_POLICIES}/brokers",
        "List the brokers with the isolation policies that name them",
        list_of_brokers,
    ),
    Route("GET", f"{_POLICIES}/brokers/{{broker}}", "Get the isolation policies that name a broker", get_of_broker),
    Route("GET", f"{_POLICIES}/{{policy}}", "Get an isolation policy", get_policy),
    Route(
        "POST",
        f"{_POLICIES}/{{policy}}",
        "Set an isolation policy",
        set_policy,
        body="NamespaceIsolationData: namespaces, primary, secondary, auto_failover_policy",
    ),
    Route("DELETE", f"{_POLICIES}/{{policy}}", "Delete an isolation policy", delete_policy),
    Route("GET", _DOMAINS, "List the failure domains of a cluster", list_domains),
    Route("GET", f"{_DOMAINS}/{{domain}}", "Get the brokers of a failure domain", get_domain),
    Route("POST", f"{_DOMAINS}/{{domain}}", "Set the brokers of a failure domain", set_domain, body='{"brokers": […]}'),
    Route("DELETE", f"{_DOMAINS}/{{domain}}", "Delete a failure domain", delete_domain),
    Route("GET", _GROUP, "Get the anti-affinity group of a namespace", get_group),
    Route("POST", _GROUP, "Set the anti-affinity group of a namespace", set_group, body="the name of the group"),
    Route("DELETE", _GROUP, "Remove a namespace from its anti-affinity group", remove_group),
    Route(
        "GET",
        "/admin/v2/namespaces/{cluster}/antiAffinity/{group}",
        "List the namespaces of an anti-affinity group",
        list_group,
        query=(Query("tenant", "the tenant of the namespaces", "string"),),
    ),
]
