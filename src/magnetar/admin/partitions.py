"""Partitioned topics: creating, growing, deleting.

Growing:   the number first, then the partitions, then the subscriptions that partition 0 has. Producers may use the new
           partitions before the subscriptions are on them, so these begin at the first message. Each step only adds
           what is missing. A call that failed half-way is completed by the same one, with the number that is there
           already: it looks at every partition, as nobody knows any more which of them were new.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from magnetar.admin.call import Call
from magnetar.admin.errors import (
    BAD_REQUEST,
    CONFLICT,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    UNPROCESSABLE,
    RestError,
    refusing_malformed,
)
from magnetar.admin.route import TOPIC, Query, of_both_domains
from magnetar.admin.topics import delete_loaded, forget_topic, require_topic_room, require_unused
from magnetar.broker.names import TopicName
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.policies.fields import nested
from magnetar.broker.service import BrokerService
from magnetar.broker.subscription import Subscription
from magnetar.errors import CursorExistsError
from magnetar.topic.position import EARLIEST

_OF_ONE_CURSOR: Final = "#pulsar.internal."
"""So begin the properties in which Apache's brokers keep what belongs to one cursor, such as its delayed messages."""
_INT_MAX: Final = 2**31 - 1


async def list_partitioned(call: Call) -> list[str]:
    await call.service.resources.namespaces.policies(call.namespace)
    names = await call.service.resources.partitioned_topics.names(call.namespace, call.domain)
    return sorted(str(name) for name in names if call.flag("includeSystemTopic") or not name.is_system)


async def create_partitioned(call: Call) -> None:
    count, properties = _wanted(call)
    if count <= 0:
        raise RestError(NOT_ACCEPTABLE, "Number of partitions should be more than 0")
    await require_topic_room(call.service, call.namespace, count)
    await call.service.create_partitioned_topic(call.topic, count)
    if properties:
        await call.service.resources.partitioned_topics.set_properties(call.topic, properties)
    await _make_partitions(call.service, call.topic, count)


def _wanted(call: Call) -> tuple[int, dict[str, str]]:
    """A number; or, with properties, an object."""
    body = call.json()
    is_object = isinstance(body, dict)
    count: Any = body["partitions"] if is_object and "partitions" in body else body
    with refusing_malformed():
        properties = nested(body, "properties") or {} if is_object else {}
    if isinstance(count, bool) or not isinstance(count, int):
        raise RestError(BAD_REQUEST, f"the body must be the number of partitions, not {json.dumps(count)[:60]}")
    if count > _INT_MAX:
        raise RestError(BAD_REQUEST, f"{count} partitions are more than Pulsar's clients can count, {_INT_MAX}")
    return count, {str(name): str(value) for name, value in properties.items()}


async def _make_partitions(service: BrokerService, topic: TopicName, count: int) -> None:
    """They are there, and listed, before anybody uses them."""
    if topic.is_persistent:
        for index in range(count):
            await service.resources.topics.create_if_absent(topic.with_partition(index))


async def grow(call: Call) -> None:
    count, _ = _wanted(call)
    service, topic = call.service, call.topic
    before = await service.resources.partitioned_topics.get_fresh(topic)
    if before is None:
        raise RestError(CONFLICT if await service.exists(topic) else NOT_FOUND, f"{topic} is not partitioned")
    if count < before.partitions:
        raise RestError(
            UNPROCESSABLE, f"Desired partitions {count} can't be less than the current partitions {before.partitions}."
        )
    await require_topic_room(service, call.namespace, count - before.partitions)
    await service.resources.partitioned_topics.grow(topic, count)
    await _make_partitions(service, topic, count)
    if topic.is_persistent:
        await _complete_subscriptions(call, before.partitions if before.partitions < count else 1, count)


async def _complete_subscriptions(call: Call, first_new: int, count: int) -> None:
    """A subscription that partition 0 has must miss nothing of the new ones."""
    first = await call.persistent(call.topic.with_partition(0))
    durable = [each for each in first.subscriptions.values() if each.cursor.is_durable]
    for index in range(max(1, first_new), count) if durable else ():
        topic = await call.persistent(call.topic.with_partition(index))
        for subscription in durable:
            await _subscribe_like(topic, subscription, _copied_properties(first, subscription))


async def _subscribe_like(topic: PersistentTopic, other: Subscription, properties: Mapping[str, str]) -> None:
    try:
        made = await topic.create_subscription(other.name, EARLIEST, properties)
    except CursorExistsError:
        return
    made.is_replicated = other.is_replicated


def _copied_properties(topic: PersistentTopic, subscription: Subscription) -> dict[str, str]:
    cursor = topic.cursors.get(subscription.name)
    properties = {} if cursor is None else cursor.properties
    return {name: value for name, value in properties.items() if not name.startswith(_OF_ONE_CURSOR)}


async def get_partitions(call: Call) -> dict[str, Any]:
    create = call.flag("checkAllowAutoCreation")
    count = await call.service.partitions_of(call.topic, create=create)
    found = await call.service.resources.partitioned_topics.get(call.topic)
    metadata: dict[str, Any] = {"partitions": count, "deleted": found is not None and found.is_being_deleted}
    if found is not None and found.properties:
        metadata["properties"] = dict(found.properties)
    return metadata


async def delete_partitioned(call: Call) -> None:
    service, topic = call.service, call.topic
    found = await service.resources.partitioned_topics.get_fresh(topic)
    if found is None:
        if await service.exists(topic):
            raise RestError(CONFLICT, f"{topic} is a non-partitioned topic: delete it as such")
        raise RestError(NOT_FOUND, f"Topic {topic} not found")
    names = [topic.with_partition(index) for index in range(found.partitions)]
    force = call.flag("force")
    for name in names:
        if (loaded := service.topics.find(name)) is not None:
            require_unused(loaded, force=force)
    await service.resources.partitioned_topics.mark_deleted(topic)
    for name in names:
        if await service.exists(name):
            await delete_loaded(service, await call.loaded(name))
    await service.resources.partitioned_topics.delete(topic)
    await forget_topic(service, topic)


async def create_missed(call: Call) -> None:
    found = await call.service.resources.partitioned_topics.get_fresh(call.topic)
    if found is None:
        raise RestError(NOT_FOUND, f"{call.topic} is not partitioned")
    await _make_partitions(call.service, call.topic, found.partitions)


_SYSTEM = (Query("includeSystemTopic", "those of brokers, too"),)
_BODY = "a number; or an object with partitions and properties"
ROUTES = [
    *of_both_domains(
        "GET",
        "{tenant}/{namespace}/partitioned",
        "List the partitioned topics of a namespace",
        list_partitioned,
        query=_SYSTEM,
    ),
    *of_both_domains("PUT", f"{TOPIC}/partitions", "Create a partitioned topic", create_partitioned, body=_BODY),
    *of_both_domains("POST", f"{TOPIC}/partitions", "Add partitions to a topic", grow, body="a number"),
    *of_both_domains(
        "GET",
        f"{TOPIC}/partitions",
        "Get how many partitions a topic has",
        get_partitions,
        query=(Query("checkAllowAutoCreation", "make the topic if it may be made by using it"),),
    ),
    *of_both_domains(
        "DELETE",
        f"{TOPIC}/partitions",
        "Delete a topic with all its partitions",
        delete_partitioned,
        query=(Query("force", "disconnect whoever is connected"),),
    ),
    *of_both_domains(
        "POST", f"{TOPIC}/createMissedPartitions", "Make partitions that are not there yet", create_missed
    ),
]
