"""Explanations: the facts of every kind of dispatch, gathered from its state when somebody asks."""

from __future__ import annotations

from magnetar.broker.consumer import Consumer, SubscriptionType
from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.holding import Explanation, Hold, Holding, PositionState, Progress
from magnetar.broker.dispatch.multi import MultiConsumerDispatcher
from magnetar.topic.position import Position


def explain(context: DispatchContext, dispatcher: Dispatcher | None, fenced: str) -> Explanation:
    """`fenced`: why no consumer may be connected now, or empty."""
    backlog = context.cursor.backlog_entries()
    holdings: list[Holding] = []
    if fenced:
        holdings.append(Holding(hold=Hold.FENCED, text=f"the subscription is closed to consumers: {fenced}"))
    elif not backlog:
        holdings.append(Holding(hold=Hold.CAUGHT_UP, text="every entry of the topic is acknowledged"))
    elif dispatcher is None or not dispatcher.consumers:
        holdings.append(
            Holding(
                hold=Hold.NO_CONSUMER,
                text=f"no consumer is connected, and {backlog} entries wait",
                entries=backlog,
                position=context.cursor.next_unacknowledged(context.cursor.mark_delete),
                advice="connect a consumer",
            )
        )
    else:
        holdings.extend(_of_connected(context, dispatcher, backlog))
    return Explanation(
        subscription=context.subscription,
        type="" if dispatcher is None else dispatcher.type.shown,
        mark_delete=context.cursor.mark_delete,
        next_read=None if dispatcher is None else dispatcher.next_read,
        backlog_entries=backlog,
        holdings=tuple(holdings),
    )


def _of_connected(context: DispatchContext, dispatcher: Dispatcher, backlog: int) -> list[Holding]:
    unread = _unread(context, dispatcher)
    waiting = len(dispatcher.replay) if isinstance(dispatcher, MultiConsumerDispatcher) else 0
    holdings = dispatcher.holdings()
    if unread or waiting:
        holdings += _of_reading(context, dispatcher, unread)
        holdings += _of_consumers(context, dispatcher, unread + waiting)
    holdings += _in_hand(dispatcher, backlog - unread)
    return holdings or [Holding(hold=Hold.READING, text="entries are about to be delivered", entries=unread + waiting)]


def _unread(context: DispatchContext, dispatcher: Dispatcher) -> int:
    before = Position(dispatcher.next_read.ledger_id, dispatcher.next_read.entry_id - 1)
    return context.source.chain.entries_between(before, context.source.last_confirmed)


def _of_reading(context: DispatchContext, dispatcher: Dispatcher, unread: int) -> list[Holding]:
    found: list[Holding] = []
    reader = dispatcher.reader
    if dispatcher.transactional is not None:
        found.append(
            Holding(
                hold=Hold.TRANSACTIONAL,
                text=f"entry {dispatcher.transactional} belongs to a transaction, and transactions are not supported",
                position=dispatcher.transactional,
                entries=unread,
                advice="skip it, or seek behind it",
            )
        )
    if reader.trouble is not None:
        trouble = reader.trouble
        found.append(
            Holding(
                hold=Hold.UNREADABLE,
                text=f"ledger {trouble.position.ledger_id} cannot be read at entry {trouble.position.entry_id} "
                f"({trouble.attempts} attempts): {trouble.error}",
                position=trouble.position,
                entries=unread,
                advice="bring its bookies back; if it is lost, set dispatch.skip_unreadable, or seek behind it",
            )
        )
    elif reader.reads_at is not None:
        found.append(
            Holding(
                hold=Hold.READING,
                text=f"entries are being read from bookies at {reader.reads_at}",
                position=reader.reads_at,
            )
        )
    if dispatcher.has_rate_timer:
        found.append(_rate(context))
    return found


def _rate(context: DispatchContext) -> Holding:
    limits = ", ".join(
        f"{rate.name}: {rate.messages_per_s:g} messages/s, {rate.bytes_per_s:g} bytes/s (0: no limit)"
        for rate in context.rates
        if rate.is_limited
    )
    return Holding(
        hold=Hold.RATE_LIMIT,
        text=f"the dispatch rate is used up ({limits})",
        advice="raise the dispatch rate of broker, topic or subscription",
    )


