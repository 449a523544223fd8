"""Subscriptions of non-persistent topics: a consumer gets what it can take now; the rest is dropped and counted.

Nothing is read, acknowledged or delivered again, because there is no log and no cursor. The consumer of an entry is
chosen as on persistent topics (next_consumer.py): the active one, the next in turn, or the one of the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magnetar.broker.dispatch.next_consumer import (
    KeyAssignment,
    RoundRobin,
    choose_active,
    hash_of_entry,
    make_assignment,
)
from magnetar.broker.dispatch.rate_bucket import RateBucket
from magnetar.broker.subscriptions.consumer import UNLIMITED, Consumer, Delivery, SubscriptionType
from magnetar.config.dispatch import DispatchConfig
from magnetar.errors import ConsumerBusyError, SubscriptionFencedError, SubscriptionTypeError
from magnetar.runtime.runtime import Entropy
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST, Position


@dataclass(frozen=True, slots=True, kw_only=True)
class NonPersistentStatistics:
    name: str
    type: str
    consumers: tuple[str, ...]
    active_consumer: str | None
    delivered_entries: int
    delivered_messages: int
    delivered_bytes: int
    dropped_messages: int


class NonPersistentSubscription:
    """Not durable: it ends with its last consumer, unless its topic keeps it."""

    def __init__(
        self,
        name: str,
        config: DispatchConfig,
        entropy: Entropy,
        *,
        topic: str = "",
        partition: int = -1,
        consumers_max: int = 0,
        topic_rate: RateBucket | None = None,
    ) -> None:
        self.name = name
        self.consumers: list[Consumer] = []
        self.consumers_max = consumers_max
        self.type: SubscriptionType | None = None
        self.dropped_messages = 0
        self._config = config
        self._entropy = entropy
        self._topic = topic
        self._partition = partition
        self._topic_rate = topic_rate
        self._active: Consumer | None = None
        self._ring = RoundRobin()
        self._assignment: KeyAssignment | None = None
        self._is_closed = False
        self._delivered = [0, 0, 0]  # Entries, messages, bytes; for all consumers there ever were.

    @property
    def active_consumer(self) -> Consumer | None:
        return self._active

    # --- consumers ----------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Raises ConsumerBusyError, SubscriptionTypeError, SubscriptionFencedError or ConsumerAssignError."""
        if self._is_closed:
            raise SubscriptionFencedError(f"subscription {self.name} is closed: connect again")
        self._check(consumer)
        if not self.consumers:
            self.type = consumer.type
            self._assignment = self._assignment_for(consumer)
        if self._assignment is not None:
            self._assignment.add(consumer)
        self._ring.add(consumer)
        self.consumers.append(consumer)
        consumer.is_connected = True
        try:
            self._choose(consumer)
        except BaseException:
            self.remove_consumer(consumer)  # The caller takes it for one that was not added.
            raise

    def _check(self, consumer: Consumer) -> None:
        if not self.consumers:
            return
        first = self.consumers[0]
        if consumer.type is not self.type or consumer.key_shared.mode is not first.key_shared.mode:
            raise SubscriptionTypeError(
                f"consumer {consumer.shown} wants {consumer.type.shown}, the connected consumers have "
                f"{first.type.shown}: connect with the same settings, or wait until they are closed"
            )
        is_full = 0 < self.consumers_max <= len(self.consumers)
        if self.type is SubscriptionType.EXCLUSIVE or is_full:
            raise ConsumerBusyError(
                f"subscription {self.name} takes no further consumer, {first.name!r} is connected: close one first"
            )

    def _assignment_for(self, consumer: Consumer) -> KeyAssignment | None:
        if consumer.type is not SubscriptionType.KEY_SHARED:
            return None
        return make_assignment(consumer.key_shared.mode, self._config)

    def remove_consumer(self, consumer: Consumer) -> None:
        """A second call does nothing."""
        if not consumer.is_connected:
            return
        consumer.is_connected = False
        self.consumers.remove(consumer)
        self._ring.remove(consumer)
        if self._assignment is not None:
            self._assignment.remove(consumer)
        self._choose(None)

    def _choose(self, added: Consumer | None) -> None:
        if self.type is None or self.type.is_individual:
            return
        by_ring = self._config.failover_consistent_hashing
        before, self._active = self._active, None
        if self.consumers:
            self._active = choose_active(self.consumers, self._topic, self._partition, by_ring=by_ring)
        if self.type is SubscriptionType.FAILOVER:
            notified = self.consumers if self._active is not before else [added] if added is not None else []
            for consumer in notified:
                consumer.sink.active_changed(consumer is self._active)

    def flow(self, consumer: Consumer, permits: int) -> None:
        if consumer.is_connected and permits > 0:
            consumer.permits += permits
            consumer.last_flow_ms = self._entropy.wall_ms()
            consumer.first_flow_ms = consumer.first_flow_ms or consumer.last_flow_ms

    # There is nothing to acknowledge, to give back or to go back to; clients ask for it anyway.

    @property
    def mark_delete(self) -> Position:
        return EARLIEST

    @property
    def backlog_entries(self) -> int:
        return 0

    async def seek(self, position: Position, still_unacked: Sequence[int] = (), batch_size: int = 0) -> None: ...

    def resume(self, consumer: Consumer) -> None: ...

    def acknowledge(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        consumer.acked_messages += len(positions)
        consumer.last_acked_ms = self._entropy.wall_ms()

    def acknowledge_batch(
        self, consumer: Consumer, position: Position, still_unacked: Sequence[int], batch_size: int = 0
    ) -> None: ...

    def acknowledge_to(
        self, consumer: Consumer, position: Position, still_unacked: Sequence[int] = (), batch_size: int = 0
    ) -> None: ...

    async def flush(self) -> None: ...

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None = None, epoch: int = 0) -> None: ...

    def disconnect_all(self, why: str) -> None:
        for consumer in list(self.consumers):
            self.remove_consumer(consumer)
            consumer.sink.disconnect(why)

    async def aclose(self, why: str = "the topic is unloaded") -> None:
        self._is_closed = True
        self.disconnect_all(why)

    # --- entries ------------------------------------------------------------------------------------------------------

    def publish(self, entries: Sequence[LogEntry]) -> None:
        """Hands out a run of entries. An entry that no consumer can take now is dropped."""
        shares: dict[Consumer, list[Delivery]] = {}
        counts: dict[Consumer, int] = {}
        choose = self._chooser()
        budget = self._messages_allowed()
        for entry in entries:
            consumer = choose(entry) if budget > 0 else None
            messages = entry.messages
            if consumer is None:
                self.dropped_messages += messages
                continue
            consumer.permits -= messages
            budget -= messages
            shares.setdefault(consumer, []).append((entry, 0, None))
            counts[consumer] = counts.get(consumer, 0) + messages
        for consumer, deliveries in shares.items():
            self._send(consumer, deliveries, counts[consumer])

    def _messages_allowed(self) -> int:
        rate = self._topic_rate
        if rate is None or not rate.is_limited:
            return UNLIMITED
        messages, size = rate.available(asyncio.get_running_loop().time())
        return messages if size > 0 else 0

    def _chooser(self) -> Callable[[LogEntry], Consumer | None]:
        self._ring.begin()
        if self.type is SubscriptionType.KEY_SHARED:
            return self._of_key
        if self.type is SubscriptionType.SHARED:
            return lambda _: self._ring.next()
        return lambda _: self._active if self._active is not None and self._active.is_available else None

    def _of_key(self, entry: LogEntry) -> Consumer | None:
        if self._assignment is None:
            return None
        consumer = self._assignment.owner_of(hash_of_entry(entry, self._assignment.first_hash))
        return consumer if consumer is not None and consumer.is_available else None

    def _send(self, consumer: Consumer, deliveries: list[Delivery], messages: int) -> None:
        size = sum(len(entry.data) for entry, _, _ in deliveries)
        now = self._entropy.wall_ms()
        consumer.first_delivered_ms = consumer.first_delivered_ms or now
        consumer.last_delivered_ms = now
        consumer.delivered_entries += len(deliveries)
        consumer.delivered_messages += messages
        consumer.delivered_bytes += size
        self._delivered[0] += len(deliveries)
        self._delivered[1] += messages
        self._delivered[2] += size
        if self._topic_rate is not None:
            self._topic_rate.take(messages, size)
        consumer.sink.deliver(deliveries)

    def statistics(self) -> NonPersistentStatistics:
        return NonPersistentStatistics(
            name=self.name,
            type="" if self.type is None else self.type.shown,
            consumers=tuple(consumer.name for consumer in self.consumers),
            active_consumer=None if self._active is None else self._active.name,
            delivered_entries=self._delivered[0],
            delivered_messages=self._delivered[1],
            delivered_bytes=self._delivered[2],
            dropped_messages=self.dropped_messages,
        )
