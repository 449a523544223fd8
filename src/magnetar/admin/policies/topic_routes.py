"""Routes of single policies of topics, made from the table. All partitions of a topic have the same."""

from __future__ import annotations

from typing import Any

from magnetar.admin.call import Call
from magnetar.admin.errors import NOT_FOUND, RestError
from magnetar.admin.policies import kinds
from magnetar.admin.policies.namespace_routes import QUOTA_QUERY, quota_kind, with_field
from magnetar.admin.policies.topic_table import TOPIC_POLICIES, TopicPolicy, dispatch_json
from magnetar.admin.route import Handler, Query, Route
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.policies.service import Decision, Document
from magnetar.broker.policies.values import BacklogQuota, QuotaPolicy

_ONE = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_GLOBAL = Query("isGlobal", "the policy that all clusters share")
_APPLIED = Query("applied", "what is in force, wherever it is set")
_READ, _WRITE = (_APPLIED, _GLOBAL), (_GLOBAL,)
_DELAYED = (
    ("active", "delayedDeliveryEnabled"),
    ("tickTime", "delayedDeliveryTickTimeMillis"),
    ("maxDeliveryDelayInMillis", "delayedDeliveryMaxDelayInMillis"),
)


async def _require_topic(call: Call) -> None:
    await call.service.require_namespace(call.namespace)
    if not await call.partitions() and not await call.service.exists(call.topic):
        raise RestError(NOT_FOUND, f"Topic {call.topic} not found")


async def _document(call: Call) -> Document:
    """As it is stored; empty if the topic has none."""
    await _require_topic(call)
    await call.service.policies.load(call.topic)
    return call.service.policies.topic_policies(call.topic, is_global=call.flag("isGlobal")) or {}


async def _effective(call: Call) -> EffectivePolicies:
    await _require_topic(call)
    await call.service.policies.load(call.topic)
    return call.service.policies.effective(call.topic)


async def _change(call: Call, decide: Decision) -> None:
    await _require_topic(call)
    await call.service.policies.update_topic(call.topic, decide, is_global=call.flag("isGlobal"))


def _getter(policy: TopicPolicy) -> Handler:
    async def get(call: Call) -> Any:
        found = (await _document(call)).get(policy.field)
        if found is None and call.flag("applied") and policy.applied is not None:
            return policy.applied(await _effective(call), call.service.config)
        return policy.unset if found is None else found

    return get


def _setter(policy: TopicPolicy) -> Handler:
    async def put(call: Call) -> None:
        value = policy.parse(call)
        await _change(call, lambda document: with_field(document, policy.field, value))

    return put


def _remover(policy: TopicPolicy) -> Handler:
    async def remove(call: Call) -> None:
        await _change(call, lambda document: with_field(document, policy.field, policy.unset or None))

    return remove


def _routes(policy: TopicPolicy) -> list[Route]:
    path = f"{_ONE}/{policy.path}"
    routes = [
        Route("GET", path, f"Get {policy.what}", _getter(policy), query=_READ),
        Route(policy.method, path, f"Set {policy.what}", _setter(policy), query=_WRITE, body=policy.body),
    ]
    if policy.can_remove:
        routes.append(Route("DELETE", path, f"Remove the setting of {policy.what}", _remover(policy), query=_WRITE))
    return routes


# --- those that are not one field -------------------------------------------------------------------------------------


async def get_delayed(call: Call) -> Any:
    document = await _document(call)
    found = {name: document[field] for name, field in _DELAYED if field in document}
    if found or not call.flag("applied"):
        return found or None
    policies = await _effective(call)
    values = (policies.delayed_delivery, policies.delayed_tick_ms, policies.delayed_max_ms)
    return {name: value for (name, _), value in zip(_DELAYED, values, strict=True)}


async def set_delayed(call: Call) -> None:
    value = kinds.delayed_delivery(call)
    fields = {field: value.get(name) for name, field in _DELAYED}
    await _change(call, lambda document: _with_all(document, fields))


async def remove_delayed(call: Call) -> None:
    await _change(call, lambda document: _with_all(document, dict.fromkeys(field for _, field in _DELAYED)))


