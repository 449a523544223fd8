"""Taps: topics as brokers load them, and consumers as the client has them, with somebody who sees.

    with tapped(watch): …          while it lasts, brokers and clients of this process make watched ones

How:       subclasses of production classes, in the place where production code looks the classes up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from unittest.mock import patch

from magnetar.broker import topics as broker_topics
from magnetar.broker.dedup import Deduplication
from magnetar.broker.names import TopicName
from magnetar.broker.persistent_topic import Lost, PersistentTopic, TopicParts
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.producer import Publish
from magnetar.client import SHARED
from magnetar.client import client as client_module
from magnetar.client.connection import Connection
from magnetar.client.topic_consumer import TopicConsumer
from magnetar.errors import MagnetarError
from magnetar.sim.process import PROCESS
from magnetar.sim.topics.history import Stay
from magnetar.sim.topics.watch import Load, TopicWatch
from magnetar.topic.position import Position
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, MessageIdData


class WatchedTopic(PersistentTopic):
    watched_by: TopicWatch
    undecided: dict[tuple[str, int], int]
    """(Producer, highest sequence id) → how many such entries are on their way to the log."""

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
        opened.undecided = {}
        watch.counters["topics loaded"] += 1
        watch.note(f"{broker} serves {topic} from {opened.log.last_confirmed} on")
        watch.tell("on_loaded", Load(opened, broker, acked, marks))
        return opened

    def publish(self, publish: Publish, body: object, *, counts: bool = True) -> None:
        key = publish[0].name, max(publish[1], publish[2])
        self.undecided[key] = self.undecided.get(key, 0) + 1
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
            self.watched_by.tell("on_duplicate", self, publish[0].name, max(publish[1], publish[2]))
        return is_new

    def _decided(self, publish: Publish) -> None:
        key = publish[0].name, max(publish[1], publish[2])
        left = self.undecided.pop(key, 1) - 1
        if left:
            self.undecided[key] = left

    def on_appended(self, first: Position, tokens: Sequence[Publish]) -> None:
        for publish in tokens:
            self._decided(publish)
        self.watched_by.counters["entries stored"] += len(tokens)
        super().on_appended(first, tokens)

    def on_append_failed(self, tokens: Sequence[Publish], error: MagnetarError) -> None:
        for publish in tokens:
            self._decided(publish)
        self.watched_by.counters["publishes failed"] += len(tokens)
        super().on_append_failed(tokens, error)

    def on_fenced(self, error: MagnetarError) -> None:
        watch, broker = self.watched_by, PROCESS.get().name
        watch.counters["topics lost"] += 1
        watch.note(f"{broker} gives {self.name} up: {error}")
        super().on_fenced(error)


class WatchedConsumer(TopicConsumer):
    watched_by: TopicWatch
    _stay: Stay | None = None

    def _on_attached(self, connection: Connection) -> None:
        self._begin_stay(is_ordered=self._options.type != SHARED)
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
def tapped(watch: TopicWatch) -> Iterator[None]:
    topic: type[WatchedTopic] = type("WatchedTopicOfRun", (WatchedTopic,), {"watched_by": watch})
    consumer: type[WatchedConsumer] = type("WatchedConsumerOfRun", (WatchedConsumer,), {"watched_by": watch})
    with patch.object(broker_topics, "PersistentTopic", topic), patch.object(client_module, "TopicConsumer", consumer):
        yield
