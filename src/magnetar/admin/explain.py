"""What holds delivery on a subscription, and what keeps a message: paths that Pulsar does not have.

Read next: broker/dispatch/holding.py, broker/keeping.py; docs/cli.md
"""

from __future__ import annotations

import dataclasses
from typing import Any

from magnetar.admin.call import Call
from magnetar.admin.errors import BAD_REQUEST, NOT_FOUND, RestError
from magnetar.admin.route import Query, Route
from magnetar.broker.keeping import Keeping, what_keeps
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.subscription import Subscription
from magnetar.topic.position import Position


async def explain_subscription(call: Call) -> dict[str, Any]:
    topic = await call.persistent()
    subscription = _subscription(call, topic)
    explained = subscription.explain()
    answer = {
        "topic": str(topic.name),
        **dataclasses.asdict(explained),
        "mark_delete": _text(explained.mark_delete),
        "next_read": _text(explained.next_read),
        "is_held": explained.is_held,
        "holdings": [_fact(holding) for holding in explained.holdings],
        "publishing_refused": None if topic.quota_error is None else str(topic.quota_error),
    }
    wanted = call.query.get("message")
    return answer if wanted is None else answer | {"message": _message(call, topic, subscription, _position(wanted))}


def _subscription(call: Call, topic: PersistentTopic) -> Subscription:
    name = call.name("subscription")
    found = topic.subscriptions.get(name)
    if found is None:
        raise RestError(NOT_FOUND, f"Subscription not found: topic {topic.name} has no {name!r}")
    return found


def _message(call: Call, topic: PersistentTopic, subscription: Subscription, position: Position) -> dict[str, Any]:
    state = subscription.state_of(position)
    keeping = what_keeps(topic, position, call.service.config.topic, call.service.entropy.wall_ms())
    return {
        **_fact(state),
        "deletable_ms": _deletable_ms(keeping),
        "kept_by": [_fact(each) for each in keeping],
    }


def _deletable_ms(keeping: list[Keeping]) -> int | None:
    """When, if that is only a question of time."""
    ends = [each.until_ms for each in keeping]
    return None if any(end is None for end in ends) else max((end for end in ends if end is not None), default=None)


def _fact(value: Any) -> dict[str, Any]:
    """A dataclass as JSON; positions as ledger:entry."""
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
