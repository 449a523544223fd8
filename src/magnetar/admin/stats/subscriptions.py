"""SubscriptionStats, as Pulsar has it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from magnetar.admin.stats.consumers import consumer_stats
from magnetar.admin.stats.rates import RateBook
from magnetar.broker.dispatch.non_persistent import NonPersistentSubscription
from magnetar.broker.dispatch.statistics import SubscriptionStatistics
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.subscription import Subscription
from magnetar.topic.cursor import Cursor
from magnetar.topic.position import Position

_READ_SECONDS_MAX = 10.0
_RATES = ("msgRateOut", "msgThroughputOut", "msgRateRedeliver", "messageAckRate")
_NEVER: dict[str, Any] = {  # What there is no mechanism for.
    "filterProcessedMsgCount": 0,
    "filterAcceptedMsgCount": 0,
    "filterRejectedMsgCount": 0,
    "filterRescheduledMsgCount": 0,
    "dispatchThrottledMsgEventsBySubscriptionLimit": 0,
    "dispatchThrottledBytesEventsBySubscriptionLimit": 0,
    "dispatchThrottledMsgEventsByTopicLimit": 0,
    "dispatchThrottledBytesEventsByTopicLimit": 0,
    "dispatchThrottledMsgEventsByBrokerLimit": 0,
    "dispatchThrottledBytesEventsByBrokerLimit": 0,
}


_NOTHING_KEPT: dict[str, Any] = {  # Of a subscription without a cursor.
    **dict.fromkeys(("chunkedMessageRate", "msgRateExpired"), 0.0),
    **dict.fromkeys(
        (
            "msgBacklog",
            "backlogSize",
            "earliestMsgPublishTimeInBacklog",
            "msgBacklogNoDelayed",
            "msgDelayed",
            "msgInReplay",
            "unackedMessages",
            "msgExpired",
            "totalMsgExpired",
            "lastExpireTimestamp",
            "lastConsumedFlowTimestamp",
            "lastConsumedTimestamp",
            "lastAckedTimestamp",
            "lastMarkDeleteAdvancedTimestamp",
            "drainingHashesCount",
            "drainingHashesClearedTotal",
            "drainingHashesUnackedMessages",
            "nonContiguousDeletedMessagesRanges",
            "nonContiguousDeletedMessagesRangesSerializedSize",
            "delayedMessageIndexSizeInBytes",
        ),
        0,
    ),
    "blockedSubscriptionOnUnackedMsgs": False,
    "allowOutOfOrderDelivery": False,
    "consumersAfterMarkDeletePosition": {},
    "subscriptionProperties": {},
    **_NEVER,
}


@dataclass(frozen=True, slots=True)
class StatsOptions:
    """What a request asks for."""

    backlog_size: bool = True
    earliest_time: bool = False
    with_publishers: bool = True
    with_consumers: bool = True


async def subscription_stats(
    topic: PersistentTopic, subscription: Subscription, rates: RateBook, options: StatsOptions
) -> dict[str, Any]:
    seen = subscription.statistics()
    by_id = {id(consumer): known for consumer, known in zip(subscription.consumers, seen.consumers, strict=True)}
    is_keyed = seen.type == "Key_Shared"
    consumers = [
        consumer_stats(consumer, by_id.get(id(consumer)), rates, is_keyed=is_keyed)
        for consumer in subscription.consumers
    ]
    cursor = topic.cursors.get(subscription.name)
    earliest_ms = await earliest_publish_ms(topic, subscription) if options.earliest_time else 0
    return (
        {
            **_rates(consumers),
            "bytesOutCounter": seen.delivered_bytes,
            "msgOutCounter": seen.delivered_messages,
            "chunkedMessageRate": 0.0,
        }
        | _backlog(cursor, seen, options, earliest_ms)
        | _activity(seen)
        | {"consumers": consumers if options.with_consumers else []}
        | _nature(cursor, seen, consumers, is_replicated=subscription.is_replicated)
        | _NEVER
        | {"durable": seen.is_durable, "replicated": subscription.is_replicated}
    )


def _rates(consumers: Iterable[dict[str, Any]]) -> dict[str, float]:
    found = list(consumers)
    return {name: sum(consumer[name] for consumer in found) + 0.0 for name in _RATES}


def _backlog(
    cursor: Cursor | None, seen: SubscriptionStatistics, options: StatsOptions, earliest_ms: int
) -> dict[str, Any]:
    return {
        "msgBacklog": seen.backlog_entries,
        "backlogSize": cursor.backlog_bytes_estimate() if cursor is not None and options.backlog_size else -1,
        "earliestMsgPublishTimeInBacklog": earliest_ms,
        "msgBacklogNoDelayed": max(0, seen.backlog_entries - seen.delayed_entries),
        "blockedSubscriptionOnUnackedMsgs": seen.is_blocked_on_unacked,
        "msgDelayed": seen.delayed_entries,
        "msgInReplay": seen.waiting_for_redelivery,
        "unackedMessages": seen.unacked_messages,
    }


def _activity(seen: SubscriptionStatistics) -> dict[str, Any]:
    stats: dict[str, Any] = {"type": seen.type or "None"}
    if seen.active_consumer is not None:
        stats["activeConsumerName"] = seen.active_consumer
    return stats | {
        "msgRateExpired": 0.0,
        "msgExpired": 0,
        "totalMsgExpired": seen.expired_entries,
        "lastExpireTimestamp": seen.last_expire_ms,
        "lastConsumedFlowTimestamp": seen.last_flow_ms,
        "lastConsumedTimestamp": seen.last_delivered_ms,
        "lastAckedTimestamp": seen.last_acked_ms,
        "lastMarkDeleteAdvancedTimestamp": 0,
    }


def _nature(
    cursor: Cursor | None, seen: SubscriptionStatistics, consumers: list[dict[str, Any]], *, is_replicated: bool
) -> dict[str, Any]:
    stats: dict[str, Any] = {
        "isDurable": seen.is_durable,
        "isReplicated": is_replicated,
        "allowOutOfOrderDelivery": seen.allow_out_of_order,
    }
    if seen.key_shared_mode is not None:
        stats["keySharedMode"] = seen.key_shared_mode
    return stats | {
        "consumersAfterMarkDeletePosition": {},
        "drainingHashesCount": sum(each["drainingHashesCount"] for each in consumers),
        "drainingHashesClearedTotal": 0,
        "drainingHashesUnackedMessages": sum(each["drainingHashesUnackedMessages"] for each in consumers),
        "nonContiguousDeletedMessagesRanges": 0 if cursor is None else cursor.statistics().ranges,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "delayedMessageIndexSizeInBytes": seen.delayed_index_bytes,
        "subscriptionProperties": {} if cursor is None else dict(cursor.properties),
    }


async def earliest_publish_ms(topic: PersistentTopic, subscription: Subscription) -> int:
    """When the first message of the backlog was published; −1 if there is none."""
    cursor = subscription.cursor
    first = cursor.next_unacknowledged(_behind(cursor.mark_delete))
    if not topic.log.chain.contains(first):
        return -1
    async with asyncio.timeout(_READ_SECONDS_MAX):
        entries = await topic.log.read(first, 1, 1)
    return int(entries[0].head.metadata.publish_time) if entries else -1


def _behind(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id + 1)


def fleeting_stats(subscription: NonPersistentSubscription, rates: RateBook, options: StatsOptions) -> dict[str, Any]:
    """Of a non-persistent topic."""
    seen = subscription.statistics()
    consumers = [consumer_stats(each, None, rates, is_keyed=False) for each in subscription.consumers]
    stats = _NOTHING_KEPT | {
        **_rates(consumers),
        "bytesOutCounter": seen.delivered_bytes,
        "msgOutCounter": seen.delivered_messages,
        "type": seen.type or "None",
        "consumers": consumers if options.with_consumers else [],
        "isDurable": False,
        "isReplicated": False,
        "msgDropRate": 0.0,
        "msgDropCount": seen.dropped_messages,
        "durable": False,
        "replicated": False,
    }
    if seen.active_consumer is not None:
        stats["activeConsumerName"] = seen.active_consumer
    return stats