def _with_all(document: Document, fields: dict[str, Any]) -> Document:
    for field, value in fields.items():
        document = with_field(document, field, value)
    return document


async def get_quotas(call: Call) -> dict[str, Any]:
    found = dict((await _document(call)).get("backLogQuotaMap") or {})
    if found or not call.flag("applied"):
        return {kind: _quota_json(quota) for kind, quota in found.items()}
    policies = await _effective(call)
    return {"destination_storage": policies.storage_quota.to_json(), "message_age": policies.age_quota.to_json()}


def _quota_json(stored: Document) -> Document:
    return BacklogQuota.from_json(stored).to_json()


async def set_quota(call: Call) -> None:
    kind, quota = quota_kind(call), kinds.backlog_quota(call)
    QuotaPolicy(quota["policy"])
    await _change(
        call,
        lambda document: document | {"backLogQuotaMap": (document.get("backLogQuotaMap") or {}) | {kind: quota}},
    )


async def remove_quota(call: Call) -> None:
    kind = quota_kind(call)
    await _change(
        call,
        lambda document: document | {"backLogQuotaMap": with_field(document.get("backLogQuotaMap") or {}, kind, None)},
    )


async def get_subscription_rate(call: Call) -> Any:
    policies = (await _document(call)).get("subscriptionPolicies") or {}
    found = (policies.get(call.name("subscription")) or {}).get("dispatchRate")
    if found is None and call.flag("applied"):
        return dispatch_json((await _effective(call)).dispatch_rate_of(call.name("subscription")))
    return found


async def set_subscription_rate(call: Call) -> None:
    await _change_subscription(call, kinds.dispatch_rate(call))


async def remove_subscription_rate(call: Call) -> None:
    await _change_subscription(call, None)


async def _change_subscription(call: Call, rate: Document | None) -> None:
    name = call.name("subscription")

    def decide(document: Document) -> Document:
        policies = document.get("subscriptionPolicies") or {}
        of_one = with_field(policies.get(name) or {}, "dispatchRate", rate)
        return document | {"subscriptionPolicies": with_field(policies, name, of_one or None)}

    await _change(call, decide)


async def delete_all(call: Call) -> None:
    await _require_topic(call)
    await call.service.policies.delete_topic(call.topic)


_RATE = f"{_ONE}/{{subscription}}/dispatchRate"
_QUOTA_WRITE = (*QUOTA_QUERY, _GLOBAL)
ROUTES = [route for policy in TOPIC_POLICIES for route in _routes(policy)] + [
    Route("GET", f"{_ONE}/delayedDelivery", "Get delayed delivery", get_delayed, query=_READ),
    Route(
        "POST",
        f"{_ONE}/delayedDelivery",
        "Set delayed delivery",
        set_delayed,
        query=_WRITE,
        body="DelayedDeliveryPolicies",
    ),
    Route("DELETE", f"{_ONE}/delayedDelivery", "Remove the setting of delayed delivery", remove_delayed, query=_WRITE),
    Route("GET", f"{_ONE}/backlogQuotaMap", "Get the topic's backlog quotas", get_quotas, query=_READ),
    Route(
        "POST",
        f"{_ONE}/backlogQuota",
        "Set a backlog quota of the topic",
        set_quota,
        query=_QUOTA_WRITE,
        body="BacklogQuota",
    ),
    Route("DELETE", f"{_ONE}/backlogQuota", "Remove a backlog quota of the topic", remove_quota, query=_QUOTA_WRITE),
    Route("GET", _RATE, "Get the limit on delivery of one subscription", get_subscription_rate, query=_READ),
    Route(
        "POST",
        _RATE,
        "Set the limit on delivery of one subscription",
        set_subscription_rate,
        query=_WRITE,
        body="DispatchRate",
    ),
    Route("DELETE", _RATE, "Remove the limit on delivery of one subscription", remove_subscription_rate, query=_WRITE),
    Route("DELETE", f"{_ONE}/policies", "Delete all policies of a topic", delete_all),
]
