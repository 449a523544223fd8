"""What holds entries back on Shared and Key_Shared subscriptions, besides what is true of every kind."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.holding import Hold, Holding

if TYPE_CHECKING:
    from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
    from magnetar.broker.dispatch.multi import MultiConsumerDispatcher
    from magnetar.broker.dispatch.shared import SharedDispatcher

_HASHES_SHOWN_MAX: Final = 100  # Hashes that are named; the rest are as many facts of the same kind.


def multi_holdings(dispatcher: MultiConsumerDispatcher, context: DispatchContext) -> list[Holding]:
    return [*_unacked_limit(dispatcher, context), *_ack_state(dispatcher, context), *_delays(dispatcher, context)]


def _unacked_limit(dispatcher: MultiConsumerDispatcher, context: DispatchContext) -> list[Holding]:
    if not dispatcher.is_blocked:
        return []
    limit = context.limits.unacked_messages_per_subscription_max
    return [
        Holding(
            hold=Hold.UNACKED_LIMIT_SUBSCRIPTION,
            text=f"{dispatcher.unacked_messages} messages of the subscription are unacknowledged, the limit is {limit}",
            advice=f"acknowledge until fewer than {max(1, limit // 2)} are left, or raise "
            "maxUnackedMessagesPerSubscription",
        )
    ]


def _ack_state(dispatcher: MultiConsumerDispatcher, context: DispatchContext) -> list[Holding]:
    if not dispatcher.waits_for_gaps or dispatcher.next_read > context.source.last_confirmed:
        return []
    return [
        Holding(
            hold=Hold.ACK_STATE,
            text="more entries are acknowledged out of order than the cursor stores, and the policy "
            "dispatcherPauseOnAckStatePersistent lets nothing further be delivered then",
            position=dispatcher.next_read,
            advice="acknowledge the oldest ones that are delivered, or raise cursor.ranges_stored_max",
        )
    ]


def _delays(dispatcher: MultiConsumerDispatcher, context: DispatchContext) -> list[Holding]:
    delayed = dispatcher.delayed
    if delayed is None or not (len(delayed) or delayed.has_more):
        return []
    due_ms = delayed.next_due_ms
    more = ", and more that memory has no room for" if delayed.has_more else ""
    found = [
        Holding(
            hold=Hold.DELAYED,
            text=f"{len(delayed)} entries wait for their delivery time{more}",
            entries=len(delayed),
            until_ms=due_ms,
        )
    ]
    if delayed.is_scanning:
        found.append(
            Holding(hold=Hold.DELAY_SCAN, text="delayed entries that did not fit into memory are being found again")
        )
    if delayed.pauses_reading:
        found.append(
            Holding(
                hold=Hold.DELAY_PAUSED,
                text=f"{len(delayed)} entries in a row have rising delivery times, so reading waits for the first",
                position=dispatcher.next_read,
                until_ms=due_ms,
                advice=f"raise dispatch.delayed_lookahead_entries ({context.config.delayed_lookahead_entries}), or set "
                "it to 0, to read on",
            )
        )
    return found


def chunk_holdings(dispatcher: SharedDispatcher) -> list[Holding]:
    return [
        Holding(
            hold=Hold.CHUNKS_WAIT,
            text=f"{len(positions)} chunks wait for consumer {consumer.name!r}, which has the first ones",
            consumer=consumer.name,
            position=positions[0],
            entries=len(positions),
            advice="let that consumer receive, or close it",
        )
        for consumer, positions in dispatcher.waiting_chunks.items()
    ]


def key_holdings(dispatcher: KeySharedDispatcher) -> list[Holding]:
    """By looking at all that waits: for questions of people."""
    waiting = Counter(dispatcher.replay.hash_of(position) for position in dispatcher.replay)
    found: list[Holding] = []
    for key_hash, entries in sorted(waiting.items()):
        consumer = dispatcher.selector.select(key_hash) if key_hash else None
        holder = dispatcher.holders.get(key_hash)
        if key_hash and consumer is None:
            found.append(
                Holding(
                    hold=Hold.HASH_UNASSIGNED,
                    text=f"no consumer takes key hash {key_hash}",
                    key_hash=key_hash,
                    entries=entries,
                    advice="connect a consumer whose ranges include it",
                )
            )
        elif consumer is not None and holder is not None and holder[0] is not consumer:
            found.append(
                Holding(
                    hold=Hold.HASH_DRAINING,
                    text=f"key hash {key_hash} belongs to consumer {consumer.name!r} now, and consumer "
                    f"{holder[0].name!r} still has {holder[1]} unacknowledged entries of it",
                    consumer=holder[0].name,
                    key_hash=key_hash,
                    entries=entries,
                    advice=f"let consumer {holder[0].name!r} acknowledge, or close it",
                )
            )
    return found[:_HASHES_SHOWN_MAX] + _look_ahead(dispatcher)


def _look_ahead(dispatcher: KeySharedDispatcher) -> list[Holding]:
    limit = dispatcher.look_ahead_limit()
    if not limit or len(dispatcher.replay) < limit:
        return []
    return [
        Holding(
            hold=Hold.LOOK_AHEAD_LIMIT,
            text=f"{len(dispatcher.replay)} entries wait for their key's consumer, so nothing further is read",
            position=dispatcher.next_read,
            advice="let the consumers of these keys receive and acknowledge",
        )
    ]
