"""Subscriptions: creating, deleting and moving them, and operations on their backlog."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from magnetar.admin.http.call import TOPIC, Call, Query, Route, of_both_domains
from magnetar.admin.http.errors import BAD_REQUEST, CONFLICT, NOT_FOUND, PRECONDITION_FAILED, RestError
from magnetar.admin.stats.subscriptions import analyze_backlog
from magnetar.admin.topics.messages import GivenPlace, given_place
from magnetar.admin.topics.positions import asked_place, find_existing, require_fitting
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.topic import Topic
from magnetar.errors import ConsumerBusyError, CursorExistsError, NotAllowedError, ResourceLimitError
from magnetar.names import Domain, TopicName
from magnetar.topic.cursor.acks import words_of
from magnetar.topic.position import EARLIEST, LATEST, Position
from magnetar.words import counted


async def list_subscriptions(call: Call) -> list[str]:
    names: dict[str, None] = {}
    for topic in await _existing(call):
        names.update(dict.fromkeys((await call.loaded(topic)).subscriptions))
    return list(names)


async def _existing(call: Call) -> list[TopicName]:
    """Returns the topic, or those of its partitions that exist."""
    names = await call.topics()
    return names if names == [call.topic] else [name for name in names if await call.service.exists(name)]


async def create_subscription(call: Call) -> None:
    if call.domain is not Domain.PERSISTENT:
        raise RestError(BAD_REQUEST, "a subscription of a non-persistent topic can be created only by a consumer")
    if call.query.get("to"):
        await _create_at_place(call)
        return
    name, place = call.name("subscription"), given_place(call)
    names = await call.topics()
    if names == [call.topic]:
        await call.require_here()
    if names == [call.topic] and not await call.service.exists(call.topic):
        await call.service.topic(call.topic, create=True)  # As if a consumer had asked for it.
    conflicts = [await _conflict(call, topic, name, place) for topic in names]
    existing = [reason for reason in conflicts if reason is not None]
    refused = "; ".join(filter(None, existing))  # Of other brokers, which may have another reason.
    if refused or len(existing) == len(names):
        raise RestError(CONFLICT, refused or f"Subscription {name!r} already exists for topic {call.topic}")


async def _conflict(call: Call, topic: TopicName, name: str, place: GivenPlace) -> str | None:
    """Creates it on the topic or partition, at its owner. Returns None, or the owner's reason if there is a conflict;
    it is empty if the subscription exists here."""
    if topic != call.topic:
        try:
            if await call.ask_elsewhere(topic, "PUT", f"/subscription/{call.path['subscription']}", **call.query):
                return None
        except RestError as error:
            if error.status != CONFLICT:
                raise
            return str(error)
    try:
        await _create(call, await call.service.persistent_topic(topic, create=True), name, place)
    except CursorExistsError:
        return ""
    return None


async def _create_at_place(call: Call) -> None:
    """Creates it at a place that people name: the topic must exist, and so must a message that is named."""
    name, place = call.name("subscription"), asked_place(call, "to")
    names = await call.topics()
    require_fitting(place, call.query["to"], call.topic, names)
    topics = [await call.persistent(topic) for topic in names]
    if any(name in topic.subscriptions for topic in topics):
        raise RestError(CONFLICT, f"Subscription {name!r} already exists for topic {call.topic}")
    starts = [await find_existing(call, topic, place) for topic in topics]
    for topic, start in zip(topics, starts, strict=True):
        await _create(call, topic, name, GivenPlace(start.position))
        if start.skipped:
            await topic.subscriptions.require(name).seek(start.position, start.still_unacked, start.batch_size)


async def _create(call: Call, topic: PersistentTopic, name: str, place: GivenPlace) -> None:
    start = place.position
    if place.is_excluded and start not in (EARLIEST, LATEST):
        start = topic.log.chain.next_position(start)
    try:
        topic.require_subscription_room(name)
    except ResourceLimitError as error:
        raise RestError(CONFLICT, str(error)) from None
    subscription = await topic.create_subscription(name, start, place.properties)
    subscription.is_replicated = call.flag("replicated")


async def delete_subscription(call: Call) -> None:
    name, force = call.name("subscription"), call.flag("force")
    for topic_name in await _existing(call):
        topic = await call.loaded(topic_name)
        if name not in topic.subscriptions:
            raise _missing(topic, name)
        try:
            await topic.unsubscribe(topic.subscriptions[name], force=force)
        except (ConsumerBusyError, NotAllowedError) as error:
            raise RestError(PRECONDITION_FAILED, f"Subscription has active connected consumers: {error}") from None


def _missing(topic: Topic, name: str) -> RestError:
    return RestError(NOT_FOUND, f"Subscription {name} not found for topic {topic.name}")


async def _each(call: Call, do: Callable[[PersistentTopic, Subscription], Awaitable[Any]]) -> list[Any]:
    """Calls `do` on the topic, or on all its partitions."""
    name = call.name("subscription")
    found = []
    for topic_name in await _existing(call):
        topic = await call.persistent(topic_name)
        if name not in topic.subscriptions:
            raise _missing(topic, name)
        found.append(await do(topic, topic.subscriptions.require(name)))
    return found


# --- its backlog ------------------------------------------------------------------------------------------------------


async def skip_all(call: Call) -> None:
    await _each(call, lambda _, subscription: subscription.clear_backlog())


async def skip(call: Call) -> None:
    count = call.number("count")
    await call.require_not_partitioned()
    if count < 0:
        raise RestError(PRECONDITION_FAILED, f"{counted(count, 'message')} cannot be skipped")
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
    """Expires up to a message. Refuses an id of another topic, because expiring cannot be undone."""
    place = given_place(call)
    if place.partition is not None and place.partition != call.topic.partition:
        raise RestError(
            PRECONDITION_FAILED,
            f"the message id has partitionIndex {place.partition}, that of {call.topic} is {call.topic.partition}:"
            " give a message id of this topic",
        )
    await call.require_not_partitioned()

    async def do(topic: PersistentTopic, subscription: Subscription) -> None:
        if place.position != LATEST and place.position > topic.log.last_confirmed:
            raise RestError(
                CONFLICT,
                f"{place.position} is after {topic.log.last_confirmed}, the last message of {topic.name}: nothing was"
                " expired; give the message id of a message that exists",
            )
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
    """Returns 0 if the entry is not a batch, or does not exist any more."""
    if not topic.log.chain.contains(position):
        return 0
    entries = await topic.log.read(position, 1, 1)
    return (entries[0].head.batch_size or 0) if entries else 0


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
        query=(
            Query("replicated", "stored; nothing is replicated yet"),
            Query("to", "a place such as -10m or index:42, instead of a body", "string"),
        ),
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
    Route(
        "POST", f"{_ONE}/expireMessages/{{seconds}}", "Expire messages that are older than a number of seconds", expire
    ),
    Route("POST", f"{_ONE}/expireMessages", "Expire everything up to a message", expire_to, body=_ID),
    Route(
        "POST",
        f"/admin/v2/persistent/{TOPIC}/all_subscription/expireMessages/{{seconds}}",
        "Expire messages that are older than a number of seconds, on all subscriptions",
        expire_all,
    ),
    Route("POST", f"{_ONE}/resetcursor/{{timestamp}}", "Move to the first message published at a time", reset_to_time),
    Route("POST", f"{_ONE}/resetcursor", "Go to a message", reset_to_message, body=_ID),
    Route("POST", f"{_ONE}/analyzeBacklog", "Count the messages of the backlog", analyze, body=f"{_ID}, or nothing"),
    Route("GET", f"{_ONE}/properties", "Get the properties of a subscription", get_properties),
    Route("PUT", f"{_ONE}/properties", "Set the properties of a subscription", set_properties, body="strings"),
    Route("GET", f"{_ONE}/replicatedSubscriptionStatus", "Whether a subscription is replicated", get_replicated),
]
