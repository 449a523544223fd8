"""What a subscription could deliver at this moment, from what has gone into it and out of it.

Truth:     consumers that came and left, permits that they granted, entries that were sent to them and given back, seen
           at the subscription's own methods and at the consumers' sinks; of the rest the cursor, which knows what is
           acknowledged, and the log, which knows where it ends. Nothing that dispatch itself remembers is asked, but
           for two choices: which consumer of Failover is active, and to which one a key hash is assigned.
Cautious:  what cannot be decided counts as not deliverable. A consumer surely has room when it has at most half of its
           limit unacknowledged: above that, a limit that was reached may still hold.
Read next: invariants.py
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any, Final, NamedTuple

from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.next_consumer import hash_of_entry
from magnetar.broker.subscriptions.consumer import Consumer, ConsumerSink, Delivery, SubscriptionType, messages_of
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.takeover import Client
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

_POSITIONS_MAX: Final = 10_000  # That are looked at; a seed has far fewer.


class Waiting(NamedTuple):
    """An entry that could be delivered."""

    position: Position
    consumer: str


class Hand:
    """What one consumer has granted and got."""

    __slots__ = ("consumer", "entries", "permits")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.permits = 0
        self.entries: dict[Position, LogEntry] = {}

    def unacked(self, subscription: WatchedSubscription) -> int:
        cursor = subscription.cursor
        for position in [position for position in self.entries if cursor.is_acknowledged(position)]:
            del self.entries[position]
        return sum(_messages(entry, cursor.ack_set_of(entry.position)) for entry in self.entries.values())


def _messages(entry: LogEntry, ack_set: Sequence[int] | None) -> int:
    return entry.messages if ack_set is None else messages_of(ack_set)


class ObservedSink:
    """A ConsumerSink that sees what goes to its consumer."""

    def __init__(self, sink: ConsumerSink, hand: Hand, subscription: WatchedSubscription) -> None:
        self._sink = sink
        self._hand = hand
        self._subscription = subscription

    @property
    def client(self) -> Client:
        return self._sink.client

    @property
    def is_writable(self) -> bool:
        return self._sink.is_writable

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        self._subscription.deliveries += 1
        for entry, _, ack_set in deliveries:
            self._hand.permits -= _messages(entry, ack_set)
            self._hand.entries[entry.position] = entry
            self._subscription.seen[entry.position] = entry
        self._sink.deliver(deliveries)

    def active_changed(self, is_active: bool) -> None:
        self._sink.active_changed(is_active)

    def reached_end_of_topic(self) -> None:
        self._sink.reached_end_of_topic()

    def disconnect(self, why: str) -> None:
        self._sink.disconnect(why)


class WatchedSubscription(Subscription):
    entries_of_world: dict[tuple[str, Position], LogEntry]
    """By topic and position: what brokers have stored or delivered."""

    def __init__(self, *args: Any, topic: str = "", **settings: Any) -> None:
        super().__init__(*args, topic=topic, **settings)
        self.topic = topic
        self.hands: dict[Consumer, Hand] = {}
        self.deliveries = 0
        self.seen = _Seen(self.entries_of_world, topic)

    # --- what goes in -------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        hand, sink = Hand(consumer), consumer.sink
        consumer.sink = ObservedSink(sink, hand, self)
        try:
            super().add_consumer(consumer)
        except BaseException:
            consumer.sink = sink
            raise
        self.hands[consumer] = hand

    def remove_consumer(self, consumer: Consumer) -> None:
        super().remove_consumer(consumer)
        self.hands.pop(consumer, None)

    def flow(self, consumer: Consumer, permits: int) -> None:
        if consumer in self.hands and permits > 0:
            self.hands[consumer].permits += permits
        super().flow(consumer, permits)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None = None, epoch: int = 0) -> None:
        hand = self.hands.get(consumer)
        if hand is not None and (positions is None or not consumer.type.is_individual):
            hand.entries.clear()
        elif hand is not None and positions is not None:
            for position in positions:
                hand.entries.pop(position, None)
        super().redeliver(consumer, positions, epoch)

    # --- what could come out ------------------------------------------------------------------------------------------

    def waiting(self) -> Waiting | None:
        """An entry that could be delivered now, and to whom; None: there is none, as far as can be said."""
        if not self.hands or self.is_fenced:
            return None
        if self.type in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
            return self._waiting_for_active()
        able = self._able()
        if not able:
            return None
        taken = {position for hand in self.hands.values() for position in hand.entries}
        if self.type is SubscriptionType.KEY_SHARED:
            return self._waiting_for_key(able, taken)
        first = next(self._undelivered(taken), None)
        return None if first is None else Waiting(first, able[0].consumer.name)

    def _waiting_for_active(self) -> Waiting | None:
        hand = self.hands.get(self.active_consumer) if self.active_consumer is not None else None
        hand = hand or next(iter(self.hands.values()))
        if hand.permits <= 0 or not hand.consumer.sink.is_writable or hand.consumer.read_compacted:
            return None
        first = next(self._undelivered(hand.entries.keys()), None)
        return None if first is None else Waiting(first, hand.consumer.name)

    def _able(self) -> list[Hand]:
        """Who surely has permits and room."""
        limits = self._context.limits
        unacked = {hand: hand.unacked(self) for hand in self.hands.values()}
        of_all, each = limits.unacked_messages_per_subscription_max, limits.unacked_messages_per_consumer_max
        if of_all and sum(unacked.values()) >= max(1, of_all // 2):
            return []
        return [
            hand
            for hand in self.hands.values()
            if hand.permits > 0 and hand.consumer.sink.is_writable and (not each or unacked[hand] <= each // 2)
        ]

    def _undelivered(self, taken: Container[Position]) -> Iterator[Position]:
        """Unacknowledged entries that are not among these, in order."""
        cursor, last = self.cursor, self._context.source.last_confirmed
        position = cursor.next_unacknowledged(cursor.mark_delete)
        for _ in range(_POSITIONS_MAX):
            if position > last:
                return
            if position not in taken:
                yield position
            position = cursor.next_unacknowledged(position.next)

    def _waiting_for_key(self, able: list[Hand], taken: set[Position]) -> Waiting | None:
        dispatcher = self._dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        assignment = dispatcher.assignment
        earlier: set[int] = set()
        holders = {
            (hash_of_entry(entry, assignment.first_hash), hand.consumer)
            for hand in self.hands.values()
            for entry in hand.entries.values()
        }
        look_ahead = self._look_ahead()
        for number, position in enumerate(self._undelivered(taken)):
            entry = self.seen.get(position)
            if entry is None or number >= look_ahead:
                return None  # Its key is not known, or it need not have been read.
            key_hash = hash_of_entry(entry, assignment.first_hash)
            if key_hash in earlier:
                continue
            earlier.add(key_hash)
            consumer = assignment.owner_of(key_hash)
            is_held = any(held == key_hash and other is not consumer for held, other in holders)
            if not is_held and any(hand.consumer is consumer for hand in able):
                assert consumer is not None
                return Waiting(position, consumer.name)
        return None

    def _look_ahead(self) -> float:
        config = self._context.config
        limits = (
            config.key_shared_look_ahead_per_consumer * len(self.hands),
            config.key_shared_look_ahead_per_subscription,
        )
        return min((limit for limit in limits if limit), default=float("inf"))


class _Seen:
    """The entries of one topic among those of all."""

    def __init__(self, entries: dict[tuple[str, Position], LogEntry], topic: str) -> None:
        self._entries = entries
        self._topic = topic

    def __setitem__(self, position: Position, entry: LogEntry) -> None:
        self._entries[self._topic, position] = entry

    def get(self, position: Position) -> LogEntry | None:
        return self._entries.get((self._topic, position))
