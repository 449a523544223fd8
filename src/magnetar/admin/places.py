"""Places in a topic as people name them (topic/seek.py): found, and gone to. Paths that Pulsar does not have."""

from __future__ import annotations

from typing import Any

from magnetar.admin.call import Call
from magnetar.admin.errors import BAD_REQUEST, NOT_FOUND, RestError
from magnetar.admin.route import Query, Route
from magnetar.admin.segment_book import UNREADABLE
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.topic.log import TopicLog
from magnetar.topic.seek import Found, Place, find_place, parse_place


async def find(call: Call) -> dict[str, Any]:
    place = _given(call, "at")
    topic = await call.persistent()
    found = await _find(call, topic, place)
    return {
        "ledgerId": found.position.ledger_id,
        "entryId": found.position.entry_id,
        "batchIndex": found.skipped if found.skipped else -1,
        "index": await _index(topic.log, found),
    }


async def _index(log: TopicLog, found: Found) -> int | None:
    """None: the entry is there no more, or damaged, and so cannot tell it."""
    try:
        return await log.index_of(found.position) + found.skipped
    except UNREADABLE as error:
        if error.retryable:
            raise
        return None


async def seek(call: Call) -> None:
    """On all partitions, where there are some."""
    place, name = _given(call, "to"), call.name("subscription")
    for part in await call.topics():
        topic = await call.persistent(part)
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            raise RestError(NOT_FOUND, f"Subscription not found: topic {topic.name} has no {name!r}")
        found = await _find(call, topic, place)
        await subscription.seek(found.position, found.still_unacked, found.batch_size)


def _given(call: Call, parameter: str) -> Place:
    text = call.query.get(parameter)
    if not text:
        raise RestError(BAD_REQUEST, f"say where: ?{parameter}=earliest, a message id, -1000, -10m, a time, …")
    return parse_place(text)


async def _find(call: Call, topic: PersistentTopic, place: Place) -> Found:
    return await find_place(place, topic.log, call.service.entropy.wall_ms())


_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_PLACE = "earliest, latest, ledger:entry, -1000 (messages), -10m (ago), a time, index:42"
ROUTES = [
    Route("GET", f"{_TOPIC}/place", "Find a place in a topic", find, query=(Query("at", _PLACE, "string"),)),
    Route(
        "POST",
        f"{_TOPIC}/subscription/{{subscription}}/seek",
        "Move a subscription to a place",
        seek,
        query=(Query("to", _PLACE, "string"),),
    ),
]
