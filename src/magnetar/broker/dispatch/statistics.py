"""Statistics of subscriptions and consumers, as the admin interface and metrics show them.

Counts are in messages. `statistics_of` takes them from the state of a subscription when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.shared_base import SharedBase
from magnetar.broker.subscriptions.consumer import Consumer, ConsumerAbout
from magnetar.topic.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainingHash:
    """A key hash that belongs to another consumer now: new entries wait until this consumer has none left."""

    key_hash: int
    unacked_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """A time is in wall milliseconds, and 0 if the event never happened."""

    consumer_id: int
    name: str
    priority: int
    about: ConsumerAbout
    is_active: bool
    permits: int
    unacked_messages: int
    is_blocked: bool
    messages_per_entry: float
    delivered_entries: int
    delivered_messages: int
    delivered_bytes: int
    redelivered_messages: int
    acked_messages: int
    first_delivered_ms: int
    last_delivered_ms: int
    last_acked_ms: int
    last_flow_ms: int
    key_ranges: tuple[tuple[int, int], ...] = ()
    draining_hashes: tuple[DrainingHash, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStatistics:
    """`delivered_*`, `acked_*` and `redelivered_*` include consumers that have left."""

    name: str
    type: str
    is_durable: bool
    consumers: tuple[ConsumerStatistics, ...]
    active_consumer: str | None
    mark_delete: Position
    next_read: Position | None
    backlog_entries: int
    unacked_messages: int
    is_blocked_on_unacked: bool
    waiting_for_redelivery: int
    delayed_entries: int
    delayed_index_bytes: int
    delivered_entries: int
    delivered_messages: int
    delivered_bytes: int
    redelivered_messages: int
    acked_messages: int
    expired_entries: int
    last_expire_ms: int
    last_acked_ms: int
    last_delivered_ms: int
    last_flow_ms: int
    allow_out_of_order: bool = False
    key_shared_mode: str | None = None


@dataclass(slots=True)
class Departed:
    """What the consumers that have left did, and what was expired."""

    delivered_entries: int = 0
    delivered_messages: int = 0
    delivered_bytes: int = 0
    redelivered_messages: int = 0
    acked_messages: int = 0
    last_acked_ms: int = 0
    last_delivered_ms: int = 0
    last_flow_ms: int = 0
    expired_entries: int = 0
    last_expire_ms: int = 0

    def add(self, consumer: Consumer) -> None:
        self.delivered_entries += consumer.delivered_entries
        self.delivered_messages += consumer.delivered_messages
        self.delivered_bytes += consumer.delivered_bytes
        self.redelivered_messages += consumer.redelivered_messages
        self.acked_messages += consumer.acked_messages
        self.last_acked_ms = max(self.last_acked_ms, consumer.last_acked_ms)
        self.last_delivered_ms = max(self.last_delivered_ms, consumer.last_delivered_ms)
        self.last_flow_ms = max(self.last_flow_ms, consumer.last_flow_ms)


def statistics_of(
    context: DispatchContext, dispatcher: Dispatcher | None, departed: Departed
) -> SubscriptionStatistics:
    consumers = () if dispatcher is None else tuple(dispatcher.consumers)
    several = dispatcher if isinstance(dispatcher, SharedBase) else None
    keyed = dispatcher if isinstance(dispatcher, KeySharedDispatcher) else None
    delayed = None if several is None else several.delayed
    active = None if dispatcher is None else dispatcher.active_consumer
    total = _total(departed, consumers)
    return SubscriptionStatistics(
        name=context.subscription,
        type="" if dispatcher is None else dispatcher.type.shown,
        is_durable=context.cursor.is_durable,
        consumers=tuple(_of_consumer(consumer, keyed, is_active=consumer is active) for consumer in consumers),
        active_consumer=None if active is None else active.name,
        mark_delete=context.cursor.mark_delete,
        next_read=None if dispatcher is None else dispatcher.next_read,
        backlog_entries=context.cursor.backlog_entries(),
        unacked_messages=0 if several is None else several.book.total.messages,
        is_blocked_on_unacked=several is not None and several.book.total.is_blocked,
        waiting_for_redelivery=0 if several is None else len(several.book.replay),
        delayed_entries=0 if dispatcher is None else dispatcher.delayed_entries,
        delayed_index_bytes=0 if delayed is None else delayed.memory_bytes,
        delivered_entries=total.delivered_entries,
        delivered_messages=total.delivered_messages,
        delivered_bytes=total.delivered_bytes,
        redelivered_messages=total.redelivered_messages,
        acked_messages=total.acked_messages,
        expired_entries=departed.expired_entries,
        last_expire_ms=departed.last_expire_ms,
        last_acked_ms=total.last_acked_ms,
        last_delivered_ms=total.last_delivered_ms,
        last_flow_ms=total.last_flow_ms,
        allow_out_of_order=keyed is not None and not keyed.is_ordered,
        key_shared_mode=None if keyed is None else keyed.mode.name,
    )


def _total(departed: Departed, consumers: Iterable[Consumer]) -> Departed:
    total = Departed(
        departed.delivered_entries,
        departed.delivered_messages,
        departed.delivered_bytes,
        departed.redelivered_messages,
        departed.acked_messages,
        departed.last_acked_ms,
        departed.last_delivered_ms,
        departed.last_flow_ms,
    )
    for consumer in consumers:
        total.add(consumer)
    return total


def _of_consumer(consumer: Consumer, keyed: KeySharedDispatcher | None, *, is_active: bool) -> ConsumerStatistics:
    return ConsumerStatistics(
        consumer_id=consumer.consumer_id,
        name=consumer.name,
        priority=consumer.priority,
        about=consumer.about,
        is_active=is_active,
        permits=consumer.permits,
        unacked_messages=consumer.unacked_messages,
        is_blocked=consumer.is_blocked,
        messages_per_entry=consumer.messages_per_entry,
        delivered_entries=consumer.delivered_entries,
        delivered_messages=consumer.delivered_messages,
        delivered_bytes=consumer.delivered_bytes,
        redelivered_messages=consumer.redelivered_messages,
        acked_messages=consumer.acked_messages,
        first_delivered_ms=consumer.first_delivered_ms,
        last_delivered_ms=consumer.last_delivered_ms,
        last_acked_ms=consumer.last_acked_ms,
        last_flow_ms=consumer.last_flow_ms,
        key_ranges=() if keyed is None else keyed.assignment.ranges_of(consumer),
        draining_hashes=() if keyed is None else _draining(consumer, keyed),
    )


def _draining(consumer: Consumer, keyed: KeySharedDispatcher) -> tuple[DrainingHash, ...]:
    return tuple(
        DrainingHash(key_hash=key_hash, unacked_entries=entries)
        for key_hash, (holder, entries) in sorted(keyed.book.holders.items(), key=lambda item: item[0])
        if holder is consumer and keyed.assignment.owner_of(key_hash) is not consumer
    )
