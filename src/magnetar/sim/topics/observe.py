"""Observers: topics as brokers load them, their subscriptions, and consumers as the client has them.

    with observed(watch): …          while it lasts, brokers and clients of this process make watched ones

How:       subclasses of production classes, in the place where production code looks the classes up.
Waiting:   what a subscription could deliver at this moment, from what has gone into it and out of it: consumers that
           came and left, permits that they granted, entries that were sent to them and given back, seen at the
           subscription's own methods and at the consumers' sinks; of the rest the cursor, which knows what is
           acknowledged, and the log, which knows where it ends. Nothing that dispatch itself remembers is asked, but
           for two choices: which consumer of Failover is active, and to which one a key hash is assigned.
Cautious:  what cannot be decided counts as not deliverable. A consumer surely has room when it has at most half of its
           limit unacknowledged: above that, a limit that was reached may still hold.
Read next: invariants.py
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Sequence
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.next_consumer import hash_of_entry
from magnetar.broker.policies.registry import EffectivePolicies
from magnetar.broker.publishing.dedup import Deduplication
from magnetar.broker.publishing.producers import Publish
from magnetar.broker.publishing.topic_publisher import TopicPublisher
from magnetar.broker.subscriptions import subscriptions as broker_subscriptions
from magnetar.broker.subscriptions.consumer import Consumer, ConsumerSink, Delivery, SubscriptionType, messages_of
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.takeover import Client
from magnetar.broker.topics import persistent as broker_persistent_topic
from magnetar.broker.topics import registry as broker_topics
from magnetar.broker.topics.persistent import Lost, PersistentTopic, TopicParts
from magnetar.client import EXCLUSIVE, FAILOVER
from magnetar.client import client as client_module
from magnetar.client.connection import Connection
from magnetar.client.consuming.topic_consumer import TopicConsumer
from magnetar.errors import MagnetarError
from magnetar.names import TopicName
from magnetar.sim.process import PROCESS
from magnetar.sim.topics.watch import Load, Stay, TopicWatch
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, MessageIdData

# --- subscriptions ----------------------------------------------------------------------------------------------------


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
            self._subscription.entries_of_world[self._subscription.topic, entry.position] = entry
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
            entry = self.entries_of_world.get((self.topic, position))
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


# --- topics and consumers ---------------------------------------------------------------------------------------------


class WatchedPublisher(TopicPublisher):
    watched_by: TopicWatch

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.undecided: dict[tuple[str, int], int] = {}
        """(Producer, highest sequence id) → how many such entries were handed to the log and are undecided."""
        self.bodies: dict[tuple[str, int], bytes] = {}
        """Of these entries, if they have keys."""

    def publish(self, publish: Publish, body: object, *, counts: bool = True) -> None:
        key = _key_of(publish)
        self.undecided[key] = self.undecided.get(key, 0) + 1
        if self.watched_by.topic_options.keys:
            self.bodies[key] = bytes(body)  # type: ignore[call-overload]
        try:
            super().publish(publish, body, counts=counts)  # type: ignore[arg-type]
        except MagnetarError:
            self._decided(publish)
            raise

    def _is_new(self, dedup: Deduplication, publish: Publish, counts: bool) -> bool:
        is_new = super()._is_new(dedup, publish, counts)
        if not is_new:
            self._decided(publish)
            self.watched_by.counters["duplicates"] += 1
            self.watched_by.tell("on_duplicate", self, *_key_of(publish))
        return is_new

    def _decided(self, publish: Publish) -> None:
        key = _key_of(publish)
        left = self.undecided.pop(key, 1) - 1
        if left:
            self.undecided[key] = left

    def on_appended(self, first: Position, tokens: Sequence[Publish]) -> None:
        for at, publish in enumerate(tokens):
            self._decided(publish)
            self._note_entry(Position(first.ledger_id, first.entry_id + at), publish)
        self.watched_by.counters["entries stored"] += len(tokens)
        super().on_appended(first, tokens)

    def _note_entry(self, position: Position, publish: Publish) -> None:
        body = self.bodies.pop(_key_of(publish), None)
        if body is not None:
            self.watched_by.entries[str(self._topic), position] = LogEntry(position, body)

    def on_append_failed(self, tokens: Sequence[Publish], error: MagnetarError) -> None:
        for publish in tokens:
            self._decided(publish)
        self.watched_by.counters["publishes failed"] += len(tokens)
        super().on_append_failed(tokens, error)


def _key_of(publish: Publish) -> tuple[str, int]:
    producer, sequence_id, highest_sequence_id, _, _, _ = publish
    return producer.name, max(sequence_id, highest_sequence_id)


class WatchedTopic(PersistentTopic):
    watched_by: TopicWatch

    @classmethod
    async def open(
        cls, name: TopicName, parts: TopicParts, policies: EffectivePolicies, on_lost: Lost, *, create: bool = True
    ) -> PersistentTopic:
        watch, broker = cls.watched_by, PROCESS.get().name
        topic = str(name)
        progress = list(watch.told.subscriptions_of(topic))
        acked = {each.name: each.confirmed_entries() for each in progress}
        marks = {each.name: watch.marks.get((topic, each.name), (-1, -1)) for each in progress}
        watch.note(f"{broker} loads {topic}")
        try:
            opened = await super().open(name, parts, policies, on_lost, create=create)
        except MagnetarError as error:
            watch.counters["loads failed"] += 1
            watch.note(f"{broker} did not load {topic}: {type(error).__name__}: {error}")
            raise
        assert isinstance(opened, WatchedTopic)
        watch.counters["topics loaded"] += 1
        watch.note(f"{broker} serves {topic} from {opened.log.last_confirmed} on")
        watch.tell("on_loaded", Load(opened, broker, acked, marks))
        return opened

    def on_fenced(self, error: MagnetarError) -> None:
        watch, broker = self.watched_by, PROCESS.get().name
        watch.counters["topics lost"] += 1
        watch.note(f"{broker} gives {self.name} up: {error}")
        super().on_fenced(error)


class WatchedConsumer(TopicConsumer):
    watched_by: TopicWatch
    _stay: Stay | None = None

    def _on_attached(self, connection: Connection) -> None:
        self._begin_stay(is_ordered=self._options.type in (EXCLUSIVE, FAILOVER))
        super()._on_attached(connection)

    def _begin_stay(self, *, is_ordered: bool) -> None:
        if self._start is not None:
            return  # A reader's: the broker keeps nothing for it.
        self._stay = Stay(self._options.name, self.subscription, self.topic, is_ordered)
        self.watched_by.told.stays.append(self._stay)

    def on_frame(self, frame: Frame) -> None:
        command, stay = frame.command, self._stay
        if stay is not None and command.type == BaseCommand.MESSAGE:
            message_id = command.message.message_id
            stay.entries.append((self.watched_by.now, (message_id.ledgerId, message_id.entryId)))
        elif stay is not None and command.type == BaseCommand.ACTIVE_CONSUMER_CHANGE:
            self._begin_stay(is_ordered=stay.is_ordered)
        super().on_frame(frame)

    def _send_redeliver(self, connection: Connection, ids: Sequence[MessageIdData]) -> None:
        self._begin_stay(is_ordered=False)
        super()._send_redeliver(connection, ids)


@contextlib.contextmanager
def observed(watch: TopicWatch) -> Iterator[None]:
    topic: type[WatchedTopic] = type("WatchedTopicOfRun", (WatchedTopic,), {"watched_by": watch})
    publisher: type[WatchedPublisher] = type("WatchedPublisherOfRun", (WatchedPublisher,), {"watched_by": watch})
    consumer: type[WatchedConsumer] = type("WatchedConsumerOfRun", (WatchedConsumer,), {"watched_by": watch})
    subscription: type[WatchedSubscription] = type(
        "WatchedSubscriptionOfRun", (WatchedSubscription,), {"entries_of_world": watch.entries}
    )
    with (
        patch.object(broker_topics, "PersistentTopic", topic),
        patch.object(broker_persistent_topic, "TopicPublisher", publisher),
        patch.object(broker_subscriptions, "Subscription", subscription),
        patch.object(client_module, "TopicConsumer", consumer),
    ):
        yield
