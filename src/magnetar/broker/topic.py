"""A topic as front ends see it: producers publish to it, subscriptions deliver from it.

Kinds:     persistent_topic.py keeps messages in a log; non_persistent_topic.py hands them on and forgets them.
Usage:     whoever is connected keeps a topic loaded; `last_used_s` says since when nobody was.
Read next: producers.py, persistent_topic.py
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.broker.consumer import Consumer, SubscriptionType
from magnetar.broker.liveness import gives_way
from magnetar.broker.names import TopicName
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.producer import Producer, Publish, Published, Waiter
from magnetar.broker.producers import Producers
from magnetar.broker.rate_limit import PublishLimit, SubscribeLimit
from magnetar.errors import ConsumerBusyError, MagnetarError, NotAllowedError
from magnetar.topic.position import EARLIEST, Position
from magnetar.wire.pulsar.frames import Buffer
from magnetar.wire.pulsar.hot_path import Send

_NO_ROOM = "room"
_RATE = "rate"


class SubscriptionLike(Protocol):
    """What front ends need of a subscription, persistent or not."""

    @property
    def name(self) -> str: ...
    @property
    def consumers(self) -> Sequence[Consumer]: ...
    def remove_consumer(self, consumer: Consumer) -> None: ...
    def flow(self, consumer: Consumer, permits: int) -> None: ...
    def resume(self, consumer: Consumer) -> None: ...
    def acknowledge(self, consumer: Consumer, positions: Sequence[Position]) -> None: ...
    def acknowledge_batch(
        self, consumer: Consumer, position: Position, still_unacked: Sequence[int], batch_size: int = 0
    ) -> None: ...
    def acknowledge_to(
        self, consumer: Consumer, position: Position, still_unacked: Sequence[int] = (), batch_size: int = 0
    ) -> None: ...
    async def flush(self) -> None: ...
    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None = None, epoch: int = 0) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeOptions:
    """What a consumer asks for, besides what it is itself."""

    subscription: str
    type: SubscriptionType
    is_durable: bool = True
    start: Position | None = None
    """Of a subscription that is not durable: the first message it wants, or EARLIEST or LATEST."""
    from_earliest: bool = False
    """Of a new subscription: begin with the oldest message, not with the next one."""
    rollback_s: int = 0
    """Begin with what was published so many seconds ago."""
    read_compacted: bool = False
    is_replicated: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LastMessage:
    position: Position
    batch_index: int = -1
    """Of the last message in its batch; −1 if it is none."""


class Topic(ABC):
    """Made loaded, ended by `aclose` or `delete`."""

    is_persistent: bool

    def __init__(self, name: TopicName, policies: EffectivePolicies, epoch: int | None = None) -> None:
        self.name = name
        self.policies = policies
        self.loop = asyncio.get_running_loop()
        self.producers = Producers(str(name), self._store_epoch, epoch)
        self.last_used_s = self.loop.time()
        self.created_s = self.last_used_s
        self.entries_in = 0
        self.messages_in = 0
        self.bytes_in = 0
        self.last_published_s: float | None = None
        """When the last message arrived that was taken, in the loop's time."""
        self.consumers_with_schema = 0
        """Connected consumers that brought a schema, or want none; those that take any are not counted."""
        self._waiting_for_room: dict[Waiter, None] = {}
        self._publish_limit: PublishLimit | None = None
        self._held_by_rate: dict[Waiter, None] = {}
        self._subscribe_limit = SubscribeLimit()
        self._apply_rates()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    # --- publishing ---------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether `publish` may be called; if not, `wait_for_room` holds whoever wants to."""

    @abstractmethod
    def publish(self, publish: Publish, body: Buffer, *, counts: bool = True) -> None:
        """Takes one entry, whose body is only lent. Answered through the producer, once. An error: nothing was taken.

        `counts`: deduplication remembers its sequence id, as of all entries but markers and chunks before the last.
        """

    def publish_run(
        self, producer: Producer, sends: Sequence[Send], first: int, end: int, view: memoryview, now: float
    ) -> Published:
        """The same for messages of one producer, `sends[first:end]`, whose bodies are in `view`."""
        result = Published(first)
        while result.end < end and self.has_room:
            _, sequence_id, highest_sequence_id, messages, offset, length = sends[result.end]
            result.end += 1
            try:
                self.publish(
                    (producer, sequence_id, highest_sequence_id, messages, length, now), view[offset : offset + length]
                )
            except MagnetarError as error:
                result.refused.append((max(sequence_id, highest_sequence_id), error))
            else:
                result.entries += 1
                result.size += length
        return result

    def wait_for_room(self, waiter: Waiter) -> None:
        if waiter not in self._waiting_for_room:
            self._waiting_for_room[waiter] = None
            waiter.hold(f"{_NO_ROOM} {self.name}")

    def on_room(self) -> None:
        waiting, self._waiting_for_room = self._waiting_for_room, {}
        for waiter in waiting:
            waiter.let_go(f"{_NO_ROOM} {self.name}")

    def _limit_rate(self, publish: Publish) -> None:
        """Only for topics that have a limit."""
        assert self._publish_limit is not None
        producer, _, _, messages, size, now = publish
        delay_s = self._publish_limit.take(messages, size, now)
        waiter = producer.sink
        if delay_s > 0 and waiter not in self._held_by_rate:
            self._held_by_rate[waiter] = None
            waiter.hold(f"{_RATE} {self.name}")
            self.loop.call_later(delay_s, self._let_go_by_rate, waiter)

    def _let_go_by_rate(self, waiter: Waiter) -> None:
        """Unless more was published since, or the limit has changed."""
        delay_s = 0.0 if self._publish_limit is None else self._publish_limit.take(0, 0, self.loop.time())
        if delay_s > 0:
            self.loop.call_later(delay_s, self._let_go_by_rate, waiter)
        else:
            del self._held_by_rate[waiter]
            waiter.let_go(f"{_RATE} {self.name}")

    async def _store_epoch(self, epoch: int) -> None:
        """Of exclusive producers, durable when this returns, if the topic is."""
        del epoch

    # --- producers ----------------------------------------------------------------------------------------------------

    async def add_producer(self, producer: Producer, on_queued: Callable[[], None]) -> int | None:
        """Returns the topic's epoch when it may publish; `on_queued` is called if that is not now."""
        self.require_usable()
        epoch = await self.producers.admit(producer, on_queued)
        try:
            self.require_usable()
        except BaseException:
            self.producers.remove(producer)
            raise
        producer.topic = self
        self.last_used_s = self.loop.time()
        return epoch

    def require_producer_room(self) -> None:
        """Before anything is done for a producer that would be refused anyway."""
        self.require_usable()
        self.producers.require_room()

    def last_sequence_id(self, producer_name: str) -> int:
        """The highest that a producer of this name has published, as far as that is remembered; else −1."""
        del producer_name
        return -1

    def remove_producer(self, producer: Producer) -> None:
        self.producers.remove(producer)
        self.last_used_s = self.loop.time()

    def disconnect_producers(self) -> None:
        """Their clients are told, and come back if they want to."""
        for producer in self.producers:
            producer.sink.close_producer(producer)
            self.remove_producer(producer)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def subscriptions(self) -> Mapping[str, SubscriptionLike]: ...

    @abstractmethod
    async def subscribe(self, options: SubscribeOptions, consumer: Consumer) -> SubscriptionLike:
        """The subscription, made if it must be and may be, with the consumer on it."""

    @abstractmethod
    async def unsubscribe(self, subscription: SubscriptionLike, consumer: Consumer, *, force: bool) -> None: ...

    @abstractmethod
    async def seek(
        self,
        subscription: SubscriptionLike,
        position: Position,
        still_unacked: Sequence[int] = (),
        batch_size: int = 0,
    ) -> None:
        """To this position; of its entry, if it is a batch, only the messages in `still_unacked`, if any are named."""

    @abstractmethod
    async def seek_to_time(self, subscription: SubscriptionLike, publish_ms: int) -> None: ...

    @abstractmethod
    async def last_message(self, *, read_compacted: bool = False) -> LastMessage: ...

    def mark_delete_of(self, subscription: SubscriptionLike) -> Position:
        del subscription
        return EARLIEST

    def backlog_of(self, subscription: SubscriptionLike) -> int:
        """In entries."""
        del subscription
        return 0

    def remove_consumer(self, subscription: SubscriptionLike, consumer: Consumer) -> None:
        """Again is harmless."""
        subscription.remove_consumer(consumer)
        self.last_used_s = self.loop.time()

    async def _make_way(self, subscription: SubscriptionLike, consumer: Consumer) -> None:
        """Before an Exclusive consumer is added: another one that is dead must not keep it out."""
        holder = next(iter(subscription.consumers), None)
        if holder is None or not holder.type is consumer.type is SubscriptionType.EXCLUSIVE:
            return
        if await gives_way(holder.sink.client, consumer.sink.client):
            subscription.remove_consumer(holder)  # Its connection has said so already, unless it was slow.

    @property
    def consumer_count(self) -> int:
        return sum(len(subscription.consumers) for subscription in self.subscriptions.values())

    def require_consumer_room(self) -> None:
        limit = self.policies.consumers_max
        if limit and self.consumer_count >= limit:
            raise ConsumerBusyError(f"topic {self.name} has {limit} consumers, as many as it may")

    def _require_rate(self, consumer: Consumer) -> None:
        host = consumer.about.address.rpartition(":")[0]
        is_limited = not self.name.is_system
        if is_limited and not self._subscribe_limit.admits(
            (host, consumer.name, consumer.consumer_id), self.loop.time()
        ):
            raise NotAllowedError(f"consumer {consumer.name!r} of topic {self.name} subscribes more often than it may")

    def _require_allowed(self, options: SubscribeOptions) -> None:
        if not options.subscription.strip():
            raise NotAllowedError("a subscription's name is not blank")
        if options.type.shown not in self.policies.subscription_types:
            raise NotAllowedError(
                f"topic {self.name} has no {options.type.shown} subscriptions: its policies allow "
                f"{', '.join(self.policies.subscription_types)}"
            )
        if options.read_compacted and options.type.is_individual:
            raise NotAllowedError("a compacted topic is read by Exclusive or Failover subscriptions only")
        limit = self.policies.subscriptions_max
        if limit and options.subscription not in self.subscriptions and len(self.subscriptions) >= limit:
            raise NotAllowedError(f"topic {self.name} has {limit} subscriptions, as many as it may")

    # --- the topic itself ---------------------------------------------------------------------------------------------

    @abstractmethod
    def require_usable(self) -> None:
        """Raises why nobody may be added: closing, fenced, terminated."""

    def apply(self, policies: EffectivePolicies) -> None:
        """From now on."""
        self.policies = policies
        self._apply_rates()

    def _apply_rates(self) -> None:
        self.producers.max_count = self.policies.producers_max
        often = self.policies.subscribe_rate
        self._subscribe_limit.change(*((often.per_consumer, often.period_s) if often is not None else (0, 0.0)))
        rate = self.policies.publish_rate
        if rate is None:
            self._publish_limit = None
        elif (limit := self._publish_limit) is None or (limit.messages_per_s, limit.bytes_per_s) != (
            rate.messages,
            rate.bytes,
        ):
            self._publish_limit = PublishLimit(rate.messages, rate.bytes, self.loop.time())

    @property
    def is_in_use(self) -> bool:
        """Whether anybody is connected."""
        return bool(len(self.producers)) or bool(self.producers.waiting) or self.consumer_count > 0

    @abstractmethod
    async def aclose(self, why: str = "topic unloaded") -> None:
        """Everybody is disconnected, what was taken is answered, all is durable. The topic can be loaded again."""

    @abstractmethod
    async def delete(self, *, force: bool = False, with_subscriptions: bool = False) -> None:
        """For ever. Refused while somebody is connected, unless forced; and while there is a subscription, unless
        they may go, too."""
