"""The subscriptions of a persistent topic: opened with it, made on demand, deleted when they are no longer used.

A durable subscription has a cursor, and exists with and without consumers. The cursors of deduplication and compaction
are no subscriptions. A subscription that is not durable is a reader's: it has a cursor in memory and ends with its last
consumer, but not while it waits for one that a seek has disconnected. When that one comes back it continues there,
whatever message its client names.

Order:     a caller that asks for a subscription that is being made waits for it. One that is being deleted is refused,
           and the client asks again. If it cannot be deleted it is served again: its cursor has kept what it needs.
Read next: broker/topics/persistent.py, subscription.py; topic/cursor/cursors.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from magnetar.broker.dispatch.context import DispatchLimits, EntrySource
from magnetar.broker.dispatch.rate_bucket import RateBucket
from magnetar.broker.policies.registry import EffectivePolicies
from magnetar.broker.publishing.dedup import CURSOR_NAME as DEDUP_CURSOR
from magnetar.broker.publishing.producers import REPLICATOR_PREFIX
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.subscription import EndNotices, Subscription
from magnetar.broker.topics.topic import SubscribeOptions
from magnetar.config.dispatch import DispatchConfig
from magnetar.errors import CursorMissingError, MagnetarError, NotAllowedError, TopicFencedError
from magnetar.names import TopicName
from magnetar.runtime.runtime import Entropy
from magnetar.runtime.uncancelled import UncancelledTasks
from magnetar.topic.compaction import COMPACTION_CURSOR
from magnetar.topic.cursor.cursors import Cursor, Cursors
from magnetar.topic.log.log import TopicLog
from magnetar.topic.position import EARLIEST, LATEST, Position

log = logging.getLogger(__name__)

_ACTIVITY_STEP_MS: Final = 60_000  # Expiry counts minutes; a more recent time is not worth a write.
NOT_SUBSCRIPTIONS: Final = (DEDUP_CURSOR, COMPACTION_CURSOR)
"""Cursors that brokers use for themselves."""


class Subscriptions(Mapping[str, Subscription]):
    """The subscriptions of one topic, by name."""

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
        """`on_left` is called with a subscription that has no consumer any more and awaits none (`end_if_unused`)."""
        self._topic = topic
        self._log = log_
        self._compacted = compacted
        self._cursors = cursors
        self._config = config
        self._entropy = entropy
        self._policies = policies
        self._on_left = on_left
        self._end_notices = EndNotices()
        self._topic_rate = RateBucket(str(topic), asyncio.get_running_loop().time())
        self._apply_rate()
        self._making: dict[str, asyncio.Task[Subscription]] = {}
        """Name → the task that makes it, for all callers that ask for it meanwhile."""
        self._makes = UncancelledTasks(self._given_up)
        self._by_name: dict[str, Subscription] = {}
        for cursor in cursors:
            if cursor.name not in NOT_SUBSCRIPTIONS and not cursor.name.startswith(REPLICATOR_PREFIX):
                self._by_name[cursor.name] = self._subscription(cursor.name, cursor)

    def __getitem__(self, name: str) -> Subscription:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def apply(self, policies: EffectivePolicies) -> None:
        self._policies = policies
        self._apply_rate()
        for name, subscription in self._by_name.items():
            subscription.update_limits(DispatchLimits.of_policies(self._policies, name))

    def _apply_rate(self) -> None:
        self._topic_rate.set_rate(self._policies.dispatch_rate, asyncio.get_running_loop().time())

    async def get_or_make(self, options: SubscribeOptions) -> Subscription:
        """Raises NotAllowedError if one of the other kind has this name, or if the name is reserved for brokers."""
        name = options.subscription
        if name in NOT_SUBSCRIPTIONS or name.startswith(REPLICATOR_PREFIX):
            raise NotAllowedError(f"the name {name!r} is for brokers only: choose another for the subscription")
        found = self._by_name.get(name)
        if found is None:
            if (making := self._making.get(name)) is None:
                making = self._making[name] = self._makes.begin(self._make(options))
                making.add_done_callback(lambda _: self._making.pop(name))
            found = await self._makes.result_of(making)
        if found.cursor.is_durable != options.is_durable:
            kind = "durable" if found.cursor.is_durable else "not durable"
            raise NotAllowedError(f"there is a subscription {name!r} that is {kind}: choose another name")
        return found

    def _given_up(self) -> TopicFencedError:
        return TopicFencedError(f"topic {self._topic} is not served here any more: look it up again")

    async def _make(self, options: SubscribeOptions) -> Subscription:
        name = options.subscription
        subscription = self._by_name[name] = self._subscription(name, await self._make_cursor(options))
        return subscription

    async def _make_cursor(self, options: SubscribeOptions) -> Cursor:
        if not options.is_durable:
            return self._cursors.create_non_durable(options.subscription, self._start_of(options))
        start = EARLIEST if options.from_earliest else LATEST
        return await self._cursors.create(options.subscription, start, properties=options.properties)

    def _start_of(self, options: SubscribeOptions) -> Position:
        """Returns the first entry that a reader gets. A position after the end means the end, because clients cannot
        express "latest" exactly."""
        start = LATEST if options.start is None else options.start
        if start.ledger_id == EARLIEST.ledger_id:
            return EARLIEST
        if start > self._log.last_confirmed:
            return EARLIEST if options.from_earliest else LATEST
        return start

    async def make_durable(self, name: str, start: Position, properties: Mapping[str, str]) -> Subscription:
        """Makes one at any position, for the admin interface."""
        cursor = await self._cursors.create(name, start, properties=properties)
        subscription = self._by_name[name] = self._subscription(name, cursor)
        return subscription

    def require(self, name: str) -> Subscription:
        if name not in self._by_name:
            raise CursorMissingError(f"topic {self._topic} has no subscription {name!r}")
        return self._by_name[name]

    def with_backlog(self) -> list[Subscription]:
        """Returns those whose backlog the topic must keep: not readers', and none that is being deleted or reset to
        another position, until that is over."""
        return [each for each in self._by_name.values() if each.cursor.is_durable and not each.is_fenced]

    @property
    def have_read_everything(self) -> bool:
        """Whether every durable subscription has no backlog. One that is being reset to another position will read
        again, whatever its cursor shows until then."""
        durable = [each for each in self._by_name.values() if each.cursor.is_durable]
        return not any(each.is_fenced or each.backlog_entries for each in durable)

    async def unsubscribe(self, name: str, consumer: Consumer | None = None, *, force: bool = False) -> None:
        """If it raises, the subscription still exists, and its consumers are disconnected, unless other consumers were
        the reason."""
        subscription = self.require(name)
        await subscription.unsubscribe(consumer, force=force)
        try:
            await self._cursors.delete(name)
        except BaseException:
            self._reopen(subscription)
            raise
        self._drop(name, subscription)

    def _reopen(self, closed: Subscription) -> None:
        name = closed.name
        cursor = self._cursors.get(name)
        if self._by_name.get(name) is closed and cursor is not None:  # Otherwise the topic has been closed meanwhile.
            again = self._by_name[name] = self._subscription(name, cursor)
            again.is_replicated, again.last_active_ms = closed.is_replicated, closed.last_active_ms

    async def end_if_unused(self, subscription: Subscription) -> None:
        """One that is not durable ends with its last consumer, unless that one comes back from a seek."""
        if subscription.cursor.is_durable or subscription.consumers or subscription.awaits_return:
            return
        if self._by_name.get(subscription.name) is subscription:
            self._drop(subscription.name, subscription)
            await subscription.aclose()
            await self._cursors.delete(subscription.name)

    def _drop(self, name: str, subscription: Subscription) -> None:
        if self._by_name.get(name) is subscription:
            del self._by_name[name]

    async def store_activity(self) -> None:
        """Stores when each was last used, where subscriptions expire, so that the next owner of the topic counts from
        there. One with a consumer is used now. A stored time that is less than a minute older stays."""
        if not self._policies.subscription_expiry_minutes:
            return
        now_ms = self._entropy.wall_ms()
        for name, subscription in list(self._by_name.items()):
            cursor = self._cursors.get(name)
            if cursor is None or not cursor.is_durable or subscription.is_fenced:
                continue
            active_ms = now_ms if subscription.consumers else subscription.last_active_ms
            if active_ms - cursor.stored_last_active_ms >= _ACTIVITY_STEP_MS:
                try:
                    await cursor.store_last_active(active_ms)
                except MagnetarError as error:  # Tried again at the next check.
                    extra = {"topic": str(self._topic), "subscription": name, "why": str(error)}
                    log.warning("when a subscription was last used is not stored", extra=extra)

    def send_away(self, why: str) -> None:
        """Disconnects all consumers of all subscriptions, and accepts no others."""
        for subscription in list(self._by_name.values()):
            subscription.send_away(why)

    async def aclose(self, why: str) -> None:
        await self._makes.wait()
        for subscription in list(self._by_name.values()):
            await subscription.aclose(why)
        self._by_name.clear()

    async def abandon(self, why: str) -> None:
        """Like `aclose`, without waiting for subscriptions that are being made."""
        self._makes.cancel()
        await self.aclose(why)

    # --- limits -------------------------------------------------------------------------------------------------------

    def _subscription(self, name: str, cursor: Cursor) -> Subscription:
        made = Subscription(
            name,
            cursor,
            self._log,
            self._config,
            self._entropy,
            topic=str(self._topic),
            partition=self._topic.partition,
            limits=DispatchLimits.of_policies(self._policies, name),
            topic_rate=self._topic_rate,
            compacted=self._compacted,
            on_left=self._on_left,
            end_notices=self._end_notices,
        )
        made.last_active_ms = cursor.stored_last_active_ms or made.last_active_ms
        return made
