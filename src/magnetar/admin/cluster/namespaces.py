"""/admin/v2/namespaces: namespaces, their topics, bundles and properties, and operations on all their topics.

Single policies are in policies/.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from magnetar.admin.http.call import Call, Query, Reply, Route
from magnetar.admin.http.errors import (
    CONFLICT,
    NOT_FOUND,
    PRECONDITION_FAILED,
    ElsewhereError,
    RestError,
    refusing_malformed,
)
from magnetar.broker.ownership import Owner
from magnetar.broker.policies.registry import known_policies
from magnetar.broker.policies.values import Json, names, nested, number
from magnetar.broker.resources.bundles import Bundles, NamespaceBundle
from magnetar.broker.resources.namespaces import new_policies
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.errors import CursorMissingError, ResourceMissingError, ServiceNotReadyError, TopicNotFoundError
from magnetar.names import Domain, NamespaceName, TopicName

_MODES = {
    "PERSISTENT": (Domain.PERSISTENT,),
    "NON_PERSISTENT": (Domain.NON_PERSISTENT,),
    "ALL": (Domain.PERSISTENT, Domain.NON_PERSISTENT),
}


_IN_THE_MIDDLE: Final = "range_equally_divide"
_AT_THE_MEDIAN: Final = "topic_count_equally_divide"


async def list_namespaces(call: Call) -> list[str]:
    tenant = call.name("tenant")
    if not await call.service.resources.tenants.exists(tenant):
        raise RestError(NOT_FOUND, f"Tenant not found: {tenant!r}")
    return sorted(str(name) for name in await call.service.resources.namespaces.names(tenant))


async def get_policies(call: Call) -> dict[str, Any]:
    namespaces = call.service.resources.namespaces
    policies = await namespaces.policies(call.namespace)
    bundles = (await namespaces.bundles(call.namespace)).to_json()
    return {"is_allow_auto_update_schema": True} | policies | {"bundles": bundles}


async def create_namespace(call: Call) -> None:
    service, name = call.service, call.namespace
    given = call.json() or {}
    if not isinstance(given, dict):
        raise RestError(400, "the body must be the namespace's Policies, a JSON object, or empty")
    broker = service.config.broker
    with refusing_malformed():
        given = known_policies(given, service.config)
        clusters = list(names(given, "replication_clusters"))
        bundles = nested(given, "bundles")
        count = Bundles.equal(broker.namespace_bundles) if not bundles else _bundles(bundles)
    policies = new_policies(clusters or await _clusters_of_tenant(call), count) | {
        field: value for field, value in given.items() if field not in ("bundles", "replication_clusters")
    }
    await service.resources.namespaces.create(name, policies)


async def _clusters_of_tenant(call: Call) -> list[str]:
    """Returns the broker's own cluster, which the client has asked, if the tenant may use it."""
    tenant = await call.service.resources.tenants.get(call.name("tenant"))
    cluster = call.service.config.broker.cluster
    allowed = tenant.get("allowedClusters") or []
    if allowed and cluster not in allowed:
        raise RestError(PRECONDITION_FAILED, f"the tenant may not use this cluster, {cluster!r}: see its clusters")
    return [cluster]


def _bundles(given: Json) -> Bundles:
    if given.get("boundaries"):
        return Bundles.from_json(given)
    return Bundles.equal(number(given, "numBundles", 1) or 1)


async def delete_namespace(call: Call) -> None:
    await delete_namespace_of(call, call.namespace, force=_force(call))


def _force(call: Call) -> bool:
    force = call.flag("force")
    if force and not call.service.config.broker.force_delete_namespace:
        raise RestError(405, "broker.force_delete_namespace is not set: delete the namespace's topics first")
    return force


async def delete_namespace_of(call: Call, name: NamespaceName, *, force: bool) -> None:
    service = call.service
    await service.resources.namespaces.policies(name)
    topics = await service.topics_of(name, tuple(Domain))
    partitioned = await service.resources.partitioned_topics.names(name)
    if (topics or partitioned) and not force:
        raise RestError(CONFLICT, f"Cannot delete non empty namespace: it has {(topics or partitioned)[0]}")
    await service.resources.namespaces.mark_deleted(name)
    await service.policies.refresh(name)
    for topic in [*topics, *await service.system_topics_of(name)]:
        await _delete_quietly(call, topic)
    await service.resources.namespaces.delete(name)
    await service.policies.refresh(name)
    await service.policies.forget([name])


