"""Making the snapshots of statistics.py from the state of a subscription."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from magnetar.broker.consumer import Consumer
from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.multi import MultiConsumerDispatcher
from magnetar.broker.dispatch.statistics import ConsumerStatistics, DrainingHash, SubscriptionStatistics


@dataclass(slots=True)
class Departed:
    """What consumers did that have left, and what was expired."""

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


def snapshot(context: DispatchContext, dispatcher: Dispatcher | None, departed: Departed) -> SubscriptionStatistics:
    consumers = () if dispatcher is None else tuple(dispatcher.consumers)
    several = dispatcher if isinstance(dispatcher, MultiConsumerDispatcher) else None
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
        unacked_messages=0 if several is None else several.unacked_messages,
        is_blocked_on_unacked=several is not None and several.is_blocked,
        waiting_for_redelivery=0 if several is None else len(several.replay),
        delayed_entries=0 if delayed is None else len(delayed),
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
        key_ranges=() if keyed is None else keyed.selector.ranges_of(consumer),
        draining_hashes=() if keyed is None else _draining(consumer, keyed),
    )


def _draining(consumer: Consumer, keyed: KeySharedDispatcher) -> tuple[DrainingHash, ...]:
    return tuple(
        DrainingHash(key_hash=key_hash, unacked_entries=entries)
        for key_hash, (holder, entries) in sorted(keyed.holders.items(), key=lambda item: item[0])
        if holder is consumer and keyed.selector.select(key_hash) is not consumer
    )
