"""Routes of single policies of namespaces and topics, made from the rows of broker/policies/registry.py.

A request is parsed to the value of a policy as it is stored; any other value is refused. All partitions of a topic have
the same policies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.admin.http.call import Call, Handler, Query, Route
from magnetar.admin.http.errors import NOT_FOUND, PRECONDITION_FAILED, RestError, refusing_malformed
from magnetar.broker.policies.kinds import (
    BACKLOG_QUOTAS,
    CLUSTERS,
    DISPATCH_RATES_BY_SUBSCRIPTION,
    Kind,
    Sent,
    shown_dispatch_rate,
)
from magnetar.broker.policies.registry import EffectivePolicies, NamespacePolicies
from magnetar.broker.policies.rows import Place, Policy, rows_of, with_field
from magnetar.broker.policies.values import BacklogQuota, BacklogQuotas
from magnetar.broker.resources.documents import Decision, Document

# --- the two levels ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Level:
    """Where policies are stored: the documents of namespaces, or those of topics."""

    root: str
    document: Callable[[Call], Awaitable[Document]]
    change: Callable[[Call, Decision], Awaitable[None]]
    """Returns when the change is in force."""
    effective: Callable[[Call], Awaitable[EffectivePolicies]] | None = None
    """Returns what `applied=true` shows."""
    read: tuple[Query, ...] = ()
    write: tuple[Query, ...] = ()
    quota_words: tuple[str, str] = ("the backlog quotas", "a backlog quota")

    async def store(self, call: Call, place: Place, value: Any) -> None:
        cluster = call.service.config.broker.cluster

        def decide(document: Document) -> Document:
            if place.fits is not None and value is not None:
                place.fits(document, value)
            return place.put(document, value, cluster)

        await self.change(call, decide)

    async def applied(self, call: Call, name: str) -> Any:
        assert self.effective is not None
        return getattr(await self.effective(call), name)

    def shows_applied(self, call: Call) -> bool:
        return self.effective is not None and call.flag("applied")


async def _namespace_document(call: Call) -> Document:
    return await call.service.resources.namespaces.policies(call.namespace)


async def _change_namespace(call: Call, decide: Decision) -> None:
    await call.service.resources.namespaces.update(call.namespace, decide)
    await call.service.policies.refresh(call.namespace)


async def _require_topic(call: Call) -> None:
    await call.service.require_namespace(call.namespace)
    if not await call.partitions() and not await call.service.exists(call.topic):
        raise RestError(NOT_FOUND, f"Topic {call.topic} not found")


async def _topic_document(call: Call) -> Document:
    """Returns the stored document; empty if the topic has none."""
    await _require_topic(call)
    await call.service.policies.load(call.topic)
    return call.service.policies.topic_policies(call.topic, is_global=call.flag("isGlobal")) or {}


async def _change_topic(call: Call, decide: Decision) -> None:
    await _require_topic(call)
    await call.service.policies.update_topic(call.topic, decide, is_global=call.flag("isGlobal"))


async def _effective(call: Call) -> EffectivePolicies:
    await _require_topic(call)
    await call.service.policies.load(call.topic)
    return call.service.policies.effective(call.topic)


_GLOBAL: Final = Query("isGlobal", "the policy that all clusters share")
_APPLIED: Final = Query("applied", "the value in force, wherever it is set")
_NAMESPACE: Final = _Level("/admin/v2/namespaces/{tenant}/{namespace}", _namespace_document, _change_namespace)
_TOPIC: Final = _Level(
    "/admin/v2/persistent/{tenant}/{namespace}/{topic}",
    _topic_document,
    _change_topic,
    _effective,
    (_APPLIED, _GLOBAL),
    (_GLOBAL,),
    ("the topic's backlog quotas", "a backlog quota of the topic"),
)


# --- what a request sets ----------------------------------------------------------------------------------------------


def _parsed(call: Call, place: Place, kind: Kind[Any]) -> Any:
    """Returns what the request sets the policy to. RestError or InvalidPolicyError if that is no value of the kind."""
    if place.is_in_query and place.path in call.query:
        sent: Any = call.query_number(place.path, 0)
    else:
        sent = _SENT[kind.sent](call)
    with refusing_malformed():
        return kind.accepted(sent, call.service.config)


def body_of(place: Place, kind: Kind[Any]) -> str:
    """Returns what a client sends, in words for OpenAPI."""
    return "" if place.is_in_query else kind.body


def _integer_or_null(call: Call) -> int | None:
    return None if call.json() is None else call.json_integer()


def _name(call: Call) -> Any:
    """Reads a name, sent as a JSON string or as plain text."""
    is_json = call.body.lstrip()[:1] == b'"'
    return call.json() if is_json else call.body.decode("utf-8", "replace").strip()


_SENT: Final[Mapping[Sent, Callable[[Call], Any]]] = {
    Sent.INTEGER: Call.json_integer,
    Sent.INTEGER_OR_NULL: _integer_or_null,
    Sent.FLAG: Call.json_flag,
    Sent.NAME: _name,
    Sent.NAMES: Call.json_names,
    Sent.OBJECT: Call.json_object,
    Sent.NOTHING: lambda _: True,
}


def namespace_routes(rows: Mapping[str, Policy[Any]]) -> list[Route]:
    """Returns the routes of the policies that the admin API offers for namespaces."""
    places = [(name, row, row.namespace) for name, row in rows.items() if row.namespace and row.namespace.path]
    return [route for name, row, place in places for route in _routes(_NAMESPACE, name, row, place)]


def topic_routes(rows: Mapping[str, Policy[Any]]) -> list[Route]:
    """Returns the routes of the policies that the admin API offers for topics."""
    places = [(name, row, row.topic) for name, row in rows.items() if row.topic and row.topic.path]
    return [route for name, row, place in places for route in _routes(_TOPIC, name, row, place)]


def _routes(level: _Level, name: str, row: Policy[Any], place: Place) -> list[Route]:
    if row.kind is BACKLOG_QUOTAS:
        return _quota_routes(level, name, place)
    if row.kind is DISPATCH_RATES_BY_SUBSCRIPTION:
        return _subscription_routes(row, place)
    kind, what, path = place.sent_as or row.kind, place.what or row.what, f"{level.root}/{place.path}"
    put = _setter(level, place, kind)
    routes = [
        Route("GET", path, f"Get {what}", _getter(level, name, kind, place), query=level.read),
        Route(place.method, path, f"Set {what}", put, query=level.write, body=body_of(place, kind)),
    ]
    if place.can_remove:
        remove = _remover(level, place)
        routes.append(Route("DELETE", path, f"Remove the setting of {what}", remove, query=level.write))
    return routes


def _getter(level: _Level, name: str, kind: Kind[Any], place: Place) -> Handler:
    async def get(call: Call) -> Any:
        found = place.get(await level.document(call), call.service.config.broker.cluster)
        if found is None and place.shows_applied and level.shows_applied(call):
            return kind.shown(await level.applied(call, name), call.service.config)
        return place.unset if found is None else found

    return get


def _setter(level: _Level, place: Place, kind: Kind[Any]) -> Handler:
    async def put(call: Call) -> None:
        value = _parsed(call, place, kind)
        if level is _NAMESPACE and kind is CLUSTERS:
            value = sorted(set(value))
            await _require_clusters(call, value)
        await level.store(call, place, value)

    return put


async def _require_clusters(call: Call, wanted: list[str]) -> None:
    known = await call.service.resources.clusters.names()
    if unknown := [each for each in wanted if each not in known]:
        raise RestError(403, f"Invalid cluster id: {unknown[0]}")
    if not wanted:
        raise RestError(PRECONDITION_FAILED, "ClusterIds should not be null or empty")


def _remover(level: _Level, place: Place) -> Handler:
    unset = place.unset if level is _NAMESPACE else place.unset or None

    async def remove(call: Call) -> None:
        await level.store(call, place, unset)

    return remove


# --- quotas: the path has a map, of which a request changes one entry -------------------------------------------------

_SIZE, _AGE = BacklogQuotas.NAMES
_QUOTA_QUERY: Final = (Query("backlogQuotaType", f"{_SIZE} (the default) or {_AGE}", "string"),)


def _quota_name(call: Call) -> str:
    name = call.query.get("backlogQuotaType", _SIZE)
    if name not in BacklogQuotas.NAMES:
        raise RestError(PRECONDITION_FAILED, f"backlogQuotaType is {_SIZE} or {_AGE}, not {name!r}")
    return name


def _quota_routes(level: _Level, name: str, place: Place) -> list[Route]:
    async def get(call: Call) -> Any:
        found = dict((await level.document(call)).get(place.field) or {})
        if level is _NAMESPACE:
            return found
        if found or not level.shows_applied(call):
            return {each: BacklogQuota.from_json(quota).to_json() for each, quota in found.items()}
        return BACKLOG_QUOTAS.shown(await level.applied(call, name), call.service.config)

    async def put(call: Call) -> None:
        await change(call, _quota_name(call), _parsed(call, place, BACKLOG_QUOTAS))

    async def remove(call: Call) -> None:
        await change(call, _quota_name(call), None)

    async def change(call: Call, entry: str, quota: Any) -> None:
        def decide(document: Document) -> Document:
            if place.fits is not None and quota is not None:
                place.fits(document, {entry: quota})
            return document | {place.field: with_field(document.get(place.field) or {}, entry, quota)}

        await level.change(call, decide)

    path, query, (all_quotas, one) = f"{level.root}/{place.path}", (*_QUOTA_QUERY, *level.write), level.quota_words
    return [
        Route("GET", f"{path}Map", f"Get {all_quotas}", get, query=level.read),
        Route("POST", path, f"Set {one}", put, query=query, body=BACKLOG_QUOTAS.body),
        Route("DELETE", path, f"Remove {one}", remove, query=query),
    ]


# --- rates of single subscriptions, whose names are in the path -------------------------------------------------------


def _subscription_routes(row: Policy[Any], place: Place) -> list[Route]:
    async def get(call: Call) -> Any:
        policies = (await _topic_document(call)).get(place.field) or {}
        found = (policies.get(call.name("subscription")) or {}).get("dispatchRate")
        if found is None and call.flag("applied"):
            rate = (await _effective(call)).dispatch_rate_of(call.name("subscription"))
            return shown_dispatch_rate(rate, call.service.config)
        return found

    async def put(call: Call) -> None:
        await change(call, _parsed(call, place, row.kind))

    async def remove(call: Call) -> None:
        await change(call, None)

    async def change(call: Call, rate: Document | None) -> None:
        subscription = call.name("subscription")

        def decide(document: Document) -> Document:
            policies = document.get(place.field) or {}
            of_one = with_field(policies.get(subscription) or {}, "dispatchRate", rate)
            return document | {place.field: with_field(policies, subscription, of_one or None)}

        await _change_topic(call, decide)

    path = f"{_TOPIC.root}/{place.path}"
    return [
        Route("GET", path, f"Get {row.what}", get, query=_TOPIC.read),
        Route("POST", path, f"Set {row.what}", put, query=_TOPIC.write, body=row.kind.body),
        Route("DELETE", path, f"Remove {row.what}", remove, query=_TOPIC.write),
    ]


async def delete_all(call: Call) -> None:
    await _require_topic(call)
    await call.service.policies.delete_topic(call.topic)


ROUTES = [
    *namespace_routes({**rows_of(EffectivePolicies), **rows_of(NamespacePolicies)}),
    *topic_routes(rows_of(EffectivePolicies)),
    Route("DELETE", f"{_TOPIC.root}/policies", "Delete all policies of a topic", delete_all),
]