async def _delete_quietly(call: Call, topic: TopicName) -> None:
    try:
        if not await call.ask_elsewhere(topic, "DELETE", force="true"):
            await call.service.delete_topic(topic, force=True)
    except (TopicNotFoundError, ResourceMissingError):
        return
    except RestError as error:
        if error.status != NOT_FOUND:
            raise


async def list_topics(call: Call) -> list[str]:
    await call.service.resources.namespaces.policies(call.namespace)
    domains = _MODES.get(call.query.get("mode", "PERSISTENT"), _MODES["PERSISTENT"])
    names = await call.service.topics_of(call.namespace, domains)
    if call.flag("includeSystemTopic") and Domain.PERSISTENT in domains:
        names = [*names, *await call.service.system_topics_of(call.namespace)]
    return sorted(await call.service.slices.map(str, names))


# --- all topics of a namespace ----------------------------------------------------------------------------------------


async def get_bundles(call: Call) -> dict[str, Any]:
    return (await call.service.resources.namespaces.bundles(call.namespace)).to_json()


async def unload_namespace(call: Call) -> None:
    """Unloads each bundle at its owner."""
    ownership = call.service.ownership
    for bundle in await _bundles_of(call):
        owner = await ownership.find_owner(bundle)
        if owner is None:
            continue
        if owner.is_here:
            await ownership.unload(bundle)
        else:
            await call.ask(owner, "PUT", f"/admin/v2/namespaces/{bundle}/unload")


async def unload_bundle(call: Call) -> None:
    """Does nothing for a bundle without an owner."""
    bundle = await _bundle_of(call)
    owner = await call.service.ownership.find_owner(bundle)
    if owner is None:
        return
    destination = call.query.get("destinationBroker") or None
    if owner.is_here:
        await call.service.ownership.unload(bundle, destination)
    elif destination is not None and await _must_leader_move(call, owner):
        await call.service.membership.move(bundle, owner.address.broker_id, destination)
    else:
        raise ElsewhereError.of(owner)


async def _must_leader_move(call: Call, owner: Owner) -> bool:
    """Whether this broker, the leader, has to move a bundle of a broker of Apache: that one would redirect a request
    with a destination to the leader, again and again. 307 if another broker leads."""
    membership = call.service.membership
    report = membership.reports().get(owner.address.broker_id)
    if report is None or report.is_ours:
        return False
    leader = await membership.leading()
    if leader is None:
        raise ServiceNotReadyError("the brokers have no leader at the moment, which moves the bundle: try again")
    if leader.broker_id != call.service.address.broker_id:
        raise ElsewhereError(leader.http_url)
    return True


async def delete_bundle(call: Call) -> None:
    """Deletes the bundle's topics, and leaves it without an owner. The namespace keeps its boundaries, as in Pulsar."""
    bundle, force = await _bundle_of(call), _force(call)
    names = await call.service.topics_of(call.namespace, tuple(Domain))
    topics = [name for name in names if name in bundle]
    if topics and not force:
        raise RestError(CONFLICT, f"Cannot delete non empty bundle: it has {topics[0]}")
    for topic in topics:
        await _delete_quietly(call, topic)
    await unload_bundle(call)


async def split_bundle(call: Call) -> None:
    bundle = await _bundle_of(call)
    name = call.query.get("splitAlgorithmName") or _IN_THE_MIDDLE
    if name not in (_IN_THE_MIDDLE, _AT_THE_MEDIAN):
        raise RestError(
            PRECONDITION_FAILED, f"splitAlgorithmName is {_IN_THE_MIDDLE} or {_AT_THE_MEDIAN}, not {name!r}"
        )
    await _require_bundle_here(call, bundle)
    at = await _median(call, bundle) if name == _AT_THE_MEDIAN else None
    await call.service.ownership.split(bundle, at)
    if call.flag("unload"):
        for half in await _bundles_of(call):
            if bundle.bundle.first <= half.bundle.first and half.bundle.last <= bundle.bundle.last:
                await call.service.ownership.unload(half)


async def merge_bundle(call: Call) -> None:
    bundle = await _bundle_of(call)
    await _require_bundle_here(call, bundle)
    await call.service.ownership.merge(bundle)


