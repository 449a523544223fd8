"""Routes of single policies of namespaces, made from the rows of the registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from magnetar.admin.http.call import Call
from magnetar.admin.http.errors import PRECONDITION_FAILED, RestError
from magnetar.admin.http.route import Handler, Query, Route
from magnetar.admin.policies.parsers import body_of, parsed
from magnetar.broker.policies.kinds import BACKLOG_QUOTAS, CLUSTERS, Kind
from magnetar.broker.policies.registry import EffectivePolicies, NamespacePolicies
from magnetar.broker.policies.rows import Place, Policy, rows_of, with_field
from magnetar.broker.policies.values import BacklogQuotas
from magnetar.broker.resources.documents import Decision, Document

_ONE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_SIZE, _AGE = BacklogQuotas.NAMES


def routes_of(rows: Iterable[Policy[Any]]) -> list[Route]:
    """Returns the routes of the policies that the admin API offers for namespaces."""
    return [route for row in rows if row.namespace and row.namespace.path for route in _routes(row, row.namespace)]


def _routes(row: Policy[Any], place: Place) -> list[Route]:
    if row.kind is BACKLOG_QUOTAS:
        return _quota_routes(place)
    kind, what, path = place.sent_as or row.kind, place.what or row.what, f"{_ONE}/{place.path}"
    put = _cluster_setter(place) if kind is CLUSTERS else _setter(place, kind)
    routes = [
        Route("GET", path, f"Get {what}", _getter(place)),
        Route(place.method, path, f"Set {what}", put, body=body_of(place, kind)),
    ]
    if place.can_remove:
        routes.append(Route("DELETE", path, f"Remove the setting of {what}", _remover(place)))
    return routes


async def _document(call: Call) -> Document:
    return await call.service.resources.namespaces.policies(call.namespace)


async def _change(call: Call, decide: Decision) -> None:
    """Returns when the change is in force."""
    await call.service.resources.namespaces.update(call.namespace, decide)
    await call.service.policies.refresh(call.namespace)


async def _store(call: Call, place: Place, value: Any) -> None:
    cluster = call.service.config.broker.cluster

    def decide(document: Document) -> Document:
        if place.fits is not None and value is not None:
            place.fits(document, value)
        return place.put(document, value, cluster)

    await _change(call, decide)


def _getter(place: Place) -> Handler:
    async def get(call: Call) -> Any:
        found = place.get(await _document(call), call.service.config.broker.cluster)
        return place.unset if found is None else found

    return get


def _setter(place: Place, kind: Kind[Any]) -> Handler:
    async def put(call: Call) -> None:
        await _store(call, place, parsed(call, place, kind))

    return put


def _remover(place: Place) -> Handler:
    async def remove(call: Call) -> None:
        await _store(call, place, place.unset)

    return remove


def _cluster_setter(place: Place) -> Handler:
    async def put(call: Call) -> None:
        wanted = sorted(set(parsed(call, place, CLUSTERS)))
        known = await call.service.resources.clusters.names()
        if unknown := [each for each in wanted if each not in known]:
            raise RestError(403, f"Invalid cluster id: {unknown[0]}")
        if not wanted:
            raise RestError(PRECONDITION_FAILED, "ClusterIds should not be null or empty")
        await _store(call, place, wanted)

    return put


# --- quotas: the path has a map, of which a request changes one entry -------------------------------------------------

QUOTA_QUERY: Final = (Query("backlogQuotaType", f"{_SIZE} (the default) or {_AGE}", "string"),)


def quota_name(call: Call) -> str:
    name = call.query.get("backlogQuotaType", _SIZE)
    if name not in BacklogQuotas.NAMES:
        raise RestError(PRECONDITION_FAILED, f"backlogQuotaType is {_SIZE} or {_AGE}, not {name!r}")
    return name


def _quota_routes(place: Place) -> list[Route]:
    async def get(call: Call) -> dict[str, Any]:
        return dict((await _document(call)).get(place.field) or {})

    async def put(call: Call) -> None:
        await change(call, quota_name(call), parsed(call, place, BACKLOG_QUOTAS))

    async def remove(call: Call) -> None:
        await change(call, quota_name(call), None)

    async def change(call: Call, name: str, quota: Any) -> None:
        def decide(document: Document) -> Document:
            if place.fits is not None and quota is not None:
                place.fits(document, {name: quota})
            return document | {place.field: with_field(document.get(place.field) or {}, name, quota)}

        await _change(call, decide)

    path = f"{_ONE}/{place.path}"
    return [
        Route("GET", f"{path}Map", "Get the backlog quotas", get),
        Route("POST", path, "Set a backlog quota", put, query=QUOTA_QUERY, body=BACKLOG_QUOTAS.body),
        Route("DELETE", path, "Remove a backlog quota", remove, query=QUOTA_QUERY),
    ]


ROUTES = routes_of([*rows_of(EffectivePolicies).values(), *rows_of(NamespacePolicies).values()])
