"""SubscriptionStats, as Pulsar has it, and the analysis of a whole backlog: its entries and messages without
markers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from magnetar.admin.stats.consumers import consumer_stats
from magnetar.admin.stats.rates import RateBook
from magnetar.broker.dispatch.backlog import Backlog
from magnetar.broker.dispatch.non_persistent import NonPersistentSubscription
from magnetar.broker.dispatch.statistics import SubscriptionStatistics
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.runtime.slices import Slices
from magnetar.topic.cursor.cursors import Cursor

_ENTRIES_MAX: Final = 100_000
_SECONDS_MAX: Final = 50.0
_RUN: Final = 500
_RUN_BYTES: Final = 2**20


async def analyze_backlog(topic: PersistentTopic, subscription: Subscription) -> dict[str, Any]:
    """Reads the backlog. `aborted` means that it is larger than one request may read."""
    cursor, log = subscription.cursor, topic.log
    entries = messages = markers = 0
    first = last = ""
    deadline = asyncio.get_running_loop().time() + _SECONDS_MAX
    position = cursor.next_unacknowledged(cursor.mark_delete.next)
    is_aborted = False
    while log.chain.contains(position):
        if entries >= _ENTRIES_MAX or asyncio.get_running_loop().time() > deadline:
            is_aborted = True
            break
        run = await log.read(position, _RUN, _RUN_BYTES)
        for entry in run:
            if cursor.is_acknowledged(entry.position):
                continue
            last = f"{entry.position.ledger_id}:{entry.position.entry_id}"
            first = first or last
            entries += 1
            if entry.head.is_marker:
                markers += 1
            else:
                messages += entry.messages
        position = cursor.next_unacknowledged(run[-1].position.next) if run else log.chain.end
    return {
        "entries": entries,
        "messages": messages,
        "markerMessages": markers,
        "filterRejectedEntries": 0,
        "filterAcceptedEntries": entries,
        "filterRescheduledEntries": 0,
        "filterRejectedMessages": 0,
        "filterAcceptedMessages": messages,
        "filterRescheduledMessages": 0,
        "aborted": is_aborted,
        "firstMessageId": first,
        "lastMessageId": last,
    }


_READ_SECONDS_MAX = 10.0
_RATES = ("msgRateOut", "msgThroughputOut", "msgRateRedeliver", "messageAckRate")
_NEVER: dict[str, Any] = {  # Values of mechanisms that do not exist here.
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


_NOTHING_KEPT: dict[str, Any] = {  # Values of a subscription without a cursor.
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
    "backlogMessages": 0,
    "backlogMessagesExact": True,
    "blockedSubscriptionOnUnackedMsgs": False,
    "allowOutOfOrderDelivery": False,
    "consumersAfterMarkDeletePosition": {},
    "subscriptionProperties": {},
    **_NEVER,
}


@dataclass(frozen=True, slots=True)
class StatsOptions:
    """Holds the options of a request."""

    backlog_size: bool = True
    earliest_time: bool = False
    messages: bool = False
    """Whether backlogs are counted in messages too, which may take a few reads."""
    with_publishers: bool = True
    with_consumers: bool = True


async def subscription_stats(
    topic: PersistentTopic,
    subscription: Subscription,
    rates: RateBook,
    options: StatsOptions,
    slices: Slices,
    counted: Backlog | None,
) -> dict[str, Any]:
    """`counted` is the backlog in messages, None if it was not counted in time or need not be."""
    seen = subscription.statistics()
    is_keyed = seen.type == "Key_Shared"
    consumers = await slices.map(
        lambda pair: consumer_stats(pair[0], pair[1], rates, is_keyed=is_keyed),
        list(zip(subscription.consumers, seen.consumers, strict=True)),
    )
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
        | (_messages(seen, counted) if options.messages else {})
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


def _messages(seen: SubscriptionStatistics, counted: Backlog | None) -> dict[str, Any]:
    """Returns the fields that Pulsar does not have."""
    messages = seen.backlog_entries if counted is None else counted.messages
    return {"backlogMessages": messages, "backlogMessagesExact": counted is not None and counted.is_exact}


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
    """Returns when the first message of the backlog was published; −1 without one."""
    cursor = subscription.cursor
    first = cursor.next_unacknowledged(cursor.mark_delete.next)
    if not topic.log.chain.contains(first):
        return -1
    async with asyncio.timeout(_READ_SECONDS_MAX):
        entries = await topic.log.read(first, 1, 1)
    return entries[0].head.publish_ms if entries else -1


async def fleeting_stats(
    subscription: NonPersistentSubscription, rates: RateBook, options: StatsOptions, slices: Slices
) -> dict[str, Any]:
    """Returns the statistics of a subscription of a non-persistent topic."""
    seen = subscription.statistics()
    consumers = await slices.map(
        lambda consumer: consumer_stats(consumer, None, rates, is_keyed=False), list(subscription.consumers)
    )
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
