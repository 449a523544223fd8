"""Finding places in a topic as people name them (topic/seek_targets.py), and seeking them. Pulsar has no such paths."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from magnetar.admin.http.call import Call, Query, Route
from magnetar.admin.http.errors import BAD_REQUEST, NOT_FOUND, PRECONDITION_FAILED, RestError, status_of
from magnetar.admin.topics.segment_book import UNREADABLE
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.errors import MagnetarError
from magnetar.names import TopicName
from magnetar.topic.log.log import TopicLog
from magnetar.topic.position import Position
from magnetar.topic.seek_targets import (
    SeekPosition,
    SeekTarget,
    find_seek_position,
    is_of_one_log,
    parse_seek_target,
    require_existing,
)
from magnetar.words import counted

log = logging.getLogger(__name__)


async def find(call: Call) -> dict[str, Any]:
    place = asked_place(call, "at")
    topic = await call.persistent()
    found = await (find_existing if call.flag("existing") else _find)(call, topic, place)
    return {
        "ledgerId": found.position.ledger_id,
        "entryId": found.position.entry_id,
        "batchIndex": found.skipped if found.skipped else -1,
        "index": await _index(topic.log, found),
    }


async def _index(log: TopicLog, found: SeekPosition) -> int | None:
    """Returns None if the entry does not exist any more, or is damaged."""
    try:
        return await log.index_of(found.position) + found.skipped
    except UNREADABLE as error:
        if error.retryable:
            raise
        return None


@dataclass(frozen=True, slots=True)
class _Move:
    """Moves one subscription of one topic, from where it is now."""

    topic: PersistentTopic
    subscription: Subscription
    before: Position
    found: SeekPosition

    async def make(self) -> None:
        await self.subscription.seek(self.found.position, self.found.still_unacked, self.found.batch_size)

    async def undo(self) -> None:
        """Moves it back. What was acknowledged out of order may be delivered again."""
        await self.subscription.seek(self.topic.log.chain.next_position(self.before))

    async def outcome(self) -> dict[str, Any]:
        following = self.topic.log.chain.next_position(self.subscription.cursor.mark_delete)
        backlog = await self.subscription.count_backlog()
        return {
            "topic": str(self.topic.name),
            "ledgerId": following.ledger_id,
            "entryId": following.entry_id,
            "batchIndex": self.found.skipped if self.found.skipped else -1,
            "backlogMessages": backlog.messages,
            "backlogEntries": backlog.entries,
            "backlogMessagesExact": backlog.is_exact,
        }


async def seek(call: Call) -> list[dict[str, Any]]:
    """Moves the subscription on the topic, or on all partitions or none. Returns its position on each of them."""
    place = asked_place(call, "to")
    names = await call.topics()
    require_fitting(place, call.query["to"], call.topic, names)
    moves = [await _move(call, await call.persistent(name), place) for name in names]
    await _make_all(moves)
    return [await move.outcome() for move in moves]


async def _move(call: Call, topic: PersistentTopic, place: SeekTarget) -> _Move:
    name = call.name("subscription")
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        raise RestError(NOT_FOUND, f"Subscription not found: topic {topic.name} has no {name!r}")
    found = await find_existing(call, topic, place)
    return _Move(topic, subscription, subscription.cursor.mark_delete, found)


async def _make_all(moves: Sequence[_Move]) -> None:
    made: list[_Move] = []
    for move in moves:
        try:
            await move.make()
        except MagnetarError as error:
            failed_too = [str(each.topic.name) for each in made if not await _is_undone(each)]
            left = f"; {', '.join(failed_too)} could not be moved back" if failed_too else ""
            state = "nothing was moved" if not left else f"not all partitions were moved{left}: seek again"
            raise RestError(status_of(error), f"{move.topic.name} could not be moved ({error}): {state}") from error
        made.append(move)


async def _is_undone(move: _Move) -> bool:
    try:
        await move.undo()
    except MagnetarError as error:
        log.warning("a seek could not be undone", extra={"topic": str(move.topic.name), "why": str(error)})
        return False
    return True


def require_fitting(place: SeekTarget, text: str, topic: TopicName, names: Sequence[TopicName]) -> None:
    """Refuses a place that has a meaning in one partition only, if there are several."""
    if names != [topic] and is_of_one_log(place):
        raise RestError(
            PRECONDITION_FAILED,
            f"{text} is a position in one partition, and {topic} has {counted(len(names), 'partition')}: name "
            f"one of them, such as {names[0]}, or use earliest, latest or a time",
        )


async def find_existing(call: Call, topic: PersistentTopic, place: SeekTarget) -> SeekPosition:
    """Raises InvalidCursorPositionError for the id or index of a message that does not exist."""
    await require_existing(place, topic.log)
    return await _find(call, topic, place)


def asked_place(call: Call, parameter: str) -> SeekTarget:
    text = call.query.get(parameter)
    if not text:
        raise RestError(BAD_REQUEST, f"give a position: ?{parameter}=earliest, a message id, -1000, -10m, a time, …")
    return parse_seek_target(text)


async def _find(call: Call, topic: PersistentTopic, place: SeekTarget) -> SeekPosition:
    return await find_seek_position(place, topic.log, call.service.entropy.wall_ms())


_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_PLACE = "earliest, latest, ledger:entry, -1000 (messages), -10m (ago), a time, index:42"
_AT = (Query("at", _PLACE, "string"), Query("existing", "refuse the id or index of a message that does not exist"))
_TO = (Query("to", _PLACE, "string"),)
ROUTES = [
    Route("GET", f"{_TOPIC}/place", "Find a place in a topic", find, query=_AT),
    Route("POST", f"{_TOPIC}/subscription/{{subscription}}/seek", "Move a subscription to a place", seek, query=_TO),
]
