"""/admin/v2/namespaces: namespaces, their topics, bundles and properties, and operations on all their topics.

Single policies are in policies/.
"""

from __future__ import annotations

from typing import Any

from magnetar.admin.http.call import Call, Query, Reply, Route
from magnetar.admin.http.errors import CONFLICT, NOT_FOUND, PRECONDITION_FAILED, RestError, refusing_malformed
from magnetar.broker.policies.registry import known_policies
from magnetar.broker.policies.values import Json, names, nested, number
from magnetar.broker.resources.bundles import Bundles
from magnetar.broker.resources.namespaces import new_policies
from magnetar.broker.service import BrokerService
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.errors import CursorMissingError, ResourceMissingError, TopicNotFoundError
from magnetar.names import Domain, NamespaceName, TopicName

_MODES = {
    "PERSISTENT": (Domain.PERSISTENT,),
    "NON_PERSISTENT": (Domain.NON_PERSISTENT,),
    "ALL": (Domain.PERSISTENT, Domain.NON_PERSISTENT),
}


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
    service = call.service
    force = call.flag("force")
    if force and not service.config.broker.force_delete_namespace:
        raise RestError(405, "broker.force_delete_namespace is not set: delete the namespace's topics first")
    await delete_namespace_of(service, call.namespace, force=force)


async def delete_namespace_of(service: BrokerService, name: NamespaceName, *, force: bool) -> None:
    await service.resources.namespaces.policies(name)
    topics = await service.topics_of(name, tuple(Domain))
    partitioned = await service.resources.partitioned_topics.names(name)
    if (topics or partitioned) and not force:
        raise RestError(CONFLICT, f"Cannot delete non empty namespace: it has {(topics or partitioned)[0]}")
    await service.resources.namespaces.mark_deleted(name)
    await service.policies.refresh(name)
    for topic in [*topics, *await service.system_topics_of(name)]:
        await _delete_quietly(service, topic)
    await service.resources.namespaces.delete(name)
    await service.policies.refresh(name)
    await service.policies.forget([name])


async def _delete_quietly(service: BrokerService, topic: TopicName) -> None:
    try:
        await service.delete_topic(topic, force=True)
    except (TopicNotFoundError, ResourceMissingError):
        return


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
    await call.service.resources.namespaces.policies(call.namespace)
    for topic in await _topics_in(call):
        await call.service.topics.unload(topic)


async def _topics_in(call: Call) -> list[TopicName]:
    """Returns the loaded topics, of the bundle in the path if there is one."""
    loaded = await call.service.loaded_in(call.namespace)
    if "bundle" not in call.path:
        return loaded
    bundles = await call.service.resources.namespaces.bundles(call.namespace)
    wanted = call.name("bundle")
    if all(str(bundle) != wanted for bundle in bundles.all()):
        raise RestError(NOT_FOUND, f"{wanted} is not a bundle of namespace {call.namespace}")
    of_names = await call.service.slices.map(lambda name: str(bundles.of(name)), loaded)
    return [name for name, of_name in zip(loaded, of_names, strict=True) if of_name == wanted]


async def _persistent_in(call: Call) -> list[PersistentTopic]:
    if "bundle" in call.path:
        names = [name for name in await _topics_in(call) if name.is_persistent]
    else:
        names = await call.service.topics_of(call.namespace, (Domain.PERSISTENT,))
    topics = []
    for name in names:
        topics.append(await call.service.persistent_topic(name, create=False))
        await call.service.slices.turn()
    return topics


async def clear_backlog(call: Call) -> None:
    await call.service.resources.namespaces.policies(call.namespace)
    wanted = call.name("subscription") if "subscription" in call.path else None
    for topic in await _persistent_in(call):
        for name, subscription in list(topic.subscriptions.items()):
            if wanted is None or name == wanted:
                await subscription.clear_backlog()
        await call.service.slices.turn()


async def unsubscribe(call: Call) -> None:
    wanted = call.name("subscription")
    for topic in await _persistent_in(call):
        try:
            await topic.unsubscribe(topic.subscriptions.require(wanted))
        except CursorMissingError:
            await call.service.slices.turn()


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
    Route("PUT", f"{_ONE}/{{bundle}}/unload", "Unload the topics of a bundle", unload_namespace),
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
