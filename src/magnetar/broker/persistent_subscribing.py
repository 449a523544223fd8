"""The subscribing side of a topic whose messages are kept: its subscriptions, and where they stand in the log.

Changes:   what is stored of a subscription goes to its end, even if the client that asked for it leaves (finishing.py).
Read next: subscriptions.py, subscription.py; topic/cursors.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from magnetar.broker.compaction import CompactionRuns
from magnetar.broker.consumer import Consumer
from magnetar.broker.names import TopicName
from magnetar.broker.persistent_publishing import PublishingSide
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.subscription import Subscription
from magnetar.broker.subscriptions import Subscriptions
from magnetar.broker.topic import LastMessage, SubscribeOptions, SubscriptionLike
from magnetar.errors import CursorMissingError
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST, Position


class SubscribingSide(PublishingSide):
    """Of a persistent topic, which sets `compaction` and `_subscriptions`."""

    compaction: CompactionRuns
    _subscriptions: Subscriptions

    def __init__(self, name: TopicName, policies: EffectivePolicies) -> None:
        super().__init__(name, policies)
        self._is_gone = False  # Closed or deleted, or about to be.

    def apply(self, policies: EffectivePolicies) -> None:
        super().apply(policies)
        self._subscriptions.apply(policies)

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        return self._subscriptions.by_name

    async def subscribe(self, options: SubscribeOptions, consumer: Consumer) -> Subscription:
        self.require_readable()
        self._require_allowed(options)
        self._require_rate(consumer)
        self.require_consumer_room()
        is_new = options.subscription not in self.subscriptions
        if is_new and options.is_durable and not self.policies.auto_create_subscriptions:
            raise CursorMissingError(
                f"topic {self.name} has no subscription {options.subscription!r}, and none is made by using it: "
                "make it first"
            )
        subscription = await self._subscriptions.get_or_make(options)
        if options.rollback_s > 0 and not subscription.awaits_return:  # Else it comes back to where it sought.
            wanted_ms = self._entropy.wall_ms() - options.rollback_s * 1000
            await self._finish(subscription.seek(await self.log.position_at_time(wanted_ms)))
        try:
            await self._make_way(subscription, consumer)
            self.require_readable()
            subscription.add_consumer(consumer)
        except BaseException:
            await self._subscriptions.end_if_unused(subscription)
            raise
        self.last_used_s = self.loop.time()
        return subscription

    async def create_subscription(
        self, name: str, start: Position, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        self.require_readable()
        return await self._finish(self._subscriptions.make_durable(name, start, properties or {}))

    def subscription(self, name: str) -> Subscription:
        return self._subscriptions.require(name)

    async def unsubscribe(
        self, subscription: SubscriptionLike, consumer: Consumer | None = None, *, force: bool = False
    ) -> None:
        await self._finish(self._subscriptions.unsubscribe(subscription.name, consumer, force=force))
        self.last_used_s = self.loop.time()

    def remove_consumer(self, subscription: SubscriptionLike, consumer: Consumer) -> None:
        super().remove_consumer(subscription, consumer)
        self._on_left(cast("Subscription", subscription))

    def _on_left(self, subscription: Subscription) -> None:
        if not subscription.cursor.is_durable and not subscription.consumers and not self._is_gone:
            self._finish.begin(self._subscriptions.end_if_unused(subscription))

    # --- where they stand ---------------------------------------------------------------------------------------------

    async def seek(
        self,
        subscription: SubscriptionLike,
        position: Position,
        still_unacked: Sequence[int] = (),
        batch_size: int = 0,
    ) -> None:
        await self._finish(cast("Subscription", subscription).seek(position, still_unacked, batch_size))

    async def seek_to_time(self, subscription: SubscriptionLike, publish_ms: int) -> None:
        await self.seek(subscription, await self.log.position_at_time(publish_ms))

    def mark_delete_of(self, subscription: SubscriptionLike) -> Position:
        return cast("Subscription", subscription).cursor.mark_delete

    def backlog_of(self, subscription: SubscriptionLike) -> int:
        return cast("Subscription", subscription).cursor.backlog_entries()

    async def last_message(self, *, read_compacted: bool = False) -> LastMessage:
        last = self.log.last_confirmed
        compacted = self.compaction.view.compacted if read_compacted else None
        entry: LogEntry | None = None
        if compacted is not None and (last <= compacted.horizon or not self.log.chain.contains(last)):
            entry = await compacted.last_entry()
        elif self.log.chain.contains(last):
            entry = next(iter(await self.log.read(last, 1, 1)), None)
        if entry is None:
            return LastMessage(EARLIEST)
        metadata = entry.head.metadata
        is_batch = metadata.HasField("num_messages_in_batch")
        return LastMessage(entry.position, metadata.num_messages_in_batch - 1 if is_batch else -1)
