"""What holds delivery on a subscription, and why a message is retained: paths that Pulsar does not have.

Read next: broker/dispatch/blockers.py, broker/upkeep/retention_reasons.py; docs/cli.md
"""

from __future__ import annotations

import dataclasses
from typing import Any

from magnetar.admin.http.call import Call, Query, Route
from magnetar.admin.http.errors import BAD_REQUEST, NOT_FOUND, RestError
from magnetar.broker.dispatch.blockers import Blocker, Progress
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.upkeep.retention_reasons import RetentionReason, retained_because
from magnetar.topic.position import Position


async def explain_subscription(call: Call) -> dict[str, Any]:
    topic = await call.persistent()
    subscription = _subscription(call, topic)
    explained = subscription.explain(await subscription.count_backlog())
    answer = {
        "topic": str(topic.name),
        "subscription": explained.subscription,
        "type": explained.type,
        "mark_delete": _text(explained.mark_delete),
        "next_read": _text(explained.next_read),
        "backlog_messages": explained.backlog_messages,
        "backlog_entries": explained.backlog_entries,
        "backlog_messages_exact": explained.is_exact,
        "holdings": [_blocker(blocker) for blocker in explained.blockers],
        "is_held": explained.is_blocked,
        "publishing_refused": None if topic.quota.error is None else str(topic.quota.error),
    }
    wanted = call.query.get("message")
    if wanted is None:
        return answer
    return answer | {"message": await _message(call, topic, subscription, _position(wanted))}


def _subscription(call: Call, topic: PersistentTopic) -> Subscription:
    name = call.name("subscription")
    found = topic.subscriptions.get(name)
    if found is None:
        raise RestError(NOT_FOUND, f"Subscription not found: topic {topic.name} has no {name!r}")
    return found


async def _message(
    call: Call, topic: PersistentTopic, subscription: Subscription, position: Position
) -> dict[str, Any]:
    state = subscription.state_of(position)
    reasons = retained_because(topic, position, call.service.config.topic, call.service.entropy.wall_ms())
    waits = state.progress is Progress.NOT_READ
    return {
        **_fact(state),
        "messages_before": await subscription.count_before(position) if waits else 0,
        "deletable_ms": _deletable_ms(reasons),
        "kept_by": [_reason(each) for each in reasons],
    }


def _deletable_ms(reasons: list[RetentionReason]) -> int | None:
    """Returns when the message may be deleted, if only time is left."""
    ends = [each.until_ms for each in reasons]
    return None if any(end is None for end in ends) else max((end for end in ends if end is not None), default=None)


def _blocker(blocker: Blocker) -> dict[str, Any]:
    fact = _fact(blocker)
    return {"hold": fact.pop("kind"), **fact}


def _reason(reason: RetentionReason) -> dict[str, Any]:
    fact = _fact(reason)
    return {"keep": fact.pop("retained_by"), **fact}


def _fact(value: Any) -> dict[str, Any]:
    """Returns a dataclass as JSON; positions as ledger:entry."""
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {name: _text(found) if isinstance(found, Position) else found for name, found in fields.items()}


def _text(position: Position | None) -> str | None:
    return None if position is None else f"{position.ledger_id}:{position.entry_id}"


def _position(text: str) -> Position:
    parts = text.split(":")
    if len(parts) not in (2, 3, 4) or not all(part.lstrip("-").isdigit() for part in parts):
        raise RestError(BAD_REQUEST, f"{text!r} is not a message id: write LEDGER:ENTRY")
    return Position(int(parts[0]), int(parts[1]))


ROUTES = [
    Route(
        "GET",
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/explain",
        "Say what holds delivery on a subscription, and what keeps a message from being deleted",
        explain_subscription,
        query=(Query("message", "a message, as LEDGER:ENTRY", "string"),),
    ),
]