async def _median(call: Call, bundle: NamespaceBundle) -> int:
    """Returns the hash that has as many of the bundle's topics before it as from it on."""
    hashes = sorted(topic.bundle_hash for topic in (await _persistent_by_bundle(call)).get(bundle, []))
    if len(hashes) < 2 or hashes[0] == hashes[-1]:
        raise RestError(PRECONDITION_FAILED, f"{bundle} has less than two topics: it cannot be split by their number")
    return max(hashes[len(hashes) // 2], hashes[0] + 1)


async def _bundles_of(call: Call) -> list[NamespaceBundle]:
    await call.service.resources.namespaces.policies(call.namespace)
    bundles = await call.service.resources.namespaces.bundles(call.namespace)
    return [NamespaceBundle(call.namespace, each) for each in bundles.all()]


async def _bundle_of(call: Call) -> NamespaceBundle:
    """Returns the bundle in the path."""
    wanted = f"{call.namespace}/{call.name('bundle')}"
    for bundle in await _bundles_of(call):
        if str(bundle) == wanted:
            return bundle
    raise RestError(NOT_FOUND, f"{call.name('bundle')} is not a bundle of namespace {call.namespace}")


async def _require_bundle_here(call: Call, bundle: NamespaceBundle) -> None:
    owner = await call.service.ownership.owner_of_bundle(bundle, is_authoritative=call.flag("authoritative"))
    if not owner.is_here:
        raise ElsewhereError.of(owner)


async def _persistent_by_bundle(call: Call) -> dict[NamespaceBundle, list[TopicName]]:
    bundles = await call.service.resources.namespaces.bundles(call.namespace)
    names = await call.service.topics_of(call.namespace, (Domain.PERSISTENT,))
    found: dict[NamespaceBundle, list[TopicName]] = {}
    for name, bundle in zip(names, await call.service.slices.map(bundles.of, names), strict=True):
        found.setdefault(NamespaceBundle(call.namespace, bundle), []).append(name)
    return found


async def _at_owners(call: Call, what: str, work: Callable[[PersistentTopic], Awaitable[None]]) -> None:
    """Does the work for each topic of the bundle in the path, or of the namespace, at the owners of its bundles."""
    by_bundle = await _persistent_by_bundle(call)
    if "bundle" in call.path:
        bundle = await _bundle_of(call)
        await _require_bundle_here(call, bundle)
        await _for_each(call, by_bundle.get(bundle, []), work)
        return
    for bundle, in_bundle in by_bundle.items():
        owner = await call.service.ownership.owner_of_bundle(bundle)
        if owner.is_here:
            await _for_each(call, in_bundle, work)
        else:
            await call.ask(owner, "POST", f"/admin/v2/namespaces/{bundle}/{what}")


async def _for_each(call: Call, names: Sequence[TopicName], work: Callable[[PersistentTopic], Awaitable[None]]) -> None:
    for name in names:
        await work(await call.service.persistent_topic(name, create=False))
        await call.service.slices.turn()


async def clear_backlog(call: Call) -> None:
    wanted = call.name("subscription") if "subscription" in call.path else None

    async def clear(topic: PersistentTopic) -> None:
        for name, subscription in list(topic.subscriptions.items()):
            if wanted is None or name == wanted:
                await subscription.clear_backlog()

    await _at_owners(call, "clearBacklog" + ("" if wanted is None else f"/{call.path['subscription']}"), clear)


async def unsubscribe(call: Call) -> None:
    wanted = call.name("subscription")

    async def delete(topic: PersistentTopic) -> None:
        with contextlib.suppress(CursorMissingError):
            await topic.unsubscribe(topic.subscriptions.require(wanted))

    await _at_owners(call, f"unsubscribe/{call.path['subscription']}", delete)


# --- properties -------------------------------------------------------------------------------------------------------


async def _properties(call: Call) -> dict[str, str]:
    policies = await call.service.resources.namespaces.policies(call.namespace)
    return dict(policies.get("properties") or {})


async def _set_properties(call: Call, properties: dict[str, str]) -> None:
    await call.service.resources.namespaces.update(call.namespace, lambda found: found | {"properties": properties})


async def get_properties(call: Call) -> dict[str, str]:
    return await _properties(call)


async def set_properties(call: Call) -> None:
    await _set_properties(call, await _properties(call) | call.json_texts())


async def clear_properties(call: Call) -> None:
    await _set_properties(call, {})


async def get_property(call: Call) -> Any:
    found = (await _properties(call)).get(call.name("key"))
    return None if found is None else Reply(found.encode())


async def set_property(call: Call) -> None:
    await _set_properties(call, await _properties(call) | {call.name("key"): call.name("value")})


async def delete_property(call: Call) -> Any:
    properties = await _properties(call)
    found = properties.pop(call.name("key"), None)
    await _set_properties(call, properties)
    return None if found is None else Reply(found.encode())


_ONE = "/admin/v2/namespaces/{tenant}/{namespace}"
_FORCE = (Query("force", "with all its topics"),)
_AUTHORITATIVE = Query("authoritative", "another broker has chosen this one to become the owner")
_LISTING = (
    Query("mode", "PERSISTENT, NON_PERSISTENT or ALL", "string"),
    Query("includeSystemTopic", "those of brokers, too"),
)
ROUTES = [
    Route("GET", "/admin/v2/namespaces/{tenant}", "List the namespaces of a tenant", list_namespaces),
    Route("GET", _ONE, "Get all policies of a namespace", get_policies),
    Route("PUT", _ONE, "Create a namespace", create_namespace, body="Policies, or nothing"),
    Route("DELETE", _ONE, "Delete a namespace", delete_namespace, query=_FORCE),
    Route("GET", f"{_ONE}/topics", "List the topics of a namespace", list_topics, query=_LISTING),
    Route("GET", f"{_ONE}/bundles", "Get the bundles of a namespace", get_bundles),
    Route("PUT", f"{_ONE}/unload", "Unload all topics of a namespace", unload_namespace),
    Route(
        "PUT",
        f"{_ONE}/{{bundle}}/unload",
        "Unload a bundle, so that another broker can own it",
        unload_bundle,
        query=(Query("destinationBroker", "the broker id of the next owner", "string"), _AUTHORITATIVE),
    ),
    Route(
        "DELETE",
        f"{_ONE}/{{bundle}}",
        "Delete the topics of a bundle, and leave it without an owner",
        delete_bundle,
        query=(*_FORCE, _AUTHORITATIVE),
    ),
    Route(
        "PUT",
        f"{_ONE}/{{bundle}}/split",
        "Divide a bundle",
        split_bundle,
        query=(
            Query("unload", "also unload both halves, so that other brokers can own them"),
            Query("splitAlgorithmName", f"{_IN_THE_MIDDLE} or {_AT_THE_MEDIAN}", "string"),
            _AUTHORITATIVE,
        ),
    ),
    Route(
        "PUT",
        "/admin/v2/magnetar/bundles/{tenant}/{namespace}/{bundle}/merge",
        "Merge a bundle with the next one, if the broker serves both",
        merge_bundle,
        query=(_AUTHORITATIVE,),
    ),
    Route("POST", f"{_ONE}/clearBacklog", "Clear the backlog of all subscriptions", clear_backlog),
    Route("POST", f"{_ONE}/clearBacklog/{{subscription}}", "Clear a subscription's backlog everywhere", clear_backlog),
    Route("POST", f"{_ONE}/{{bundle}}/clearBacklog", "Clear the backlog of a bundle's topics", clear_backlog),
    Route(
        "POST",
        f"{_ONE}/{{bundle}}/clearBacklog/{{subscription}}",
        "Clear a subscription's backlog in a bundle",
        clear_backlog,
    ),
    Route("POST", f"{_ONE}/unsubscribe/{{subscription}}", "Delete a subscription from all topics", unsubscribe),
    Route(
        "POST",
        f"{_ONE}/{{bundle}}/unsubscribe/{{subscription}}",
        "Delete a subscription from a bundle's topics",
        unsubscribe,
    ),
    Route("GET", f"{_ONE}/properties", "Get the properties of a namespace", get_properties),
    Route("PUT", f"{_ONE}/properties", "Set properties of a namespace", set_properties, body="an object of strings"),
    Route("DELETE", f"{_ONE}/properties", "Delete all properties of a namespace", clear_properties),
    Route("GET", f"{_ONE}/property/{{key}}", "Get a property of a namespace", get_property),
    Route("DELETE", f"{_ONE}/property/{{key}}", "Delete a property of a namespace", delete_property),
    Route("PUT", f"{_ONE}/property/{{key}}/{{value}}", "Set a property of a namespace", set_property),
]
