"""Topics: which there are; creating, deleting, unloading, truncating, terminating; their properties."""

from __future__ import annotations

from typing import Any

from magnetar.admin.call import Call
from magnetar.admin.errors import BAD_REQUEST, CONFLICT, NOT_FOUND, PRECONDITION_FAILED, RestError
from magnetar.admin.message_ids import message_id_json
from magnetar.admin.route import TOPIC, Query, Route, of_both_domains
from magnetar.broker.names import Domain, NamespaceName, TopicName
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.service import BrokerService
from magnetar.broker.sink_marks import LAG as SINK_LAG
from magnetar.broker.sink_marks import PREFIX as SINK_PREFIX
from magnetar.broker.topic import Topic
from magnetar.broker.topic_upkeep import truncate

_ONE = f"/admin/v2/persistent/{TOPIC}"
_OUR_PROPERTIES = ("index", "pulsar.topic.epoch", SINK_LAG)
"""Of the topic's log, for brokers only. So are the marks of sinks: if one were set back, an epoch would come twice."""


async def list_topics(call: Call) -> list[str]:
    await call.service.resources.namespaces.policies(call.namespace)
    names = await call.service.topics_of(call.namespace, (call.domain,))
    if call.flag("includeSystemTopic") and call.domain is Domain.PERSISTENT:
        names += [name for name in await call.service.resources.topics.names(call.namespace) if name.is_system]
    if bundle := call.query.get("bundle"):
        bundles = await call.service.resources.namespaces.bundles(call.namespace)
        names = [name for name in names if str(bundles.of(name)) == bundle]
    return sorted(map(str, names))


async def create_topic(call: Call) -> None:
    topic, properties = call.topic, call.json_texts()
    if topic.is_system:
        raise RestError(BAD_REQUEST, "Cannot create topic in system topic format!")
    _require_not_ours(properties)
    await require_topic_room(call.service, topic.namespace, 1)
    await call.service.create_topic(topic)
    if properties:
        await _set_properties(await call.persistent(), properties)


async def require_topic_room(service: BrokerService, namespace: NamespaceName, more: int) -> None:
    await service.require_namespace(namespace)
    limit = service.policies.topics_max(namespace)
    if limit and len(await service.topics_of(namespace, (Domain.PERSISTENT,))) + more > limit:
        raise RestError(PRECONDITION_FAILED, f"namespace {namespace} may have {limit} topics: delete some, or raise it")


async def delete_topic(call: Call) -> None:
    if await call.partitions():
        raise RestError(CONFLICT, f"{call.topic} is a partitioned topic: delete it with its partitions")
    topic = await call.loaded()
    require_unused(topic, force=call.flag("force"))
    await delete_loaded(call.service, topic)
    if not call.topic.is_partition:
        await forget_topic(call.service, call.topic)


def require_unused(topic: Topic, *, force: bool) -> None:
    """Subscriptions without consumers keep nobody from deleting a topic: they go with it."""
    if topic.is_in_use and not force:
        producers, consumers = len(topic.producers), topic.consumer_count
        raise RestError(
            PRECONDITION_FAILED,
            f"Topic has {producers + consumers} clients connected: {consumers} consumers, {producers} producers. "
            "Disconnect them, or force it",
        )


async def delete_loaded(service: BrokerService, topic: Topic) -> None:
    await service.topics.delete(topic, force=True)
    service.resources.cache.drop(topic.name.log_path)


async def forget_topic(service: BrokerService, name: TopicName) -> None:
    """What was kept besides its messages: its schema and its policies."""
    await service.schemas.registry.delete_with_history(name.schema_name)
    if name.is_persistent:
        await service.policies.delete_topic(name)


async def unload_topic(call: Call) -> None:
    for name in await call.topics():
        if not await call.service.exists(name) and not name.is_partition:
            raise RestError(NOT_FOUND, f"Topic {name} not found")
        await call.service.topics.unload(name)


async def truncate_topic(call: Call) -> None:
    for name in await call.topics():
        await truncate(await call.persistent(name))


async def terminate_topic(call: Call) -> dict[str, Any]:
    topic = await call.persistent()
    return message_id_json(await topic.terminate(), topic.name.partition)


async def terminate_partitions(call: Call) -> dict[str, Any]:
    names = await call.topics()
    if names == [call.topic]:
        raise RestError(405, f"{call.topic} is not partitioned")
    positions = [await (await call.persistent(name)).terminate() for name in names]
    return {str(index): message_id_json(position) for index, position in enumerate(positions)}


# --- properties -------------------------------------------------------------------------------------------------------


async def get_properties(call: Call) -> dict[str, str]:
    partitioned = await call.service.resources.partitioned_topics.get(call.topic)
    if partitioned is not None:
        return dict(partitioned.properties)
    return _shown((await call.persistent()).log.properties)


def _shown(properties: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if not _is_ours(name)}


def _is_ours(name: str) -> bool:
    return name in _OUR_PROPERTIES or name.startswith(SINK_PREFIX)


async def put_properties(call: Call) -> None:
    properties = call.json_texts()
    _require_not_ours(properties)
    partitioned = await call.service.resources.partitioned_topics.get(call.topic)
    if partitioned is not None:
        merged = {**partitioned.properties, **properties}
        await call.service.resources.partitioned_topics.set_properties(call.topic, merged)
        return
    await _set_properties(await call.persistent(), properties)


def _require_not_ours(properties: dict[str, str]) -> None:
    if taken := [name for name in properties if _is_ours(name)]:
        raise RestError(PRECONDITION_FAILED, f"the property {taken[0]!r} is for brokers only: choose another name")


async def _set_properties(topic: PersistentTopic, properties: dict[str, str]) -> None:
    for name, value in properties.items():
        await topic.log.set_property(name, value)


async def delete_property(call: Call) -> None:
    name = call.query.get("key", "")
    partitioned = await call.service.resources.partitioned_topics.get(call.topic)
    if partitioned is not None:
        kept = {each: value for each, value in partitioned.properties.items() if each != name}
        await call.service.resources.partitioned_topics.set_properties(call.topic, kept)
    elif not _is_ours(name):
        await (await call.persistent()).log.set_property(name, None)


_LISTING = (
    Query("bundle", "only those of this bundle", "string"),
    Query("includeSystemTopic", "those of brokers, too"),
)
_FORCE = (Query("force", "disconnect whoever is connected"),)
ROUTES = [
    *of_both_domains("GET", "{tenant}/{namespace}", "List the topics of a namespace", list_topics, query=_LISTING),
    *of_both_domains("PUT", TOPIC, "Create a topic without partitions", create_topic, body="properties, or nothing"),
    *of_both_domains("DELETE", TOPIC, "Delete a topic without partitions", delete_topic, query=_FORCE),
    *of_both_domains("PUT", f"{TOPIC}/unload", "Unload a topic", unload_topic),
    Route("DELETE", f"{_ONE}/truncate", "Delete all messages of a topic", truncate_topic),
    Route("POST", f"{_ONE}/terminate", "Take no more messages, for ever", terminate_topic),
    Route("POST", f"{_ONE}/terminate/partitions", "Terminate all partitions of a topic", terminate_partitions),
    Route("GET", f"{_ONE}/properties", "Get the properties of a topic", get_properties),
    Route("PUT", f"{_ONE}/properties", "Set properties of a topic", put_properties, body="an object of strings"),
    Route(
        "DELETE",
        f"{_ONE}/properties",
        "Delete a property of a topic",
        delete_property,
        query=(Query("key", "its name", "string"),),
    ),
]
