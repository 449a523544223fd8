"""/admin/v2/bookies: the registered bookies, and their racks.

Format:    Racks are in one node, `/bookies`: group → bookie → rack and host name. The placement of ledgers reads it.
"""

from __future__ import annotations

from typing import Any

from magnetar.admin.http.call import Call, Query, Route
from magnetar.admin.http.errors import NOT_FOUND, RestError
from magnetar.broker.resources import paths
from magnetar.broker.resources.documents import Document
from magnetar.errors import NoNodeError
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths

_DEFAULT_GROUP = "default"
_READONLY = "readonly"


async def list_bookies(call: Call) -> dict[str, Any]:
    root = BookKeeperPaths(call.service.config.metadata.ledgers_root)
    names: dict[str, None] = {}
    for path in (root.available, root.readonly):
        try:
            children = await call.service.resources.store.children(path)
        except NoNodeError:
            continue
        names.update(dict.fromkeys(name for name in children if name != _READONLY))
    return {"bookies": [{"bookieId": name} for name in sorted(names)]}


async def get_racks(call: Call) -> Document:
    return await call.service.resources.documents.read(paths.BOOKIES) or {}


async def get_rack(call: Call) -> Any:
    bookie = call.name("bookie")
    for group in (await get_racks(call)).values():
        if bookie in group:
            return group[bookie]
    raise RestError(NOT_FOUND, f"Bookie address not found: {bookie}")


async def set_rack(call: Call) -> None:
    bookie, info, wanted = call.name("bookie"), call.json_object(), call.query.get("group", _DEFAULT_GROUP)

    def decide(found: Document | None) -> Document:
        racks = _without(found or {}, bookie)
        return racks | {wanted: racks.get(wanted, {}) | {bookie: info}}

    await call.service.resources.documents.update_or_create(paths.BOOKIES, decide)


async def delete_rack(call: Call) -> None:
    bookie = call.name("bookie")
    await get_rack(call)
    await call.service.resources.documents.update(paths.BOOKIES, lambda found: _without(found, bookie))


def _without(racks: Document, bookie: str) -> Document:
    kept = {group: {name: info for name, info in bookies.items() if name != bookie} for group, bookies in racks.items()}
    return {group: bookies for group, bookies in kept.items() if bookies}


_ALL, _ONE = "/admin/v2/bookies", "/admin/v2/bookies/racks-info/{bookie}"
_GROUP = (Query("group", "default, if not given", "string"),)
ROUTES = [
    Route("GET", f"{_ALL}/all", "List the registered bookies", list_bookies),
    Route("GET", f"{_ALL}/racks-info", "Get the racks of all bookies", get_racks),
    Route("GET", _ONE, "Get the rack of a bookie", get_rack),
    Route("POST", _ONE, "Set the rack of a bookie", set_rack, query=_GROUP, body="BookieInfo: rack, hostname"),
    Route("DELETE", _ONE, "Forget the rack of a bookie", delete_rack),
]
