"""Why a message is still retained, and until when: a reason for each thing that keeps its ledger from being deleted.

Messages are deleted with their whole ledger, when it is no longer written, every durable cursor has passed all of it,
durably, and retention does not need it. topic/log/log.py decides; a test compares the two. An older ledger that
must stay needs no reason of its own: what keeps it keeps the newer ones, too.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial

from magnetar.broker.dispatch.blockers import Progress
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.config.topic import TopicConfig
from magnetar.topic.chain import LedgerSpan
from magnetar.topic.cursor.cursors import Cursor
from magnetar.topic.position import Position
from magnetar.words import counted

_MEGABYTE = 2**20
_MINUTE_MS = 60_000


class RetainedBy(enum.StrEnum):
    """What retains a message. The values are part of the admin interface."""

    NOT_THERE = "not-there"
    """The topic has no such message, or not any more."""
    WRITTEN = "ledger-is-written"
    SUBSCRIPTION = "subscription"
    RETENTION = "retention"
    NEXT_TRIM = "next-trim"
    """Only time is left: the next round of trimming deletes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionReason:
    retained_by: RetainedBy
    text: str
    """One sentence for people."""
    advice: str = ""
    subscription: str | None = None
    until_ms: int | None = None
    """The wall time at which it ends by itself."""


def retained_because(
    topic: PersistentTopic, position: Position, config: TopicConfig, now_ms: int
) -> list[RetentionReason]:
    chain = topic.log.chain
    if not chain.contains(position):
        return [_not_there(topic, position)]
    spans = chain.spans
    number = next(index for index, span in enumerate(spans) if span.ledger_id == position.ledger_id)
    found = [_written(config)] if number == len(spans) - 1 else []
    found += _subscriptions(topic, spans[number], position)
    if not found:
        found += _retention(topic, spans, number, now_ms)
    return found or [
        RetentionReason(
            retained_by=RetainedBy.NEXT_TRIM, text="nothing keeps it: the next round of trimming deletes its ledger"
        )
    ]


def _not_there(topic: PersistentTopic, position: Position) -> RetentionReason:
    is_to_come = position > topic.log.last_confirmed
    text = f"the topic has no message {position} yet" if is_to_come else f"message {position} is gone already"
    return RetentionReason(retained_by=RetainedBy.NOT_THERE, text=text)


def _written(config: TopicConfig) -> RetentionReason:
    return RetentionReason(
        retained_by=RetainedBy.WRITTEN,
        text=f"its ledger is being written: it is closed at {counted(config.ledger_entries_max, 'entry', 'entries')}, "
        f"{config.ledger_bytes_max // _MEGABYTE} MB or after {config.ledger_minutes_max} minutes, and messages go with "
        "their whole ledger",
        advice="wait, or unload the topic, which begins a new ledger",
    )


def _subscriptions(topic: PersistentTopic, span: LedgerSpan, position: Position) -> list[RetentionReason]:
    end = Position(span.ledger_id, span.entries - 1)
    behind = [cursor for cursor in topic.cursors if cursor.is_durable and cursor.stored_mark_delete < end]
    return [_subscription(topic, cursor, position, end) for cursor in behind]


def _subscription(topic: PersistentTopic, cursor: Cursor, position: Position, end: Position) -> RetentionReason:
    name = cursor.name
    reason = partial(RetentionReason, retained_by=RetainedBy.SUBSCRIPTION, subscription=name)
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        return reason(
            text=f"the broker's own cursor {name!r} is at {cursor.mark_delete}, before the end of its ledger",
            advice="wait: it follows by itself",
        )
    state = subscription.state_of(position)
    if state.progress is not Progress.ACKNOWLEDGED:
        ttl_s = topic.policies.message_ttl_s
        whose = "" if state.consumer is None else f" (consumer {state.consumer!r})"
        return reason(
            text=f"subscription {name!r} has not acknowledged it: {state.progress}{whose}",
            advice="let a consumer acknowledge it; or skip, expire or delete the subscription"
            + (f"; or wait until it is {ttl_s} s old, its time to live" if ttl_s else ""),
        )
    first = cursor.next_unacknowledged(cursor.mark_delete)
    if first <= end:
        text = f"subscription {name!r} has acknowledged it, but not {first} of the same ledger or before"
        return reason(text=text, advice="let a consumer acknowledge that one")
    text = f"subscription {name!r} has acknowledged it, and that is not stored yet"
    return reason(text=text, advice="wait: it is stored in the background")


def _retention(
    topic: PersistentTopic, spans: tuple[LedgerSpan, ...], number: int, now_ms: int
) -> list[RetentionReason]:
    retention = topic.policies.retention
    remaining = sum(span.size_bytes for span in spans[number + 1 :])
    over_at = spans[number].closed_ms + retention.minutes * _MINUTE_MS
    is_over = retention.minutes >= 0 and now_ms > over_at
    is_too_much = retention.megabytes >= 0 and remaining >= retention.megabytes * _MEGABYTE
    if is_over or is_too_much:
        return []
    time = "for ever" if retention.minutes < 0 else f"for {retention.minutes} minutes"
    size = "" if retention.megabytes < 0 else f", up to {retention.megabytes} MB ({remaining} bytes are newer)"
    return [
        RetentionReason(
            retained_by=RetainedBy.RETENTION,
            text=f"retention keeps what was read {time}{size}",
            advice="wait, or change the retention of namespace or topic",
            until_ms=None if retention.minutes < 0 else over_at,
        )
    ]
