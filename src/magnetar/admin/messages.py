"""Single messages: peeking, examining, and finding their ids."""

from __future__ import annotations

from typing import Any

from magnetar.admin.call import Call, Reply
from magnetar.admin.errors import NOT_FOUND, PRECONDITION_FAILED, RestError
from magnetar.admin.message_bodies import message_reply
from magnetar.admin.message_ids import given_place, message_id_json
from magnetar.admin.route import TOPIC, Query, Route
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.topic.position import EARLIEST, Position


async def peek(call: Call) -> Reply:
    topic, number = await call.persistent(), call.number("number")
    entry = await topic.subscription(call.name("subscription")).peek(max(1, number))
    if entry is None:
        raise RestError(NOT_FOUND, "Message not found")
    return message_reply(entry)


async def examine(call: Call) -> Reply:
    topic = await call.persistent()
    number, total = max(1, call.query_number("messagePosition", 1)), topic.log.chain.entries
    if not total:
        raise RestError(PRECONDITION_FAILED, "Could not examine messages: the topic has none")
    from_start = number if call.query.get("initialPosition") == "earliest" else total - number + 1
    return await _at(topic, topic.log.chain.position_after(EARLIEST, max(1, from_start)))


async def get_message(call: Call) -> Reply:
    topic = await call.persistent()
    return await _at(topic, Position(call.number("ledger"), call.number("entry")))


async def _at(topic: PersistentTopic, position: Position) -> Reply:
    if not topic.log.chain.contains(position):
        raise RestError(NOT_FOUND, "Message not found")
    entries = await topic.log.read(position, 1, 1)
    if not entries:
        raise RestError(NOT_FOUND, "Message not found")
    return message_reply(entries[0])


async def last_message_id(call: Call) -> dict[str, Any]:
    topic = await call.persistent()
    last = await topic.last_message()
    return message_id_json(last.position, topic.name.partition, last.batch_index, max(0, last.batch_index + 1))


async def id_at_time(call: Call) -> dict[str, Any] | None:
    topic = await call.persistent()
    position = await topic.log.position_at_time(call.number("timestamp"))
    if not topic.log.chain.contains(position):
        position = topic.log.last_confirmed
    return message_id_json(position, topic.name.partition)


async def id_at_index(call: Call) -> dict[str, Any]:
    topic = await call.persistent()
    index = call.query_number("index", -1)
    if not 0 <= index < topic.log.next_confirmed_index:
        raise RestError(NOT_FOUND, f"there is no message with index {index}: the next one is {topic.log.next_index}")
    return message_id_json(await topic.log.position_at_index(index), topic.name.partition)


async def backlog_size(call: Call) -> int:
    """From a message on, in bytes."""
    topic, place = await call.persistent(), given_place(call)
    chain = topic.log.chain
    return chain.bytes_between(chain.previous_position(place.position), topic.log.last_confirmed)


async def backlog(call: Call) -> dict[str, Any]:
    topic = await call.persistent()
    cursors = {each.name: {"messageBacklog": each.cursor.backlog_entries()} for each in topic.subscriptions.values()}
    return {
        "storageSize": topic.log.chain.size_bytes,
        "totalMessages": topic.log.chain.entries,
        "messageBacklog": max((each["messageBacklog"] for each in cursors.values()), default=0),
        "topicName": str(topic.name),
        "cursorDetails": cursors,
    }


_ONE = f"/admin/v2/persistent/{TOPIC}"
ROUTES = [
    Route(
        "GET",
        f"{_ONE}/subscription/{{subscription}}/position/{{number}}",
        "Get a message of the backlog, by its place in it",
        peek,
    ),
    Route(
        "GET",
        f"{_ONE}/examinemessage",
        "Get a message by its place in the topic",
        examine,
        query=(
            Query("initialPosition", "earliest or latest", "string"),
            Query("messagePosition", "which one from there, from 1 on", "integer"),
        ),
    ),
    Route("GET", f"{_ONE}/ledger/{{ledger}}/entry/{{entry}}", "Get a message by its id", get_message),
    Route("GET", f"{_ONE}/lastMessageId", "Get the id of the last message", last_message_id),
    Route("GET", f"{_ONE}/messageid/{{timestamp}}", "Get the id of the first message published at a time", id_at_time),
    Route(
        "GET",
        f"{_ONE}/getMessageIdByIndex",
        "Get the id of the message with an index",
        id_at_index,
        query=(Query("index", "the index", "integer"),),
    ),
    Route("PUT", f"{_ONE}/backlogSize", "Get how much there is from a message on", backlog_size, body="a message id"),
    Route("GET", f"{_ONE}/backlog", "Get the backlog of all subscriptions", backlog),
]
