"""Partitioned topics: creating, growing, deleting.

Order:     Creating makes all partitions or none: what was created is deleted if the rest fails. After a crash,
           partitions that are missing are created when they are used, as the number is stored first. Growing stores the
           number first, then makes the partitions, then the subscriptions that partition 0 has. Producers may use the
           new partitions before the subscriptions are on them, so these begin at the first message.
Failure:   Each step of growing only adds what is missing. A call that failed half-way is completed by the same one,
           with the number that is stored already: it looks at every partition, as it is unknown which of them were new.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from magnetar.admin.http.call import TOPIC, Call, Query, of_both_domains
from magnetar.admin.http.errors import (
    BAD_REQUEST,
    CONFLICT,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    UNPROCESSABLE,
    RestError,
    refusing_malformed,
)
from magnetar.admin.topics.topics import require_unused
from magnetar.broker.policies.values import nested
from magnetar.broker.service import BrokerService
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.errors import CursorExistsError, MagnetarError
from magnetar.names import TopicName
from magnetar.topic.position import EARLIEST

_OF_ONE_CURSOR: Final = "#pulsar.internal."
"""The prefix of properties in which Apache's brokers keep data of one cursor, such as its delayed messages."""
_INT_MAX: Final = 2**31 - 1
_UNDO_S: Final = 30.0

log = logging.getLogger(__name__)


async def list_partitioned(call: Call) -> list[str]:
    await call.service.resources.namespaces.policies(call.namespace)
    names = await call.service.resources.partitioned_topics.names(call.namespace, call.domain)
    return sorted(str(name) for name in names if call.flag("includeSystemTopic") or not name.is_system)


async def create_partitioned(call: Call) -> None:
    count, properties = _wanted(call)
    if count <= 0:
        raise RestError(NOT_ACCEPTABLE, "Number of partitions should be more than 0")
    await call.service.require_topic_room(call.namespace, count)
    before = set(await call.service.resources.topics.names(call.namespace))
    await call.service.create_partitioned_topic(call.topic, count)
    try:
        if properties:
            await call.service.resources.partitioned_topics.set_properties(call.topic, properties)
        await _make_partitions(call.service, call.topic, count)
    except (MagnetarError, asyncio.CancelledError):  # Cancelled if it takes longer than a request may.
        await _undo(call, [name for name in _partitions(call.topic, count) if name not in before])
        raise


async def _undo(call: Call, partitions: list[TopicName]) -> None:
    """Deletes the parts of a topic that could not be created as a whole, unless a client uses it already."""
    try:
        async with asyncio.timeout(_UNDO_S):
            if call.topic.is_persistent:
                await call.service.resources.topics.delete_unused(partitions)
            await call.service.resources.partitioned_topics.delete(call.topic)
    except (MagnetarError, TimeoutError) as error:
        log.warning(
            "a topic that was created only in part could not be removed",
            extra={"topic": str(call.topic), "why": str(error)},
        )


def _partitions(topic: TopicName, count: int) -> list[TopicName]:
    return [topic.with_partition(index) for index in range(count)]


def _wanted(call: Call) -> tuple[int, dict[str, str]]:
    """Reads a number; or, with properties, an object."""
    body = call.json()
    is_object = isinstance(body, dict)
    count: Any = body["partitions"] if is_object and "partitions" in body else body
    with refusing_malformed():
        properties = nested(body, "properties") or {} if is_object else {}
    if isinstance(count, bool) or not isinstance(count, int):
        raise RestError(BAD_REQUEST, f"the body must be the number of partitions, not {json.dumps(count)[:60]}")
    if count > _INT_MAX:
        raise RestError(BAD_REQUEST, f"{count} are more partitions than the {_INT_MAX} that Pulsar's clients support")
    return count, {str(name): str(value) for name, value in properties.items()}


async def _make_partitions(service: BrokerService, topic: TopicName, count: int) -> None:
    """Makes the partitions, so that they exist and are listed before a client uses them."""
    if topic.is_persistent:
        await service.resources.topics.create_missing(_partitions(topic, count))


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
    await service.require_topic_room(call.namespace, count - before.partitions)
    await service.resources.partitioned_topics.grow(topic, count)
    await _make_partitions(service, topic, count)
    if topic.is_persistent:
        await _complete_subscriptions(call, before.partitions if before.partitions < count else 1, count)


async def _complete_subscriptions(call: Call, first_new: int, count: int) -> None:
    """Makes the subscriptions of partition 0 on the new ones, so that they miss no message."""
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

    async def delete_elsewhere(name: TopicName) -> bool:
        return await call.ask_elsewhere(name, "DELETE", force=str(force).lower())

    await service.delete_partitioned_topic(topic, names, delete_elsewhere)


async def create_missed(call: Call) -> None:
    found = await call.service.resources.partitioned_topics.get_fresh(call.topic)
    if found is None:
        raise RestError(NOT_FOUND, f"{call.topic} is not partitioned")
    await _make_partitions(call.service, call.topic, found.partitions)


_SYSTEM = (Query("includeSystemTopic", "those of brokers, too"),)
_BODY = "a number; or an object with partitions and properties"
_MAKING = (Query("checkAllowAutoCreation", "create the topic if policies allow its creation by use"),)
_FORCE = (Query("force", "disconnect all clients"),)
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
        "GET", f"{TOPIC}/partitions", "Get the number of partitions of a topic", get_partitions, query=_MAKING
    ),
    *of_both_domains(
        "DELETE", f"{TOPIC}/partitions", "Delete a topic with all its partitions", delete_partitioned, query=_FORCE
    ),
    *of_both_domains("POST", f"{TOPIC}/createMissedPartitions", "Make the partitions that are missing", create_missed),
]
