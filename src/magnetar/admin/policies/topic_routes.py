"""Routes of single policies of topics, made from the rows of the registry. All partitions of a topic have the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from magnetar.admin.http.call import Call
from magnetar.admin.http.errors import NOT_FOUND, RestError
from magnetar.admin.http.route import Handler, Query, Route
from magnetar.admin.policies.namespace_routes import QUOTA_QUERY, quota_name
from magnetar.admin.policies.parsers import body_of, parsed
from magnetar.broker.policies.kinds import (
    BACKLOG_QUOTAS,
    DISPATCH_RATES_BY_SUBSCRIPTION,
    Kind,
    shown_dispatch_rate,
)
from magnetar.broker.policies.registry import EffectivePolicies
from magnetar.broker.policies.rows import Place, Policy, rows_of, with_field
from magnetar.broker.policies.service import Decision, Document
from magnetar.broker.policies.values import BacklogQuota

_ONE: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_GLOBAL: Final = Query("isGlobal", "the policy that all clusters share")
_APPLIED: Final = Query("applied", "the value in force, wherever it is set")
_READ, _WRITE = (_APPLIED, _GLOBAL), (_GLOBAL,)


def routes_of(rows: Mapping[str, Policy[Any]]) -> list[Route]:
    """Returns the routes of the policies that the admin API offers for topics."""
    return [
        route for name, row in rows.items() if row.topic and row.topic.path for route in _routes(name, row, row.topic)
    ]


def _routes(name: str, row: Policy[Any], place: Place) -> list[Route]:
    if special := _SPECIAL.get(row.kind):
        return special(name, row, place)
    kind, what, path = place.sent_as or row.kind, place.what or row.what, f"{_ONE}/{place.path}"
    routes = [
        Route("GET", path, f"Get {what}", _getter(name, kind, place), query=_READ),
        Route(place.method, path, f"Set {what}", _setter(place, kind), query=_WRITE, body=body_of(place, kind)),
    ]
    if place.can_remove:
        routes.append(Route("DELETE", path, f"Remove the setting of {what}", _remover(place), query=_WRITE))
    return routes


async def _require_topic(call: Call) -> None:
    await call.service.require_namespace(call.namespace)
    if not await call.partitions() and not await call.service.exists(call.topic):
        raise RestError(NOT_FOUND, f"Topic {call.topic} not found")


async def _document(call: Call) -> Document:
    """Returns the stored document; empty if the topic has none."""
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


def _getter(name: str, kind: Kind[Any], place: Place) -> Handler:
    async def get(call: Call) -> Any:
        found = place.get(await _document(call), call.service.config.broker.cluster)
        if found is None and call.flag("applied") and place.shows_applied:
            return kind.shown(getattr(await _effective(call), name), call.service.config)
        return place.unset if found is None else found

    return get


def _setter(place: Place, kind: Kind[Any]) -> Handler:
    async def put(call: Call) -> None:
        value = parsed(call, place, kind)
        await _store(call, place, value)

    return put


def _remover(place: Place) -> Handler:
    async def remove(call: Call) -> None:
        await _store(call, place, place.unset or None)

    return remove


async def _store(call: Call, place: Place, value: Any) -> None:
    cluster = call.service.config.broker.cluster
    await _change(call, lambda document: place.put(document, value, cluster))


# --- quotas: the path has a map, of which a request changes one entry -------------------------------------------------


def _quota_routes(name: str, row: Policy[Any], place: Place) -> list[Route]:
    async def get(call: Call) -> dict[str, Any]:
        found = dict((await _document(call)).get(place.field) or {})
        if found or not call.flag("applied"):
            return {each: BacklogQuota.from_json(quota).to_json() for each, quota in found.items()}
        shown: dict[str, Any] = row.kind.shown(getattr(await _effective(call), name), call.service.config)
        return shown

    async def put(call: Call) -> None:
        await change(call, quota_name(call), parsed(call, place, row.kind))

    async def remove(call: Call) -> None:
        await change(call, quota_name(call), None)

    async def change(call: Call, entry: str, quota: Any) -> None:
        def decide(document: Document) -> Document:
            return document | {place.field: with_field(document.get(place.field) or {}, entry, quota)}

        await _change(call, decide)

    path, query = f"{_ONE}/{place.path}", (*QUOTA_QUERY, _GLOBAL)
    return [
        Route("GET", f"{path}Map", f"Get {place.what}", get, query=_READ),
        Route("POST", path, "Set a backlog quota of the topic", put, query=query, body=row.kind.body),
        Route("DELETE", path, "Remove a backlog quota of the topic", remove, query=query),
    ]


# --- rates of single subscriptions, whose names are in the path -------------------------------------------------------


def _subscription_routes(name: str, row: Policy[Any], place: Place) -> list[Route]:
    del name

    async def get(call: Call) -> Any:
        policies = (await _document(call)).get(place.field) or {}
        found = (policies.get(call.name("subscription")) or {}).get("dispatchRate")
        if found is None and call.flag("applied"):
            rate = (await _effective(call)).dispatch_rate_of(call.name("subscription"))
            return shown_dispatch_rate(rate, call.service.config)
        return found

    async def put(call: Call) -> None:
        await change(call, parsed(call, place, row.kind))

    async def remove(call: Call) -> None:
        await change(call, None)

    async def change(call: Call, rate: Document | None) -> None:
        subscription = call.name("subscription")

        def decide(document: Document) -> Document:
            policies = document.get(place.field) or {}
            of_one = with_field(policies.get(subscription) or {}, "dispatchRate", rate)
            return document | {place.field: with_field(policies, subscription, of_one or None)}

        await _change(call, decide)

    path = f"{_ONE}/{place.path}"
    return [
        Route("GET", path, f"Get {row.what}", get, query=_READ),
        Route("POST", path, f"Set {row.what}", put, query=_WRITE, body=row.kind.body),
        Route("DELETE", path, f"Remove {row.what}", remove, query=_WRITE),
    ]


_SPECIAL: Final[Mapping[Kind[Any], Callable[[str, Policy[Any], Place], list[Route]]]] = {
    BACKLOG_QUOTAS: _quota_routes,
    DISPATCH_RATES_BY_SUBSCRIPTION: _subscription_routes,
}


async def delete_all(call: Call) -> None:
    await _require_topic(call)
    await call.service.policies.delete_topic(call.topic)


ROUTES = [
    *routes_of(rows_of(EffectivePolicies)),
    Route("DELETE", f"{_ONE}/policies", "Delete all policies of a topic", delete_all),
]