def _of_consumers(context: DispatchContext, dispatcher: Dispatcher, entries: int) -> list[Holding]:
    active = dispatcher.active_consumer
    considered = dispatcher.consumers if active is None else [active]
    return [holding for consumer in considered for holding in _of_consumer(context, consumer, entries)]


def _of_consumer(context: DispatchContext, consumer: Consumer, entries: int) -> list[Holding]:
    found: list[Holding] = []
    if consumer.permits <= 0:
        found.append(
            Holding(
                hold=Hold.NO_PERMITS,
                text=f"consumer {consumer.name!r} has granted no permits ({consumer.permits})",
                consumer=consumer.name,
                entries=entries,
                advice="let it receive: its queue is full, or it is not asking",
            )
        )
    if consumer.is_blocked:
        limit = context.unacked_per_consumer_max
        found.append(
            Holding(
                hold=Hold.UNACKED_LIMIT_CONSUMER,
                text=f"consumer {consumer.name!r} has {consumer.unacked_messages} messages unacknowledged, the limit "
                f"is {limit}",
                consumer=consumer.name,
                entries=entries,
                advice=f"let it acknowledge until {limit // 2} are left, or raise maxUnackedMessagesPerConsumer",
            )
        )
    if not consumer.sink.is_writable:
        found.append(
            Holding(
                hold=Hold.CONNECTION_FULL,
                text=f"the connection of consumer {consumer.name!r} has not taken what was sent before",
                consumer=consumer.name,
                entries=entries,
                advice="let the client read faster, or look for a slow network",
            )
        )
    return found


def _in_hand(dispatcher: Dispatcher, read_and_unacked: int) -> list[Holding]:
    active = dispatcher.active_consumer
    if active is not None:
        in_hand = [(active, read_and_unacked)]
    else:
        in_hand = [(consumer, len(consumer.pending)) for consumer in dispatcher.consumers]
    return [
        Holding(
            hold=Hold.UNACKED,
            text=f"consumer {consumer.name!r} has {entries} entries that it has not acknowledged",
            consumer=consumer.name,
            position=min(consumer.pending, default=None),
            entries=entries,
            advice="let it acknowledge, or give them back",
        )
        for consumer, entries in in_hand
        if entries > 0
    ]


def state_of(context: DispatchContext, dispatcher: Dispatcher | None, position: Position) -> PositionState:
    chain = context.source.chain
    if context.cursor.is_acknowledged(position):
        return PositionState(position=position, progress=Progress.ACKNOWLEDGED)
    if not chain.contains(position):
        return PositionState(position=position, progress=Progress.NOT_THERE)
    if isinstance(dispatcher, MultiConsumerDispatcher):
        found = _state_among(dispatcher, position)
        if found is not None:
            return found
    if dispatcher is None or position >= dispatcher.next_read:
        first = context.cursor.mark_delete
        before = chain.entries_between(first, chain.previous_position(position))
        return PositionState(position=position, progress=Progress.NOT_READ, entries_before=before)
    active = dispatcher.active_consumer
    if active is not None and dispatcher.type in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
        return PositionState(position=position, progress=Progress.WITH_CONSUMER, consumer=active.name)
    return PositionState(position=position, progress=Progress.READ)


def _state_among(dispatcher: MultiConsumerDispatcher, position: Position) -> PositionState | None:
    count = dispatcher.redeliveries.get(position, 0)
    for consumer in dispatcher.consumers:
        pending = consumer.pending.get(position)
        if pending is not None:
            return PositionState(
                position=position,
                progress=Progress.WITH_CONSUMER,
                consumer=consumer.name,
                unacked_messages=pending[0],
                redelivery_count=count,
            )
    if position in dispatcher.replay:
        return PositionState(position=position, progress=Progress.WAITS_FOR_REDELIVERY, redelivery_count=count)
    if dispatcher.delayed is not None and dispatcher.delayed.contains(position):
        return PositionState(position=position, progress=Progress.DELAYED)
    return None
