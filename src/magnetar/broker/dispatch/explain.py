"""Explanations: why a subscription does not deliver, and where one entry is. Taken from the state on demand."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.broker.dispatch.backlog import Backlog
from magnetar.broker.dispatch.blockers import Blocker, BlockerKind, Explanation, PositionState, Progress
from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.topic.position import Position
from magnetar.words import counted


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Describes entries that wait to be delivered."""

    entries: int
    messages: int


def explain(context: DispatchContext, dispatcher: Dispatcher | None, fenced: str, backlog: Backlog) -> Explanation:
    """`fenced`: why no consumer may connect now, or empty. `backlog` was counted just before."""
    blockers: list[Blocker] = []
    if fenced:
        blockers.append(Blocker(kind=BlockerKind.FENCED, text=f"the subscription is closed to consumers: {fenced}"))
    elif not backlog.entries:
        blockers.append(Blocker(kind=BlockerKind.CAUGHT_UP, text="every message of the topic is acknowledged"))
    elif dispatcher is None or not dispatcher.consumers:
        blockers.append(
            Blocker(
                kind=BlockerKind.NO_CONSUMER,
                text=f"no consumer is connected; {backlog.text} {'waits' if backlog.messages == 1 else 'wait'}",
                entries=backlog.entries,
                messages=backlog.messages,
                position=context.cursor.next_unacknowledged(context.cursor.mark_delete),
                advice="connect a consumer",
            )
        )
    else:
        blockers.extend(_of_connected(context, dispatcher, backlog))
    return Explanation(
        subscription=context.subscription,
        type="" if dispatcher is None else dispatcher.type.shown,
        mark_delete=context.cursor.mark_delete,
        next_read=None if dispatcher is None else dispatcher.next_read,
        backlog_entries=backlog.entries,
        backlog_messages=backlog.messages,
        is_exact=backlog.is_exact,
        blockers=tuple(blockers),
    )


def _of_connected(context: DispatchContext, dispatcher: Dispatcher, backlog: Backlog) -> list[Blocker]:
    unread = _Waiting(backlog.unread_entries, backlog.unread_messages)
    read = dispatcher.waiting_entries
    waiting = _Waiting(unread.entries + read, unread.messages + (_read_messages(dispatcher, backlog) if read else 0))
    blockers = dispatcher.blockers()
    if waiting.entries:
        blockers += _of_reading(context, dispatcher, unread)
        blockers += _of_consumers(context, dispatcher, waiting)
    blockers += _in_hand(dispatcher, backlog)
    if not blockers:
        text = "messages are about to be delivered"
        kind = BlockerKind.READING
        blockers.append(Blocker(kind=kind, text=text, entries=waiting.entries, messages=waiting.messages))
    return blockers


def _read_messages(dispatcher: Dispatcher, backlog: Backlog) -> int:
    """Returns the messages that were read and wait again: what is neither unread nor with a consumer nor delayed."""
    with_consumers = sum(consumer.unacked_messages for consumer in dispatcher.consumers)
    rest = backlog.messages - backlog.unread_messages - with_consumers - dispatcher.delayed_entries
    return max(rest, dispatcher.waiting_entries)


def _of_reading(context: DispatchContext, dispatcher: Dispatcher, unread: _Waiting) -> list[Blocker]:
    found: list[Blocker] = []
    reader = dispatcher.reader
    if dispatcher.transactional is not None:
        found.append(
            Blocker(
                kind=BlockerKind.TRANSACTIONAL,
                text=f"entry {dispatcher.transactional} belongs to a transaction, and transactions are not supported",
                position=dispatcher.transactional,
                entries=unread.entries,
                messages=unread.messages,
                advice="skip it, or seek to a position after it",
            )
        )
    if reader.trouble is not None:
        trouble = reader.trouble
        found.append(
            Blocker(
                kind=BlockerKind.UNREADABLE,
                text=f"ledger {trouble.position.ledger_id} cannot be read at entry {trouble.position.entry_id} "
                f"({trouble.attempts} attempts): {trouble.error}",
                position=trouble.position,
                entries=unread.entries,
                messages=unread.messages,
                advice=(
                    "start its bookies again; if the ledger is lost, set dispatch.skip_unreadable, or seek to a "
                    "position after it"
                ),
            )
        )
    elif reader.reads_at is not None:
        found.append(
            Blocker(
                kind=BlockerKind.READING,
                text=f"messages are being read from bookies at {reader.reads_at}",
                position=reader.reads_at,
            )
        )
    if dispatcher.has_rate_timer:
        found.append(_rate(context))
    return found


