"""Topics: listing, creating, deleting, unloading, truncating, terminating and compacting them; their properties."""

from __future__ import annotations

from typing import Any

from magnetar.admin.http.call import TOPIC, Call, Query, Route, of_both_domains
from magnetar.admin.http.errors import BAD_REQUEST, CONFLICT, NOT_FOUND, PRECONDITION_FAILED, RestError
from magnetar.admin.topics.messages import message_id_json
from magnetar.broker.staged.progress import LAG as SINK_LAG
from magnetar.broker.staged.progress import PREFIX as SINK_PREFIX
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.topic import Topic
from magnetar.broker.upkeep.upkeep import trim, truncate
from magnetar.names import Domain
from magnetar.words import counted

_ONE = f"/admin/v2/persistent/{TOPIC}"
_OUR_PROPERTIES = ("index", "pulsar.topic.epoch", "kafka.log_start", SINK_LAG)
"""Properties of the topic's log for brokers only. Marks of sinks are among them: setting one back would repeat an
epoch."""


async def list_topics(call: Call) -> list[str]:
    await call.service.resources.namespaces.policies(call.namespace)
    names = await call.service.topics_of(call.namespace, (call.domain,))
    if call.flag("includeSystemTopic") and call.domain is Domain.PERSISTENT:
        names += await call.service.system_topics_of(call.namespace)
    if bundle := call.query.get("bundle"):
        bundles = await call.service.resources.namespaces.bundles(call.namespace)
        of_names = await call.service.slices.map(lambda name: str(bundles.of(name)), names)
        names = [name for name, of_name in zip(names, of_names, strict=True) if of_name == bundle]
    return sorted(await call.service.slices.map(str, names))


async def create_topic(call: Call) -> None:
    topic, properties = call.topic, call.json_texts()
    if topic.is_system:
        raise RestError(BAD_REQUEST, "Cannot create topic in system topic format!")
    _require_not_ours(properties)
    await call.require_here()
    await call.service.create_topic(topic)
    if properties:
        await _set_properties(await call.persistent(), properties)


async def delete_topic(call: Call) -> None:
    if await call.partitions():
        raise RestError(CONFLICT, f"{call.topic} is a partitioned topic: delete it with its partitions")
    require_unused(await call.loaded(), force=call.flag("force"))
    await call.service.delete_topic(call.topic, force=True)


def require_unused(topic: Topic, *, force: bool) -> None:
    """Raises if a client is connected. Subscriptions without consumers do not prevent a deletion, and are deleted
    too."""
    if topic.is_in_use and not force:
        producers, consumers = len(topic.producers), topic.consumer_count
        raise RestError(
            PRECONDITION_FAILED,
            f"Topic has {counted(producers + consumers, 'client')} connected: {counted(consumers, 'consumer')}, "
            f"{counted(producers, 'producer')}. Close them, or use force (--force, or force=true) to disconnect them",
        )


async def unload_topic(call: Call) -> None:
    for name in await call.topics():
        if not await call.service.exists(name) and not name.is_partition:
            raise RestError(NOT_FOUND, f"Topic {name} not found")
        if name == call.topic:
            await call.require_here()
        elif await call.ask_elsewhere(name, "PUT", "/unload"):
            continue
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


async def begin_compaction(call: Call) -> None:
    for name in await call.topics():
        (await call.persistent(name)).compaction.begin()


async def compaction_status(call: Call) -> dict[str, Any]:
    topic = await call.persistent()
    return {"status": str(topic.compaction.status), "lastError": topic.compaction.last_error}


async def trim_topic(call: Call) -> None:
    for name in await call.topics():
        await trim(await call.persistent(name))


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
        await topic.set_property(name, value)


async def delete_property(call: Call) -> None:
    name = call.query.get("key", "")
    partitioned = await call.service.resources.partitioned_topics.get(call.topic)
    if partitioned is not None:
        kept = {each: value for each, value in partitioned.properties.items() if each != name}
        await call.service.resources.partitioned_topics.set_properties(call.topic, kept)
    elif not _is_ours(name):
        await (await call.persistent()).set_property(name, None)


_LISTING = (
    Query("bundle", "only those of this bundle", "string"),
    Query("includeSystemTopic", "those of brokers, too"),
)
_FORCE = (Query("force", "disconnect all clients"),)
_KEY = (Query("key", "its name", "string"),)
ROUTES = [
    *of_both_domains("GET", "{tenant}/{namespace}", "List the topics of a namespace", list_topics, query=_LISTING),
    *of_both_domains("PUT", TOPIC, "Create a topic without partitions", create_topic, body="properties, or nothing"),
    *of_both_domains("DELETE", TOPIC, "Delete a topic without partitions", delete_topic, query=_FORCE),
    *of_both_domains("PUT", f"{TOPIC}/unload", "Unload a topic", unload_topic),
    Route("DELETE", f"{_ONE}/truncate", "Delete all messages of a topic", truncate_topic),
    Route("POST", f"{_ONE}/terminate", "Terminate a topic: it accepts no more messages", terminate_topic),
    Route("POST", f"{_ONE}/terminate/partitions", "Terminate all partitions of a topic", terminate_partitions),
    Route("PUT", f"{_ONE}/compaction", "Begin to compact a topic", begin_compaction),
    Route("GET", f"{_ONE}/compaction", "Get the outcome of the last compaction", compaction_status),
    Route("POST", f"{_ONE}/trim", "Delete ledgers that are not needed any more", trim_topic),
    Route("GET", f"{_ONE}/properties", "Get the properties of a topic", get_properties),
    Route("PUT", f"{_ONE}/properties", "Set properties of a topic", put_properties, body="an object of strings"),
    Route("DELETE", f"{_ONE}/properties", "Delete a property of a topic", delete_property, query=_KEY),
]
