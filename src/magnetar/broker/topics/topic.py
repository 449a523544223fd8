"""A topic as front ends see it: producers publish to it, subscriptions deliver from it.

persistent.py stores messages in a log; non_persistent.py passes them on and forgets them. Connected producers and
consumers keep a topic loaded; `last_used_s` is when the last one came or left.
Read next: broker/publishing/publisher.py, broker/publishing/producers.py, persistent.py
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.broker.ownership import Successor
from magnetar.broker.policies.registry import EffectivePolicies
from magnetar.broker.policies.values import DeleteMode
from magnetar.broker.publishing.producers import Producer, Producers
from magnetar.broker.publishing.publisher import Publisher, SubscribeLimit
from magnetar.broker.subscriptions.consumer import Consumer, SubscriptionType
from magnetar.broker.takeover import is_dead
from magnetar.errors import ConsumerBusyError, NotAllowedError, ResourceLimitError, TopicFencedError
from magnetar.names import TopicName
from magnetar.runtime.uncancelled import UncancelledTasks
from magnetar.topic.position import Position
from magnetar.words import counted


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
    @property
    def mark_delete(self) -> Position:
        """Returns the last position up to which everything is acknowledged."""

    @property
    def backlog_entries(self) -> int: ...
    async def seek(self, position: Position, still_unacked: Sequence[int] = (), batch_size: int = 0) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeOptions:
    """What a consumer asks for, besides what it is itself."""

    subscription: str
    type: SubscriptionType
    is_durable: bool = True
    start: Position | None = None
    """For a subscription that is not durable: the first message it wants, or EARLIEST or LATEST."""
    from_earliest: bool = False
    """Whether a new subscription begins with the oldest message, not with the next one."""
    rollback_s: int = 0
    """Begin with messages that were published up to this many seconds ago."""
    read_compacted: bool = False
    is_replicated: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LastMessage:
    position: Position
    batch_index: int = -1
    """The index of the last message in its batch; −1 if it is no batch."""


class Topic(ABC):
    """Made loaded, ended by `aclose` or `delete`."""

    is_persistent: bool

    publisher: Publisher
    subscriptions: Mapping[str, SubscriptionLike]

    def __init__(self, name: TopicName, policies: EffectivePolicies) -> None:
        """The kind sets `publisher` and `subscriptions`."""
        self.name = name
        self.policies = policies
        self.loop = asyncio.get_running_loop()
        self.producers = Producers(str(name), self._store_epoch)
        self.last_used_s = self.loop.time()
        self.created_s = self.last_used_s
        self.consumers_with_schema = 0
        """Connected consumers that brought a schema, or want none; those that take any are not counted."""
        self.successor: Successor | None = None
        """Set while the topic is unloaded, if another broker is to serve it: clients that are disconnected are informed
        when it is known, so that they do not look it up too early."""
        self._uncancelled = UncancelledTasks(given_up)
        """Changes that go to their end, even if the client that asked for them leaves."""
        self._subscribe_limit = SubscribeLimit()
        self._apply_limits()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    # --- producers ----------------------------------------------------------------------------------------------------

    async def _store_epoch(self, epoch: int) -> None:
        """Returns when the epoch of exclusive producers is durable, if the topic is."""
        del epoch

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
        self.publisher.on_connected(producer.name)
        return epoch

    async def require_producer_room(self) -> None:
        """Before anything is done for a producer that would be refused anyway."""
        self.require_usable()
        self.producers.require_room()

    def remove_producer(self, producer: Producer) -> None:
        self.producers.remove(producer)
        self.last_used_s = self.loop.time()
        self.publisher.on_disconnected(producer.name)

    def forget_idle_producers(self, idle_s: float) -> None:
        """Forgets what is remembered of producers that have not been connected for this many seconds."""
        connected = frozenset(producer.name for producer in self.producers)
        self.publisher.forget_producers(idle_s, connected.__contains__)

    def disconnect_producers(self) -> None:
        """Closes all producers. Their clients are notified, and may connect again."""
        for producer in self.producers:
            producer.sink.close_producer(producer)
            self.remove_producer(producer)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    @abstractmethod
    async def subscribe(self, options: SubscribeOptions, consumer: Consumer) -> SubscriptionLike:
        """The subscription, made if it must be and may be, with the consumer on it."""

    @abstractmethod
    async def ensure_subscription(self, name: str) -> None:
        """Makes it if it is missing, at the beginning of the topic, where subscriptions exist without a consumer."""

    @abstractmethod
    async def unsubscribe(
        self, subscription: SubscriptionLike, consumer: Consumer | None = None, *, force: bool = False
    ) -> None:
        """Deletes it. Refused while others than `consumer` are connected, unless forced."""

    async def seek(
        self,
        subscription: SubscriptionLike,
        position: Position,
        still_unacked: Sequence[int] = (),
        batch_size: int = 0,
    ) -> None:
        """To this position; of its entry, if it is a batch, only the messages in `still_unacked`, if any are named."""
        await self._uncancelled.run(subscription.seek(position, still_unacked, batch_size))

    async def seek_to_time(self, subscription: SubscriptionLike, publish_ms: int) -> None:
        await self.seek(subscription, await self.position_at_time(publish_ms))

    @abstractmethod
    async def position_at_time(self, publish_ms: int) -> Position:
        """Returns that of the first entry that was published at this time or later."""

    @abstractmethod
    async def last_message(self, *, read_compacted: bool = False) -> LastMessage: ...

    def remove_consumer(self, subscription: SubscriptionLike, consumer: Consumer) -> None:
        """Again is harmless."""
        subscription.remove_consumer(consumer)
        self.last_used_s = self.loop.time()

    async def _remove_dead_holder(self, subscription: SubscriptionLike, consumer: Consumer) -> None:
        """Before an Exclusive consumer is added: another one that is dead must not keep it out."""
        holder = next(iter(subscription.consumers), None)
        if holder is None or not holder.type is consumer.type is SubscriptionType.EXCLUSIVE:
            return
        if await is_dead(holder.sink.client, consumer.sink.client):
            subscription.remove_consumer(holder)  # Its connection has said so already, unless it was slow.

    @property
    def consumer_count(self) -> int:
        return sum(len(subscription.consumers) for subscription in self.subscriptions.values())

    def require_consumer_room(self) -> None:
        limit = self.policies.consumers_max
        if limit and self.consumer_count >= limit:
            raise ConsumerBusyError(
                f"topic {self.name} has {counted(limit, 'consumer')}, which is its limit: close one, or raise the limit"
            )

    def _require_rate(self, consumer: Consumer) -> None:
        host = consumer.about.address.rpartition(":")[0]
        is_limited = not self.name.is_system
        if is_limited and not self._subscribe_limit.admits(
            (host, consumer.name, consumer.consumer_id), self.loop.time()
        ):
            raise NotAllowedError(
                f"consumer {consumer.shown} of topic {self.name} subscribes more often than the subscribe rate "
                "allows: try again later"
            )

    def _require_allowed(self, options: SubscribeOptions) -> None:
        if not options.subscription.strip():
            raise NotAllowedError("the name of a subscription must not be blank")
        if options.type.shown not in self.policies.subscription_types:
            raise NotAllowedError(
                f"topic {self.name} does not allow {options.type.shown} subscriptions: its policies allow "
                f"{', '.join(self.policies.subscription_types)}"
            )
        if options.read_compacted and options.type.is_individual:
            raise NotAllowedError("a compacted topic is read by Exclusive or Failover subscriptions only")
        self.require_subscription_room(options.subscription)

    def require_subscription_room(self, name: str) -> None:
        """ResourceLimitError if a subscription of this name would be one too many."""
        limit = self.policies.subscriptions_max
        if limit and name not in self.subscriptions and len(self.subscriptions) >= limit:
            raise ResourceLimitError(
                f"topic {self.name} has {counted(limit, 'subscription')}, "
                "which is its limit: delete one, or raise the limit"
            )

    # --- the topic itself ---------------------------------------------------------------------------------------------

    @abstractmethod
    def require_usable(self) -> None:
        """Raises why no producer may be added: the topic is closing, fenced or terminated."""

    @property
    @abstractmethod
    def has_messages(self) -> bool:
        """Whether any are stored."""

    def apply(self, policies: EffectivePolicies) -> None:
        """From now on."""
        self.policies = policies
        self._apply_limits()
        self.publisher.apply(policies)

    def _apply_limits(self) -> None:
        self.producers.max_count = self.policies.producers_max
        often = self.policies.subscribe_rate
        self._subscribe_limit.change(*((often.per_consumer, often.period_s) if often is not None else (0, 0.0)))

    @property
    def is_in_use(self) -> bool:
        """Whether a producer or consumer is connected, or waits to be."""
        return bool(len(self.producers)) or bool(self.producers.waiting) or self.consumer_count > 0

    def is_idle(self, now_s: float) -> bool:
        """Whether it has been unused long enough to be deleted."""
        inactive = self.policies.inactive
        if not inactive.is_deleted or self.is_in_use or self.name.is_system:
            return False
        return now_s - self.last_used_s >= inactive.after_s

    @property
    def goes_with_subscriptions(self) -> bool:
        """Whether an idle topic is deleted although it has subscriptions, if these have read everything."""
        return self.policies.inactive.mode is DeleteMode.CAUGHT_UP

    @abstractmethod
    async def aclose(self, why: str = "topic unloaded") -> None:
        """Disconnects all clients, answers what was taken, and makes all durable. The topic can be loaded again."""

    @abstractmethod
    async def delete(self, *, force: bool = False, with_subscriptions: bool = False) -> None:
        """Deletes the topic. Refused while clients are connected, unless forced, and while it has subscriptions, unless
        they may be deleted, too.
        """


def given_up() -> TopicFencedError:
    """The error of a request whose work ended with the topic (runtime/uncancelled.py)."""
    return TopicFencedError("it was given up as the topic was closed: look the topic up, and try again")