def _rate(context: DispatchContext) -> Blocker:
    limits = ", ".join(
        f"{rate.name}: {rate.messages_per_s:g} messages/s, {rate.bytes_per_s:g} bytes/s (0: no limit)"
        for rate in context.rates
        if rate.is_limited
    )
    return Blocker(
        kind=BlockerKind.RATE_LIMIT,
        text=f"the dispatch rate is used up ({limits})",
        advice="raise the dispatch rate of broker, topic or subscription",
    )


def _of_consumers(context: DispatchContext, dispatcher: Dispatcher, waiting: _Waiting) -> list[Blocker]:
    active = dispatcher.active_consumer
    considered = dispatcher.consumers if active is None else [active]
    return [blocker for consumer in considered for blocker in _of_consumer(context, consumer, waiting)]


def _of_consumer(context: DispatchContext, consumer: Consumer, waiting: _Waiting) -> list[Blocker]:
    found: list[Blocker] = []
    if consumer.permits <= 0:
        found.append(
            Blocker(
                kind=BlockerKind.NO_PERMITS,
                text=f"consumer {consumer.shown} has granted no permits ({consumer.permits})",
                consumer=consumer.name,
                entries=waiting.entries,
                messages=waiting.messages,
                advice="receive messages in this consumer: its queue is full, or it does not ask for more",
            )
        )
    if consumer.is_blocked:
        limit = context.unacked_per_consumer_max
        found.append(
            Blocker(
                kind=BlockerKind.UNACKED_LIMIT_CONSUMER,
                text=f"consumer {consumer.shown} has {counted(consumer.unacked_messages, 'message')} unacknowledged, "
                f"the limit is {limit}",
                consumer=consumer.name,
                entries=waiting.entries,
                messages=waiting.messages,
                advice=f"let it acknowledge until {limit // 2} are left, or raise maxUnackedMessagesPerConsumer",
            )
        )
    if not consumer.sink.is_writable:
        found.append(
            Blocker(
                kind=BlockerKind.CONNECTION_FULL,
                text=f"the connection of consumer {consumer.shown} has not taken what was sent before",
                consumer=consumer.name,
                entries=waiting.entries,
                messages=waiting.messages,
                advice="let the client read faster, or look for a slow network",
            )
        )
    return found


def _in_hand(dispatcher: Dispatcher, backlog: Backlog) -> list[Blocker]:
    active = dispatcher.active_consumer
    if active is not None:
        entries = backlog.entries - backlog.unread_entries
        messages = max(backlog.messages - backlog.unread_messages, entries)
        in_hand = [(active, entries, backlog.counted(messages), messages)]
    else:
        in_hand = [
            (each, len(each.pending), counted(each.unacked_messages, "message"), each.unacked_messages)
            for each in dispatcher.consumers
        ]
    return [
        Blocker(
            kind=BlockerKind.UNACKED,
            text=f"consumer {consumer.shown} has not acknowledged {text}",
            consumer=consumer.name,
            position=min(consumer.pending, default=None),
            entries=entries,
            messages=messages,
            advice="acknowledge these messages, or acknowledge them negatively to have them redelivered",
        )
        for consumer, entries, text, messages in in_hand
        if entries > 0
    ]


def state_of(context: DispatchContext, dispatcher: Dispatcher | None, position: Position) -> PositionState:
    chain = context.source.chain
    if context.cursor.is_acknowledged(position):
        return PositionState(position=position, progress=Progress.ACKNOWLEDGED)
    if not chain.contains(position):
        return PositionState(position=position, progress=Progress.NOT_THERE)
    found = None if dispatcher is None else dispatcher.state_of(position)
    if found is not None:
        return found
    if dispatcher is None or position >= dispatcher.next_read:
        first = context.cursor.mark_delete
        before = chain.entries_between(first, chain.previous_position(position))
        return PositionState(position=position, progress=Progress.NOT_READ, entries_before=before)
    return PositionState(position=position, progress=Progress.READ)
