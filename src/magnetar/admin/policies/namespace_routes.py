"""Routes of single policies of namespaces, made from the table."""

from __future__ import annotations

from typing import Any

from magnetar.admin.call import Call
from magnetar.admin.errors import PRECONDITION_FAILED, RestError
from magnetar.admin.policies import kinds
from magnetar.admin.policies.namespace_table import NAMESPACE_POLICIES, NamespacePolicy
from magnetar.admin.route import Handler, Query, Route
from magnetar.broker.policies.checks import check_quota_and_retention
from magnetar.broker.policies.values import BacklogQuota, Retention
from magnetar.broker.resources.documents import Decision, Document

_ONE = "/admin/v2/namespaces/{tenant}/{namespace}"
_SIZE, _AGE = "destination_storage", "message_age"


async def change(call: Call, decide: Decision) -> None:
    """In force when it returns."""
    await call.service.resources.namespaces.update(call.namespace, decide)
    await call.service.policies.refresh(call.namespace)


def with_field(document: Document, field: str, value: Any) -> Document:
    """None removes it."""
    if value is None:
        return {name: each for name, each in document.items() if name != field}
    return document | {field: value}


def _getter(policy: NamespacePolicy) -> Handler:
    async def get(call: Call) -> Any:
        policies = await call.service.resources.namespaces.policies(call.namespace)
        found = policies.get(policy.field)
        if policy.by_cluster:
            found = (found or {}).get(call.service.config.broker.cluster)
        return policy.unset if found is None else found

    return get


def _setter(policy: NamespacePolicy) -> Handler:
    async def put(call: Call) -> None:
        await _store(call, policy, policy.parse(call))

    return put


def _remover(policy: NamespacePolicy) -> Handler:
    async def remove(call: Call) -> None:
        await _store(call, policy, policy.unset)

    return remove


async def _store(call: Call, policy: NamespacePolicy, value: Any) -> None:
    cluster = call.service.config.broker.cluster

    def decide(document: Document) -> Document:
        if policy.field == "retention_policies" and value is not None:
            _check_quotas_fit(document, value)
        if not policy.by_cluster:
            return with_field(document, policy.field, value)
        for field in (policy.field, policy.also):
            if field:
                document[field] = with_field(document.get(field) or {}, cluster, value)
        return document

    await change(call, decide)


def _check_quotas_fit(document: Document, retention: Document) -> None:
    for quota in (document.get("backlog_quota_map") or {}).values():
        check_quota_and_retention(BacklogQuota.from_json(quota), Retention.from_json(retention))


def _routes(policy: NamespacePolicy) -> list[Route]:
    path = f"{_ONE}/{policy.path}"
    routes = [
        Route("GET", path, f"Get {policy.what}", _getter(policy)),
        Route(policy.method, path, f"Set {policy.what}", _setter(policy), body=policy.body),
    ]
    if policy.can_remove:
        routes.append(Route("DELETE", path, f"Remove the setting of {policy.what}", _remover(policy)))
    return routes


# --- those that are not one field -------------------------------------------------------------------------------------


async def get_quotas(call: Call) -> dict[str, Any]:
    policies = await call.service.resources.namespaces.policies(call.namespace)
    return dict(policies.get("backlog_quota_map") or {})


async def set_quota(call: Call) -> None:
    kind, quota = quota_kind(call), kinds.backlog_quota(call)

    def decide(document: Document) -> Document:
        if retention := document.get("retention_policies"):
            check_quota_and_retention(BacklogQuota.from_json(quota), Retention.from_json(retention))
        return document | {"backlog_quota_map": (document.get("backlog_quota_map") or {}) | {kind: quota}}

    await change(call, decide)


async def remove_quota(call: Call) -> None:
    kind = quota_kind(call)

    def decide(document: Document) -> Document:
        return document | {"backlog_quota_map": with_field(document.get("backlog_quota_map") or {}, kind, None)}

    await change(call, decide)


def quota_kind(call: Call) -> str:
    kind = call.query.get("backlogQuotaType", _SIZE)
    if kind not in (_SIZE, _AGE):
        raise RestError(PRECONDITION_FAILED, f"backlogQuotaType is {_SIZE} or {_AGE}, not {kind!r}")
    return kind


async def get_clusters(call: Call) -> list[str]:
    policies = await call.service.resources.namespaces.policies(call.namespace)
    return list(policies.get("replication_clusters") or [])


async def set_clusters(call: Call) -> None:
    wanted = sorted(set(call.json_names()))
    known = await call.service.resources.clusters.names()
    if unknown := [each for each in wanted if each not in known]:
        raise RestError(403, f"Invalid cluster id: {unknown[0]}")
    if not wanted:
        raise RestError(PRECONDITION_FAILED, "ClusterIds should not be null or empty")
    await change(call, lambda document: document | {"replication_clusters": wanted})


QUOTA_QUERY = (Query("backlogQuotaType", f"{_SIZE} (the default) or {_AGE}", "string"),)
ROUTES = [route for policy in NAMESPACE_POLICIES for route in _routes(policy)] + [
    Route("GET", f"{_ONE}/backlogQuotaMap", "Get the backlog quotas", get_quotas),
    Route("POST", f"{_ONE}/backlogQuota", "Set a backlog quota", set_quota, query=QUOTA_QUERY, body="BacklogQuota"),
    Route("DELETE", f"{_ONE}/backlogQuota", "Remove a backlog quota", remove_quota, query=QUOTA_QUERY),
    Route("GET", f"{_ONE}/replication", "Get the clusters a namespace is in", get_clusters),
    Route("POST", f"{_ONE}/replication", "Set the clusters a namespace is in", set_clusters, body="a list of clusters"),
]
