"""A topic that stores nothing: what is published goes to the consumers that can take it now, and is forgotten.

A producer is answered at once, with 0:0 for a position, as Pulsar does; that implies nothing about delivery. What
arrives in one turn of the loop is handed to the subscriptions together, in the next one.

Failure:   A subscription that fails keeps neither the others from the run, nor its producers from their answers.
Read next: topic.py, broker/publishing/publisher.py, broker/dispatch/non_persistent.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from magnetar.broker.dispatch.non_persistent import NonPersistentSubscription
from magnetar.broker.dispatch.rate_bucket import RateBucket
from magnetar.broker.policies.registry import EffectivePolicies
from magnetar.broker.publishing.producers import Publish
from magnetar.broker.publishing.publisher import Publisher
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.topics.topic import LastMessage, SubscribeOptions, SubscriptionLike, Topic
from magnetar.config.dispatch import DispatchConfig
from magnetar.errors import NotAllowedError
from magnetar.names import TopicName
from magnetar.runtime.runtime import Entropy
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST, Position
from magnetar.wire.bookkeeper.frames import Buffer

log = logging.getLogger(__name__)

_NOWHERE = Position(0, 0)


class DirectPublisher(Publisher):
    """Hands messages on to the subscriptions, and remembers nothing of them."""

    def __init__(
        self, topic: TopicName, policies: EffectivePolicies, subscriptions: Mapping[str, NonPersistentSubscription]
    ) -> None:
        super().__init__(topic, policies)
        self._subscriptions = subscriptions
        self._run: list[tuple[Publish, LogEntry]] = []

    @property
    def has_room(self) -> bool:
        return True

    def publish(self, publish: Publish, body: Buffer, *, counts: bool = True) -> None:
        del counts
        self.require_open()
        limit = self._policies.message_bytes_max
        if limit and len(body) > limit:
            raise NotAllowedError(f"topic {self._topic} accepts messages of up to {limit} bytes")
        producer, _, _, messages, _, _ = publish
        producer.pending += 1
        if not self._run:
            self._loop.call_soon(self._hand_on)
        self._run.append((publish, LogEntry(_NOWHERE, bytes(body), messages)))
        if self._limit is not None:
            self._limit_rate(self._limit, publish)

    def _hand_on(self) -> None:
        run, self._run = self._run, []
        entries = [entry for _, entry in run]
        self.entries_in += len(entries)
        for subscription in list(self._subscriptions.values()):
            self._hand_to(subscription, entries)
        for publish, _ in run:
            producer, _, _, _, _, self.last_published_s = publish
            messages, size = producer.published(*_NOWHERE, (publish,))
            self.messages_in += messages
            self.bytes_in += size

    def _hand_to(self, subscription: NonPersistentSubscription, entries: Sequence[LogEntry]) -> None:
        """What is not answered is counted as publish memory forever, so that no client could publish any more."""
        try:
            subscription.publish(entries)
        except Exception:
            extra = {"topic": str(self._topic), "subscription": subscription.name, "entries": len(entries)}
            log.exception("a subscription could not take messages", extra=extra)

    def last_sequence_id(self, producer: str) -> int:
        del producer
        return -1

    def on_connected(self, producer: str) -> None: ...

    def on_disconnected(self, producer: str) -> None: ...

    def forget_producers(self, idle_s: float, is_connected: Callable[[str], bool]) -> None: ...


class NonPersistentTopic(Topic):
    is_persistent = False
    subscriptions: Mapping[str, NonPersistentSubscription]

    def __init__(self, name: TopicName, policies: EffectivePolicies, config: DispatchConfig, entropy: Entropy) -> None:
        super().__init__(name, policies)
        self._config = config
        self._entropy = entropy
        self._by_name: dict[str, NonPersistentSubscription] = {}
        self._transient: dict[str, None] = {}
        """Subscriptions that end with their last consumer."""
        self._rate = RateBucket(str(name), self.loop.time())
        self.publisher = DirectPublisher(name, policies, self._by_name)
        self.subscriptions = self._by_name
        self._apply_rate()

    # --- subscriptions ------------------------------------------------------------------------------------------------

    async def subscribe(self, options: SubscribeOptions, consumer: Consumer) -> SubscriptionLike:
        self.require_usable()
        self._require_allowed(options)
        self._require_rate(consumer)
        self.require_consumer_room()
        if options.read_compacted:
            raise NotAllowedError(f"topic {self.name} is not persistent: it is not compacted")
        name = options.subscription
        if (found := self._by_name.get(name)) is not None:
            await self._remove_dead_holder(found, consumer)
            self.require_usable()
        subscription = self._by_name.get(name) or self._make_subscription(name)
        subscription.add_consumer(consumer)
        self._by_name[name] = subscription
        if not options.is_durable:
            self._transient[name] = None
        self.last_used_s = self.loop.time()
        return subscription

    def _make_subscription(self, name: str) -> NonPersistentSubscription:
        return NonPersistentSubscription(
            name,
            self._config,
            self._entropy,
            topic=str(self.name),
            partition=self.name.partition,
            consumers_max=self.policies.consumers_per_subscription_max,
            topic_rate=self._rate,
        )

    def remove_consumer(self, subscription: SubscriptionLike, consumer: Consumer) -> None:
        super().remove_consumer(subscription, consumer)
        if not subscription.consumers and subscription.name in self._transient:
            self._forget(subscription)

    async def ensure_subscription(self, name: str) -> None:
        """Only consumers make subscriptions: nothing would be kept for one that has none."""

    async def unsubscribe(
        self, subscription: SubscriptionLike, consumer: Consumer | None = None, *, force: bool = False
    ) -> None:
        if not force and any(other is not consumer for other in subscription.consumers):
            raise NotAllowedError(f"subscription {subscription.name} has other consumers: close them first")
        if (found := self._by_name.get(subscription.name)) is subscription and found is not None:
            self._forget(found)
            await found.aclose("the subscription is deleted")

    def _forget(self, subscription: SubscriptionLike) -> None:
        if self._by_name.get(subscription.name) is subscription:
            del self._by_name[subscription.name]
            self._transient.pop(subscription.name, None)

    async def position_at_time(self, publish_ms: int) -> Position:
        del publish_ms
        return EARLIEST

    async def last_message(self, *, read_compacted: bool = False) -> LastMessage:
        del read_compacted
        return LastMessage(EARLIEST)

    # --- the topic itself ---------------------------------------------------------------------------------------------

    def require_usable(self) -> None:
        self.publisher.require_open()

    @property
    def has_messages(self) -> bool:
        return False

    def apply(self, policies: EffectivePolicies) -> None:
        super().apply(policies)
        for subscription in self._by_name.values():
            subscription.consumers_max = policies.consumers_per_subscription_max
        self._apply_rate()

    def _apply_rate(self) -> None:
        self._rate.set_rate(self.policies.dispatch_rate, self.loop.time())

    async def aclose(self, why: str = "topic unloaded") -> None:
        self.publisher.refuse(why)
        self.disconnect_producers()
        await self._uncancelled.wait()
        for subscription in list(self._by_name.values()):
            await subscription.aclose(why)
        self._by_name.clear()

    async def delete(self, *, force: bool = False, with_subscriptions: bool = False) -> None:
        del with_subscriptions  # They end with it in any case.
        if not force and self.is_in_use:
            raise NotAllowedError(f"topic {self.name} has producers or consumers: close them, or use force")
        await self.aclose("topic deleted")
