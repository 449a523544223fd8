"""Which broker owns a topic's bundle, since when, and why that one: paths that Pulsar does not have.

Any broker answers. The owner and the time are what the metadata has. The owner knows how it got the bundle, and the
leader why it chose that broker; both are asked for what they remember. What neither of them knows is null: nothing is
guessed, and no topic gets an owner by the question.

Read next: broker/cluster/ownership.py, broker/cluster/decisions.py; docs/cli.md
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, Final

from magnetar.admin.http.call import Call, Route
from magnetar.admin.http.errors import BAD_REQUEST, NOT_FOUND, RestError
from magnetar.broker.ownership import Acquired, OwnerRecord
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.client.http import HttpClient, json_of, succeeded
from magnetar.errors import InvalidNameError, MagnetarError

_ASKED_S_MAX: Final = 5.0  # A broker that has just been killed does not hold the answer up for longer.
_DECIDED_MS_MAX: Final = 120_000
"""A decision this much older or newer than the record is about another time: the clocks of two machines differ by less,
and a broker that is chosen gets the bundle within a minute."""
_TEXTS: Final = {
    Acquired.ALONE: "it is the only broker of its cluster",
    Acquired.CHOSEN: "another broker had chosen it",
    Acquired.CHOSEN_HERE: "it had to choose a broker, and chose itself",
    Acquired.SPLIT: "it owned the larger bundle, which was split",
    Acquired.MERGED: "it owned the two bundles that were merged",
    Acquired.FOUND: "the record was its own already, because an earlier change was not finished or not answered",
    Acquired.AGAIN: "its record was missing, because its session had expired or a client had deleted it, and no other "
    "broker had taken the bundle",
}


async def explain_owner(call: Call) -> dict[str, Any]:
    await call.require_not_partitioned()
    if not await call.service.exists(call.topic):
        raise RestError(NOT_FOUND, f"Topic {call.topic} not found")
    bundles = await call.service.resources.namespaces.bundles(call.namespace)
    bundle = NamespaceBundle(call.namespace, bundles.of(call.topic))
    record = await call.service.ownership.record_of(bundle)
    answer: dict[str, Any] = {"topic": str(call.topic), "bundle": str(bundle), "owner": None}
    if record is None:
        return answer
    leader = await call.service.membership.leading()
    urls = {record.address.broker_id: record.address.http_url}
    if leader is not None:
        urls[leader.broker_id] = leader.http_url
    found = dict(zip(urls, await asyncio.gather(*(_ask(call, *each, bundle) for each in urls.items())), strict=True))
    acquired = found[record.address.broker_id].get("acquired")
    decisions = [(broker, known.get("decision")) for broker, known in found.items()]
    return answer | {
        "owner": record.address.broker_id,
        "owner_url": record.address.http_url,
        "since_ms": record.since_ms,
        "is_being_unloaded": record.is_being_unloaded,
        "acquired": acquired,
        "leader": None if leader is None else leader.broker_id,
        "decision": _fitting(decisions, record),
        "not_asked": [f"broker {broker}: {known['error']}" for broker, known in found.items() if "error" in known],
    }


def _fitting(decisions: list[tuple[str, dict[str, Any] | None]], record: OwnerRecord) -> dict[str, Any] | None:
    """Returns the decision that led to the record, if a broker remembers it."""
    for broker, decision in decisions:
        if (
            decision is not None
            and record.since_ms is not None
            and decision["broker"] == record.address.broker_id
            and abs(decision["made_ms"] - record.since_ms) <= _DECIDED_MS_MAX
        ):
            return {"by": broker, **decision}
    return None


async def _ask(call: Call, broker_id: str, http_url: str, bundle: NamespaceBundle) -> dict[str, Any]:
    """Returns what the broker knows, or why it could not be asked."""
    if broker_id == call.service.address.broker_id:
        return _known(call, bundle)
    try:
        async with HttpClient(http_url, call.service.entropy.random) as http:
            path = f"/admin/v2/magnetar/bundles/{bundle}"
            answer = json_of(succeeded(await http.request("GET", path, timeout_s=_ASKED_S_MAX)))
    except MagnetarError as error:
        return {"error": str(error)}
    return answer if isinstance(answer, dict) else {"error": "its answer is not a JSON object"}


async def get_known(call: Call) -> dict[str, Any]:
    try:
        bundle = NamespaceBundle.parse(f"{call.namespace}/{call.name('bundle')}")
    except InvalidNameError as error:
        raise RestError(BAD_REQUEST, str(error)) from None
    return _known(call, bundle)


def _known(call: Call, bundle: NamespaceBundle) -> dict[str, Any]:
    acquired = call.service.ownership.acquired(bundle)
    decision = call.service.membership.decision_on(bundle)
    return {
        "acquired": None if acquired is None else {"how": str(acquired), "text": _TEXTS[acquired]},
        "decision": None if decision is None else dataclasses.asdict(decision),
    }


ROUTES = [
    Route(
        "GET",
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/explain",
        "Say which broker owns a topic's bundle, since when, and why that one",
        explain_owner,
    ),
    Route(
        "GET",
        "/admin/v2/magnetar/bundles/{tenant}/{namespace}/{bundle}",
        "Get what this broker remembers about the owner of a bundle",
        get_known,
    ),
]
