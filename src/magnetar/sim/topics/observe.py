"""Observers: topics as brokers load them, and consumers as the client has them, each reported to the watch.

    with observed(watch): …          while it lasts, brokers and clients of this process make watched ones

How:       subclasses of production classes, in the place where production code looks the classes up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

from magnetar.broker.policies.registry import EffectivePolicies
from magnetar.broker.publishing.dedup import Deduplication
from magnetar.broker.publishing.producer import Publish
from magnetar.broker.publishing.topic_publisher import TopicPublisher
from magnetar.broker.subscriptions import subscriptions as broker_subscriptions
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
from magnetar.sim.topics.dispatching import WatchedSubscription
from magnetar.sim.topics.watch import Load, Stay, TopicWatch
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, MessageIdData


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
