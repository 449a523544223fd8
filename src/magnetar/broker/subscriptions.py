"""The subscriptions of a persistent topic: opened with it, made when somebody asks, deleted when nobody wants them.

Durable:   each has a cursor, and is there whether or not a consumer is. Those of deduplication and compaction are
           cursors without a subscription.
Reader's:  one that is not durable has a cursor in memory, and ends with its last consumer; but not while it waits for
           one that a seek has disconnected. Who comes back goes on there, whatever message he says he begins at.
Once:      whoever asks for a subscription that is being made waits for it. One that is being deleted is refused, to be
           asked for again; if it cannot be deleted it is served again, as its cursor still holds what it needs.
Read next: persistent_topic.py, subscription.py; topic/cursors.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from magnetar.broker.consumer import Consumer
from magnetar.broker.dedup import CURSOR_NAME as DEDUP_CURSOR
from magnetar.broker.dispatch.parts import DispatchLimits, EntrySource
from magnetar.broker.dispatch.rate import DispatchRate
from magnetar.broker.names import TopicName
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.producer import REPLICATOR_PREFIX
from magnetar.broker.subscription import Subscription
from magnetar.broker.topic import SubscribeOptions
from magnetar.config.dispatch import DispatchConfig
from magnetar.errors import CursorMissingError, NotAllowedError, TopicFencedError
from magnetar.runtime.entropy import Entropy
from magnetar.topic.compaction import COMPACTION_CURSOR
from magnetar.topic.cursor import Cursor
from magnetar.topic.cursors import Cursors
from magnetar.topic.log import TopicLog
from magnetar.topic.position import EARLIEST, LATEST, Position

log = logging.getLogger(__name__)

NOT_SUBSCRIPTIONS: Final = (DEDUP_CURSOR, COMPACTION_CURSOR)
"""Cursors that brokers use for themselves."""


class Subscriptions:
    def __init__(
        self,
        topic: TopicName,
        log_: TopicLog,
        compacted: EntrySource,
        cursors: Cursors,
        config: DispatchConfig,
        entropy: Entropy,
        policies: EffectivePolicies,
        on_left: Callable[[Subscription], None],
    ) -> None:
        """`on_left`: nobody is connected to this one any more, and nobody is awaited (`end_if_unused`)."""
        self._topic = topic
        self._log = log_
        self._compacted = compacted
        self._cursors = cursors
        self._config = config
        self._entropy = entropy
        self._policies = policies
        self._on_left = on_left
        self._topic_rate = _rate_of(str(topic), policies)
        self._making: dict[str, asyncio.Task[Subscription]] = {}
        self.by_name: dict[str, Subscription] = {}
        for cursor in cursors:
            if cursor.name not in NOT_SUBSCRIPTIONS and not cursor.name.startswith(REPLICATOR_PREFIX):
                self.by_name[cursor.name] = self._subscription(cursor.name, cursor)

    def apply(self, policies: EffectivePolicies) -> None:
        self._policies = policies
        rate = policies.dispatch_rate
        now = asyncio.get_running_loop().time()
        if rate is None:
            self._topic_rate.change(0, 0, now)
        else:
            self._topic_rate.change(rate.messages / rate.period_s, rate.bytes / rate.period_s, now, rate.period_s)
        for name, subscription in self.by_name.items():
            subscription.update_limits(self._limits_of(name))

    async def get_or_make(self, options: SubscribeOptions) -> Subscription:
        """NotAllowedError if one of the other kind has this name, or the name is the broker's own."""
        name = options.subscription
        if name in NOT_SUBSCRIPTIONS or name.startswith(REPLICATOR_PREFIX):
            raise NotAllowedError(f"the name {name!r} is for brokers only: choose another for the subscription")
        found = self.by_name.get(name)
        if found is None:
            if (making := self._making.get(name)) is None:
                making = self._making[name] = asyncio.get_running_loop().create_task(self._make(options))
                making.add_done_callback(lambda done: self._on_made(name, done))
            found = await self._wait_made(making)
        if found.cursor.is_durable != options.is_durable:
            kind = "durable" if found.cursor.is_durable else "not durable"
            raise NotAllowedError(f"there is a subscription {name!r} that is {kind}: choose another name")
        return found

    async def _wait_made(self, making: asyncio.Task[Subscription]) -> Subscription:
        """It goes to its end, whoever waits for it; unless the topic is given up."""
        await asyncio.wait([making])
        if making.cancelled():
            raise TopicFencedError(f"topic {self._topic} is not served here any more: look it up again")
        return making.result()

    async def _make(self, options: SubscribeOptions) -> Subscription:
        name = options.subscription
        subscription = self.by_name[name] = self._subscription(name, await self._make_cursor(options))
        return subscription

    def _on_made(self, name: str, done: asyncio.Task[Subscription]) -> None:
        del self._making[name]
        if not done.cancelled():
            done.exception()  # Those who wait have it.

    async def _make_cursor(self, options: SubscribeOptions) -> Cursor:
        if not options.is_durable:
            return self._cursors.create_non_durable(options.subscription, self._start_of(options))
        start = EARLIEST if options.from_earliest else LATEST
        return await self._cursors.create(options.subscription, start, properties=options.properties)

    def _start_of(self, options: SubscribeOptions) -> Position:
        """The first entry a reader gets. What is beyond the end means the end: clients cannot say "latest" exactly."""
        start = LATEST if options.start is None else options.start
        if start.ledger_id == EARLIEST.ledger_id:
            return EARLIEST
        if start > self._log.last_confirmed:
            return EARLIEST if options.from_earliest else LATEST
        return start

    async def make_durable(self, name: str, start: Position, properties: Mapping[str, str]) -> Subscription:
        """For the admin interface: at any position."""
        cursor = await self._cursors.create(name, start, properties=properties)
        subscription = self.by_name[name] = self._subscription(name, cursor)
        return subscription

    def require(self, name: str) -> Subscription:
        if name not in self.by_name:
            raise CursorMissingError(f"topic {self._topic} has no subscription {name!r}")
        return self.by_name[name]

    async def unsubscribe(self, name: str, consumer: Consumer | None = None, *, force: bool = False) -> None:
        """If it raises, the subscription is there, but its consumers were let go; unless other consumers kept it."""
        subscription = self.require(name)
        await subscription.unsubscribe(consumer, force=force)
        try:
            await self._cursors.delete(name)
        except BaseException:
            self._put_back(subscription)
            raise
        self._drop(name, subscription)

    def _put_back(self, closed: Subscription) -> None:
        name = closed.name
        cursor = self._cursors.get(name)
        if self.by_name.get(name) is closed and cursor is not None:  # Else the topic has been closed meanwhile.
            again = self.by_name[name] = self._subscription(name, cursor)
            again.is_replicated, again.last_active_ms = closed.is_replicated, closed.last_active_ms

    async def end_if_unused(self, subscription: Subscription) -> None:
        """One that is not durable ends with its last consumer, unless that one comes back from a seek."""
        if subscription.cursor.is_durable or subscription.consumers or subscription.awaits_return:
            return
        if self.by_name.get(subscription.name) is subscription:
            self._drop(subscription.name, subscription)
            await subscription.aclose()
            await self._cursors.delete(subscription.name)

    def _drop(self, name: str, subscription: Subscription) -> None:
        if self.by_name.get(name) is subscription:
            del self.by_name[name]

    def send_away(self, why: str) -> None:
        """All consumers, of all subscriptions; the topic lets none in any more."""
        for subscription in list(self.by_name.values()):
            subscription.send_away(why)

    async def aclose(self, why: str) -> None:
        if self._making:
            await asyncio.wait(list(self._making.values()))
        for subscription in list(self.by_name.values()):
            await subscription.aclose(why)
        self.by_name.clear()

    async def abandon(self, why: str) -> None:
        """Does not wait for those that are being made."""
        for making in self._making.values():
            making.cancel()
        await self.aclose(why)

    # --- limits -------------------------------------------------------------------------------------------------------

    def _subscription(self, name: str, cursor: Cursor) -> Subscription:
        return Subscription(
            name,
            cursor,
            self._log,
            self._config,
            self._entropy,
            topic=str(self._topic),
            partition=self._topic.partition,
            limits=self._limits_of(name),
            topic_rate=self._topic_rate,
            compacted=self._compacted,
            on_left=self._on_left,
        )

    def _limits_of(self, name: str) -> DispatchLimits:
        policies = self._policies
        rate = policies.dispatch_rate_of(name)
        return DispatchLimits(
            unacked_messages_per_consumer_max=policies.unacked_per_consumer_max,
            unacked_messages_per_subscription_max=policies.unacked_per_subscription_max,
            consumers_max=policies.consumers_per_subscription_max,
            delayed_delivery=policies.delayed_delivery,
            delayed_tick_ms=policies.delayed_tick_ms,
            messages_per_second=0 if rate is None else max(0, rate.messages),
            bytes_per_second=0 if rate is None else max(0, rate.bytes),
            rate_period_s=1 if rate is None else rate.period_s,
            pause_on_ack_state=policies.pause_on_ack_state,
        )


def _rate_of(name: str, policies: EffectivePolicies) -> DispatchRate:
    rate, now = policies.dispatch_rate, asyncio.get_running_loop().time()
    if rate is None:
        return DispatchRate(name, 0, 0, now)
    return DispatchRate(name, rate.messages / rate.period_s, rate.bytes / rate.period_s, now, rate.period_s)
