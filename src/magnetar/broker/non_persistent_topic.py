"""A topic that keeps nothing: what is published goes to whoever can take it now, and is forgotten.

Answer:    a producer is answered at once, with 0:0 for a position, as Pulsar does; that says nothing about delivery.
Turn:      what arrives in one turn of the loop is handed to the subscriptions together, in the next one.
Trouble:   a subscription that fails keeps neither the others from the run, nor its producers from their answers.
Read next: topic.py, dispatch/non_persistent.py
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import cast

from magnetar.broker.consumer import Consumer
from magnetar.broker.dispatch.non_persistent import NonPersistentSubscription
from magnetar.broker.dispatch.rate import DispatchRate
from magnetar.broker.names import TopicName
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.producer import Publish
from magnetar.broker.topic import LastMessage, SubscribeOptions, SubscriptionLike, Topic
from magnetar.config.dispatch import DispatchConfig
from magnetar.errors import NotAllowedError, TopicFencedError
from magnetar.runtime.entropy import Entropy
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST, Position
from magnetar.wire.pulsar.frames import Buffer

log = logging.getLogger(__name__)

_NOWHERE = Position(0, 0)


class NonPersistentTopic(Topic):
    is_persistent = False

    def __init__(self, name: TopicName, policies: EffectivePolicies, config: DispatchConfig, entropy: Entropy) -> None:
        super().__init__(name, policies)
        self._config = config
        self._entropy = entropy
        self._by_name: dict[str, NonPersistentSubscription] = {}
        self._transient: dict[str, None] = {}
        """Subscriptions that end with their last consumer."""
        self._run: list[tuple[Publish, LogEntry]] = []
        self._rate = DispatchRate(str(name), 0, 0, self.loop.time())
        self._is_closed = False
        self._apply_rate()

    # --- publishing ---------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return True

    def publish(self, publish: Publish, body: Buffer, *, counts: bool = True) -> None:
        del counts
        self.require_usable()
        limit = self.policies.message_bytes_max
        if limit and len(body) > limit:
            raise NotAllowedError(f"topic {self.name} takes messages up to {limit} bytes")
        publish[0].pending += 1
        if not self._run:
            self.loop.call_soon(self._hand_on)
        self._run.append((publish, LogEntry(_NOWHERE, bytes(body), publish[3])))
        if self._publish_limit is not None:
            self._limit_rate(publish)

    def _hand_on(self) -> None:
        run, self._run = self._run, []
        entries = [entry for _, entry in run]
        self.entries_in += len(entries)
        self.last_published_s = run[-1][0][5]
        for subscription in list(self._by_name.values()):
            self._hand_to(subscription, entries)
        for publish, _ in run:
            messages, size = publish[0].on_persisted(*_NOWHERE, (publish,))
            self.messages_in += messages
            self.bytes_in += size

    def _hand_to(self, subscription: NonPersistentSubscription, entries: Sequence[LogEntry]) -> None:
        """What is not answered is counted as publish memory for ever, so that nobody could publish any more."""
        try:
            subscription.publish(entries)
        except Exception:
            extra = {"topic": str(self.name), "subscription": subscription.name, "entries": len(entries)}
            log.exception("a subscription could not take messages", extra=extra)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    @property
    def subscriptions(self) -> Mapping[str, NonPersistentSubscription]:
        return self._by_name

    async def subscribe(self, options: SubscribeOptions, consumer: Consumer) -> SubscriptionLike:
        self.require_usable()
        self._require_allowed(options)
        self._require_rate(consumer)
        self.require_consumer_room()
        if options.read_compacted:
            raise NotAllowedError(f"topic {self.name} is not persistent: it is not compacted")
        name = options.subscription
        if (found := self._by_name.get(name)) is not None:
            await self._make_way(found, consumer)
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

    async def unsubscribe(self, subscription: SubscriptionLike, consumer: Consumer, *, force: bool = False) -> None:
        found = cast("NonPersistentSubscription", subscription)
        if not force and any(other is not consumer for other in found.consumers):
            raise NotAllowedError(f"subscription {found.name} has other consumers: close them first")
        self._forget(subscription)
        await found.aclose("the subscription is deleted")

    def _forget(self, subscription: SubscriptionLike) -> None:
        if self._by_name.get(subscription.name) is subscription:
            del self._by_name[subscription.name]
            self._transient.pop(subscription.name, None)

    async def seek(
        self,
        subscription: SubscriptionLike,
        position: Position,
        still_unacked: Sequence[int] = (),
        batch_size: int = 0,
    ) -> None:
        """There is nothing to go back to."""

    async def seek_to_time(self, subscription: SubscriptionLike, publish_ms: int) -> None:
        """There is nothing to go back to."""

    async def last_message(self, *, read_compacted: bool = False) -> LastMessage:
        del read_compacted
        return LastMessage(EARLIEST)

    # --- the topic itself ---------------------------------------------------------------------------------------------

    def require_usable(self) -> None:
        if self._is_closed:
            raise TopicFencedError(f"topic {self.name} is being closed: look it up again")

    def apply(self, policies: EffectivePolicies) -> None:
        super().apply(policies)
        for subscription in self._by_name.values():
            subscription.consumers_max = policies.consumers_per_subscription_max
        self._apply_rate()

    def _apply_rate(self) -> None:
        rate, now = self.policies.dispatch_rate, self.loop.time()
        if rate is None:
            self._rate.change(0, 0, now)
        else:
            self._rate.change(rate.messages / rate.period_s, rate.bytes / rate.period_s, now, rate.period_s)

    async def aclose(self, why: str = "topic unloaded") -> None:
        self._is_closed = True
        self.disconnect_producers()
        for subscription in list(self._by_name.values()):
            await subscription.aclose(why)
        self._by_name.clear()

    async def delete(self, *, force: bool = False, with_subscriptions: bool = False) -> None:
        del with_subscriptions  # They end with it in any case.
        if not force and self.is_in_use:
            raise NotAllowedError(f"topic {self.name} has producers or consumers: disconnect them, or force it")
        await self.aclose("topic deleted")
