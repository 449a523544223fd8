"""A topic whose messages are stored: its log, its subscriptions, its publisher; how it begins and ends.

Order:     It is loaded so: log (fences the previous owner) → cursors → deduplication, replayed whole → then it serves.
           It is closed so: no client is let in; producers and consumers are notified before anything is waited for;
           cursors are stored; the log is closed. If that takes too long, all of it is given up, and the next owner
           recovers what was not stored.
Failure:   When another owner took over, or the log cannot continue, nothing more is taken, all clients are
           disconnected, and `on_lost` asks the registry to unload it. Clients that come back find it loaded again, here
           or elsewhere.
Read next: broker/publishing/topic_publisher.py, broker/subscriptions/subscriptions.py,
           broker/upkeep/backlog_limiter.py, broker/upkeep/upkeep.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from magnetar.broker.policies.registry import EffectivePolicies
from magnetar.broker.publishing.topic_publisher import TopicPublisher
from magnetar.broker.staged.progress import has_progress, unfinished
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.subscriptions.subscriptions import Subscriptions
from magnetar.broker.topics.topic import LastMessage, SubscribeOptions, SubscriptionLike, Topic
from magnetar.broker.upkeep.backlog_limiter import BacklogLimiter
from magnetar.broker.upkeep.compaction import CompactionRuns
from magnetar.config.root import Config
from magnetar.config.topic import TopicConfig
from magnetar.errors import CursorMissingError, MagnetarError, NotAllowedError, TopicTerminatedError
from magnetar.ledger.client import LedgerClient
from magnetar.names import TopicName
from magnetar.quorum.sizes import QuorumSizes
from magnetar.topic.compaction import TopicCompaction
from magnetar.topic.cursor.cursors import Cursors
from magnetar.topic.cursor.ledger_storage import CursorContext
from magnetar.topic.entry_format.messages import last_batch_index
from magnetar.topic.log.log import TopicLog
from magnetar.topic.log.managed_ledger import LogContext
from magnetar.topic.position import EARLIEST, Position

log = logging.getLogger(__name__)

EPOCH_PROPERTY: Final = "pulsar.topic.epoch"

Lost = Callable[["PersistentTopic", MagnetarError], None]


@dataclass(frozen=True, slots=True)
class TopicParts:
    """Shared by the persistent topics of a broker."""

    log: LogContext
    config: Config


class PersistentTopic(Topic):
    is_persistent = True
    publisher: TopicPublisher
    log: TopicLog
    cursors: Cursors
    compaction: CompactionRuns
    subscriptions: Subscriptions
    quota: BacklogLimiter

    def __init__(self, name: TopicName, parts: TopicParts, policies: EffectivePolicies, on_lost: Lost) -> None:
        """For `open` only."""
        super().__init__(name, policies)
        self.publisher = TopicPublisher(name, policies, parts.config, parts.log.entropy, self.on_fenced)
        self._parts = parts
        self._entropy = parts.log.entropy
        self._on_lost = on_lost
        self._is_fenced = False
        self._is_gone = False  # Closed or deleted, or about to be.

    @classmethod
    async def open(
        cls,
        name: TopicName,
        parts: TopicParts,
        policies: EffectivePolicies,
        on_lost: Lost,
        *,
        create: bool = True,
    ) -> PersistentTopic:
        """TopicNotFoundError without `create`. The caller brings the timeout."""
        topic = cls(name, parts, policies, on_lost)
        topic.log = topic.publisher.log = await TopicLog.open(
            name.log_name, parts.log, _config_for(parts.config.topic, policies), topic.publisher, create=create
        )
        try:
            await topic._open_rest()
        except BaseException:
            await topic.log.aclose()
            raise
        return topic

    async def _open_rest(self) -> None:
        config, parts = self._parts.config, self._parts.log
        quorums = _config_for(config.topic, self.policies)
        sizes = QuorumSizes(quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum)
        for key, start in unfinished(self.log.properties).items():
            self.log.hold(key, start)
        cursor_context = CursorContext(parts.client, parts.store, parts.entropy, sizes, config.cursor)
        self.cursors = await Cursors.open(
            self.name.log_name,
            self.log.chain,
            cursor_context,
            on_fenced=self.on_fenced,
            is_new=self.log.is_new,
        )
        self.compaction = CompactionRuns(TopicCompaction(str(self.name), self.log, parts, quorums), self.cursors)
        try:
            if len(self.cursors):
                await self._require_not_overtaken()
            await self.compaction.restore()
            self.subscriptions = Subscriptions(
                self.name,
                self.log,
                self.compaction.view,
                self.cursors,
                config.dispatch,
                parts.entropy,
                self.policies,
                self._on_left,
            )
            self.quota = BacklogLimiter(self.name, self.policies, self.log, self.subscriptions)
            if epoch := self.log.properties.get(EPOCH_PROPERTY):
                self.producers.epoch = int(epoch)
            await self.publisher.begin(self.cursors)
        except BaseException:
            await self.cursors.aclose()
            raise

    async def _require_not_overtaken(self) -> None:
        """A broker that was slow until now may have read the cursors of the next owner: what that one's consumers
        acknowledged is after the end of this log, means nothing here, and would be forgotten with the next store. An
        owner that takes over from now on changes the cursors' nodes before anything is acknowledged, and then our store
        fails."""
        await self.log.check_owner()

    @property
    def ledger_client(self) -> LedgerClient:
        """The client of the topic's ledgers."""
        return self._parts.log.client

    @property
    def has_messages(self) -> bool:
        return bool(self.log.chain.size_bytes)

    def require_readable(self) -> None:
        self.publisher.require_open()

    def require_usable(self) -> None:
        self.require_readable()
        if self.log.is_terminated:
            raise TopicTerminatedError(f"topic {self.name} is terminated: it takes no more messages")

    def apply(self, policies: EffectivePolicies) -> None:
        super().apply(policies)
        self.quota.apply(policies)
        self.subscriptions.apply(policies)

    async def set_property(self, key: str, value: str | None) -> None:
        """A property of the topic, durable when this returns; None removes it."""
        await self._uncancelled.run(self.log.set_property(key, value))

    # --- producers ----------------------------------------------------------------------------------------------------

    async def require_producer_room(self) -> None:
        await self.quota.refresh(self._entropy.wall_ms())
        await super().require_producer_room()
        self.quota.require_room()

    async def _store_epoch(self, epoch: int) -> None:
        await self.set_property(EPOCH_PROPERTY, str(epoch))

    # --- subscriptions ------------------------------------------------------------------------------------------------

    async def subscribe(self, options: SubscribeOptions, consumer: Consumer) -> Subscription:
        self.require_readable()
        self._require_allowed(options)
        self._require_rate(consumer)
        self.require_consumer_room()
        is_new = options.subscription not in self.subscriptions
        if is_new and options.is_durable and not self.policies.auto_create_subscriptions:
            raise CursorMissingError(
                f"topic {self.name} has no subscription {options.subscription!r}, and policies do not let consumers "
                "create it: create it with the admin interface first"
            )
        subscription = await self.subscriptions.get_or_make(options)
        if options.rollback_s > 0 and not subscription.awaits_return:  # Otherwise it comes back to where it sought.
            await self.seek_to_time(subscription, self._entropy.wall_ms() - options.rollback_s * 1000)
        try:
            await self._remove_dead_holder(subscription, consumer)
            self.require_readable()
            subscription.add_consumer(consumer)
        except BaseException:
            await self.subscriptions.end_if_unused(subscription)
            raise
        self.last_used_s = self.loop.time()
        return subscription

    async def create_subscription(
        self, name: str, start: Position, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        self.require_readable()
        return await self._uncancelled.run(self.subscriptions.make_durable(name, start, properties or {}))

    async def ensure_subscription(self, name: str) -> None:
        if name in self.subscriptions:
            return
        if not self.policies.auto_create_subscriptions:
            raise NotAllowedError(
                f"topic {self.name} has no subscription {name!r}, and policies do not let clients create it: "
                "create it with the admin interface first"
            )
        await self.create_subscription(name, EARLIEST)

    async def unsubscribe(
        self, subscription: SubscriptionLike, consumer: Consumer | None = None, *, force: bool = False
    ) -> None:
        await self._uncancelled.run(self.subscriptions.unsubscribe(subscription.name, consumer, force=force))
        self.last_used_s = self.loop.time()

    def remove_consumer(self, subscription: SubscriptionLike, consumer: Consumer) -> None:
        super().remove_consumer(subscription, consumer)
        found = self.subscriptions.get(subscription.name)
        if found is not None and found is subscription:
            self._on_left(found)

    def _on_left(self, subscription: Subscription) -> None:
        if not subscription.cursor.is_durable and not subscription.consumers and not self._is_gone:
            self._uncancelled.begin(self.subscriptions.end_if_unused(subscription))

    async def position_at_time(self, publish_ms: int) -> Position:
        return await self.log.position_at_time(publish_ms)

    async def last_message(self, *, read_compacted: bool = False) -> LastMessage:
        last = self.log.last_confirmed
        compacted = self.compaction.view.compacted if read_compacted else None
        if compacted is not None and (last <= compacted.horizon or not self.log.chain.contains(last)):
            kept = await compacted.last_entry()
            return LastMessage(EARLIEST) if kept is None else LastMessage(kept.position, last_batch_index(kept))
        entries = await self.log.read(last, 1, 1) if self.log.chain.contains(last) else []
        if not entries:
            return LastMessage(EARLIEST)
        batch_size = entries[0].head.batch_size
        return LastMessage(entries[0].position, -1 if batch_size is None else batch_size - 1)

    # --- unused -------------------------------------------------------------------------------------------------------

    def is_idle(self, now_s: float) -> bool:
        if not super().is_idle(now_s):
            return False
        if has_progress(self.log.properties):  # A job publishes to it, without ever being connected.
            return False
        if self._is_retained(now_s - self.last_used_s):
            return False
        return not self.subscriptions or (self.goes_with_subscriptions and self.subscriptions.have_read_everything)

    def _is_retained(self, unused_s: float) -> bool:
        """Messages that are to be kept for a time keep their topic for as long."""
        minutes = self.policies.retention.minutes
        return self.log.chain.entries > 0 and (minutes < 0 or unused_s < minutes * 60)

    # --- its end ------------------------------------------------------------------------------------------------------

    def on_fenced(self, error: MagnetarError) -> None:
        """Called by the log or a cursor when there is another owner, or when it cannot continue."""
        self._is_fenced = True
        self.publisher.refuse(error)
        if not self._is_gone:
            log.warning("a topic is given up", extra={"topic": str(self.name), "why": str(error)})
            self._on_lost(self, error)

    async def terminate(self) -> Position:
        """Takes no more messages, forever. Consumers that have read all are notified."""
        # With what follows the log's end: a producer may be held until there is room.
        return await self._uncancelled.run(self._terminate())

    async def _terminate(self) -> Position:
        last = await self.log.terminate()
        self.publisher.on_room()
        self.disconnect_producers()
        for subscription in list(self.subscriptions.values()):
            subscription.on_topic_terminated()
        return last

    async def aclose(self, why: str = "topic unloaded") -> None:
        if self._is_gone:
            return
        self._is_gone = True
        try:
            await self._close(why)
        except BaseException:  # Above all: it took too long. Nothing of it may continue.
            await self._give_up(why)
            raise

    async def _close(self, why: str) -> None:
        self.publisher.cancel_dedup_switch()
        self._send_away(why, why)
        await self.compaction.aclose()
        await self._uncancelled.wait()
        await self.subscriptions.store_activity()
        await self.subscriptions.aclose(why)
        try:
            await self._store_for_the_next_owner()
        except MagnetarError:
            await self._close_log()  # In order anyway.
            raise
        await self._close_log()

    def _send_away(self, refusal: str, why: str) -> None:
        """Disconnects all clients, and lets none in any more. What is waited for after this may never come: a client
        that was not notified would then wait forever on a topic that is not served."""
        self.publisher.refuse(refusal)
        self.disconnect_producers()
        self.subscriptions.send_away(why)

    async def _close_log(self) -> None:
        self.publisher.forget_dedup()
        await self.log.aclose()

    async def _give_up(self, why: str) -> None:
        """Ends at once. Callers that wait for something get an error. What has ended already stays as it is."""
        self.publisher.forget_dedup()
        async with contextlib.AsyncExitStack() as ends:  # The last is the first; each, whatever becomes of the others.
            ends.push_async_callback(self._uncancelled.give_up)
            ends.push_async_callback(self.subscriptions.abandon, why)
            ends.push_async_callback(self.cursors.abandon)
            ends.push_async_callback(self.log.give_up)

    async def _store_for_the_next_owner(self) -> None:
        if self._is_fenced:  # The next owner serves it already, and knows more than what we would store.
            await self.cursors.abandon()
            return
        await self.publisher.store_dedup()
        await self.cursors.aclose()

    async def delete(self, *, force: bool = False, with_subscriptions: bool = False) -> None:
        if not force and self.is_in_use:
            raise NotAllowedError(f"topic {self.name} has producers or consumers connected: close them, or use force")
        if self.subscriptions and not force and not with_subscriptions:
            raise NotAllowedError(f"topic {self.name} has subscriptions: delete them first, or use force")
        self._is_gone = True
        self._send_away("the topic is being deleted", "topic deleted")
        try:
            await self.compaction.aclose()
            await self._uncancelled.wait()
            await self.subscriptions.aclose("topic deleted")
            await self.compaction.view.delete()
            await self.cursors.delete_all()
            await self.log.delete()
        except BaseException:
            self._is_gone = False  # It can be closed, and loaded again.
            raise
        self.publisher.forget_dedup()


def _config_for(config: TopicConfig, policies: EffectivePolicies) -> TopicConfig:
    """With the quorums that the policies want."""
    persistence = policies.persistence
    if persistence is None:
        return config
    return dataclasses.replace(
        config,
        ensemble_size=persistence.ensemble_size,
        write_quorum=persistence.write_quorum,
        ack_quorum=persistence.ack_quorum,
    )
