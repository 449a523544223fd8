"""Subscriptions: creating, deleting, moving, and what to do with their backlog."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from magnetar.admin.call import Call
from magnetar.admin.errors import BAD_REQUEST, CONFLICT, NOT_FOUND, PRECONDITION_FAILED, RestError
from magnetar.admin.message_ids import GivenPlace, given_place
from magnetar.admin.route import TOPIC, Query, Route, of_both_domains
from magnetar.admin.stats.backlog import analyze_backlog
from magnetar.broker.names import Domain, TopicName
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.subscription import Subscription
from magnetar.broker.topic import Topic
from magnetar.errors import ConsumerBusyError, CursorExistsError
from magnetar.topic.ack_sets import words_of
from magnetar.topic.position import EARLIEST, LATEST, Position


async def list_subscriptions(call: Call) -> list[str]:
    names: dict[str, None] = {}
    for topic in await _existing(call):
        names.update(dict.fromkeys((await call.loaded(topic)).subscriptions))
    return list(names)


async def _existing(call: Call) -> list[TopicName]:
    """The topic, or those of its partitions that are there."""
    names = await call.topics()
    return names if names == [call.topic] else [name for name in names if await call.service.exists(name)]


async def create_subscription(call: Call) -> None:
    if call.domain is not Domain.PERSISTENT:
        raise RestError(BAD_REQUEST, "a subscription of a non-persistent topic is made by its client only")
    name, place = call.name("subscription"), given_place(call)
    names = await call.topics()
    if names == [call.topic] and not await call.service.exists(call.topic):
        await call.service.topic(call.topic, create=True)  # As if a consumer had asked for it.
    existing = 0
    for topic in names:
        try:
            found = await call.service.topic(topic, create=True)
            assert isinstance(found, PersistentTopic)
            await _create(call, found, name, place)
        except CursorExistsError:
            existing += 1
    if existing == len(names):
        raise RestError(CONFLICT, f"Subscription {name!r} already exists for topic {call.topic}")


async def _create(call: Call, topic: PersistentTopic, name: str, place: GivenPlace) -> None:
    start = place.position
    if place.is_excluded and start not in (EARLIEST, LATEST):
        start = topic.log.chain.next_position(start)
    limit = topic.policies.subscriptions_max
    if limit and name not in topic.subscriptions and len(topic.subscriptions) >= limit:
        raise RestError(PRECONDITION_FAILED, f"topic {topic.name} has {limit} subscriptions, as many as it may")
    subscription = await topic.create_subscription(name, start, place.properties)
    subscription.is_replicated = call.flag("replicated")


async def delete_subscription(call: Call) -> None:
    name, force = call.name("subscription"), call.flag("force")
    for topic_name in await _existing(call):
        topic = await call.loaded(topic_name)
        if name not in topic.subscriptions:
            raise _missing(topic, name)
        try:
            await _unsubscribe(topic, name, force=force)
        except ConsumerBusyError as error:
            raise RestError(PRECONDITION_FAILED, f"Subscription has active connected consumers: {error}") from None


async def _unsubscribe(topic: Topic, name: str, *, force: bool) -> None:
    subscription = topic.subscriptions[name]
    if isinstance(topic, PersistentTopic):
        await topic.unsubscribe(subscription, force=force)
        return
    if subscription.consumers and not force:
        raise ConsumerBusyError(f"{len(subscription.consumers)} of them")
    for consumer in list(subscription.consumers):
        topic.remove_consumer(subscription, consumer)
        consumer.sink.disconnect("the subscription is deleted")
    del topic.subscriptions[name]  # type: ignore[attr-defined]


def _missing(topic: Topic, name: str) -> RestError:
    return RestError(NOT_FOUND, f"Subscription {name} not found for topic {topic.name}")


async def _each(call: Call, do: Callable[[PersistentTopic, Subscription], Awaitable[Any]]) -> list[Any]:
    """On the topic, or on all its partitions."""
    name = call.name("subscription")
    found = []
    for topic_name in await _existing(call):
        topic = await call.persistent(topic_name)
        if name not in topic.subscriptions:
            raise _missing(topic, name)
        found.append(await do(topic, topic.subscription(name)))
    return found


# --- its backlog ------------------------------------------------------------------------------------------------------


async def skip_all(call: Call) -> None:
    await _each(call, lambda _, subscription: subscription.clear_backlog())


async def skip(call: Call) -> None:
    count = call.number("count")
    await call.require_not_partitioned()
    if count < 0:
        raise RestError(PRECONDITION_FAILED, f"{count} messages cannot be skipped")
    await _each(call, lambda _, subscription: subscription.skip(count))


async def expire(call: Call) -> None:
    before_ms = _before_ms(call)
    await _each(call, lambda _, subscription: subscription.expire(before_ms))


async def expire_all(call: Call) -> None:
    before_ms = _before_ms(call)
    for name in await _existing(call):
        for subscription in list((await call.persistent(name)).subscriptions.values()):
            await subscription.expire(before_ms)


def _before_ms(call: Call) -> int:
    seconds = call.number("seconds")
    if seconds < 0:
        raise RestError(PRECONDITION_FAILED, "messages expire after 0 seconds or more")
    return call.service.entropy.wall_ms() - seconds * 1000


async def expire_to(call: Call) -> None:
    await call.require_not_partitioned()
    place = given_place(call)

    async def do(topic: PersistentTopic, subscription: Subscription) -> None:
        last = place.position if not place.is_excluded else topic.log.chain.previous_position(place.position)
        await subscription.expire_to(min(last, topic.log.last_confirmed))

    await _each(call, do)


async def reset_to_time(call: Call) -> None:
    wanted_ms = call.number("timestamp")

    async def do(topic: PersistentTopic, subscription: Subscription) -> None:
        await topic.seek_to_time(subscription, wanted_ms)

    await _each(call, do)


async def reset_to_message(call: Call) -> None:
    await call.require_not_partitioned()
    place = given_place(call)
    await _each(call, lambda topic, subscription: _reset(topic, subscription, place))


async def _reset(topic: PersistentTopic, subscription: Subscription, place: GivenPlace) -> None:
    position, chain = place.position, topic.log.chain
    batch_size = await _batch_size(topic, position) if place.batch_index >= 0 else 0
    first = place.batch_index + place.is_excluded
    if batch_size and 0 < first < batch_size:
        await subscription.seek(position, words_of((1 << batch_size) - (1 << first)), batch_size)
    elif place.is_excluded and position not in (EARLIEST, LATEST) and (not batch_size or first >= batch_size):
        await subscription.seek(chain.next_position(position))
    else:
        await subscription.seek(position)


async def _batch_size(topic: PersistentTopic, position: Position) -> int:
    """0: it is not a batch, or not there any more."""
    if not topic.log.chain.contains(position):
        return 0
    entries = await topic.log.read(position, 1, 1)
    metadata = entries[0].head.metadata if entries else None
    return 0 if metadata is None or not metadata.HasField("num_messages_in_batch") else metadata.num_messages_in_batch


async def analyze(call: Call) -> dict[str, Any]:
    await call.require_not_partitioned()
    found = await _each(call, analyze_backlog)
    return dict(found[0])


# --- its properties ---------------------------------------------------------------------------------------------------


async def get_properties(call: Call) -> dict[str, str]:
    merged: dict[str, str] = {}
    for found in await _each(call, _properties):
        merged.update(found)
    return merged


async def _properties(topic: PersistentTopic, subscription: Subscription) -> dict[str, str]:
    cursor = topic.cursors.get(subscription.name)
    return {} if cursor is None else dict(cursor.properties)


async def set_properties(call: Call) -> None:
    properties = call.json_texts()

    async def do(topic: PersistentTopic, subscription: Subscription) -> None:
        cursor = topic.cursors.get(subscription.name)
        if cursor is not None:
            await cursor.set_properties(properties)

    await _each(call, do)


async def get_replicated(call: Call) -> dict[str, bool]:
    async def do(topic: PersistentTopic, subscription: Subscription) -> tuple[str, bool]:
        return str(topic.name), subscription.is_replicated

    return dict(await _each(call, do))


_SUB = f"{TOPIC}/subscription/{{subscription}}"
_ONE = f"/admin/v2/persistent/{_SUB}"
_ID = "a message id: ledgerId, entryId, batchIndex, isExcluded"
ROUTES = [
    *of_both_domains("GET", f"{TOPIC}/subscriptions", "List the subscriptions of a topic", list_subscriptions),
    *of_both_domains(
        "PUT",
        _SUB,
        "Create a subscription",
        create_subscription,
        query=(Query("replicated", "noted; nothing is replicated yet"),),
        body=f"{_ID}, properties; or nothing: from now on",
    ),
    *of_both_domains(
        "DELETE",
        _SUB,
        "Delete a subscription",
        delete_subscription,
        query=(Query("force", "disconnect its consumers"),),
    ),
    Route("POST", f"{_ONE}/skip_all", "Clear the backlog of a subscription", skip_all),
    Route("POST", f"{_ONE}/skip/{{count}}", "Skip so many messages", skip),
    Route("POST", f"{_ONE}/expireMessages/{{seconds}}", "Expire what is older than so many seconds", expire),
    Route("POST", f"{_ONE}/expireMessages", "Expire everything up to a message", expire_to, body=_ID),
    Route(
        "POST",
        f"/admin/v2/persistent/{TOPIC}/all_subscription/expireMessages/{{seconds}}",
        "Expire what is older than so many seconds, on all subscriptions",
        expire_all,
    ),
    Route("POST", f"{_ONE}/resetcursor/{{timestamp}}", "Go to the first message published at a time", reset_to_time),
    Route("POST", f"{_ONE}/resetcursor", "Go to a message", reset_to_message, body=_ID),
    Route("POST", f"{_ONE}/analyzeBacklog", "Count what is in the backlog", analyze, body=f"{_ID}, or nothing"),
    Route("GET", f"{_ONE}/properties", "Get the properties of a subscription", get_properties),
    Route("PUT", f"{_ONE}/properties", "Set the properties of a subscription", set_properties, body="strings"),
    Route("GET", f"{_ONE}/replicatedSubscriptionStatus", "Whether a subscription is replicated", get_replicated),
]
