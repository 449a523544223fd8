"""What the dispatchers of one subscription share: the log and the cursor that they use, their limits and their rates.

`TopicLog` is an EntrySource and `Cursor` is a SubscriptionCursor without an adapter. Tests have small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.broker.dispatch.rate_bucket import RateBucket
from magnetar.broker.policies.registry import EffectivePolicies
from magnetar.broker.policies.values import DispatchRate
from magnetar.broker.subscriptions.consumer import UNLIMITED
from magnetar.config.dispatch import DispatchConfig
from magnetar.runtime.runtime import Entropy
from magnetar.topic.cursor.acks import AckedParts
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position


class Chain(Protocol):
    """The positions of a topic. Every method is pure arithmetic."""

    @property
    def first_position(self) -> Position: ...
    @property
    def last_confirmed(self) -> Position: ...
    def next_position(self, position: Position) -> Position: ...
    def previous_position(self, position: Position) -> Position: ...
    def contains(self, position: Position) -> bool: ...
    def entries_between(self, after: Position, up_to: Position) -> int: ...


class EntrySource(Protocol):
    """A topic's log, or its compacted view."""

    @property
    def chain(self) -> Chain: ...
    @property
    def last_confirmed(self) -> Position: ...
    @property
    def is_terminated(self) -> bool: ...
    def read_nowait(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry] | None: ...
    async def read(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]: ...
    def watch_tail(self, callback: Callable[[], None]) -> None: ...
    def unwatch_tail(self, callback: Callable[[], None]) -> None: ...
    async def position_at_time(self, publish_ms: int) -> Position: ...


class IndexedSource(EntrySource, Protocol):
    """A topic's log, whose entries carry the indexes of their messages."""

    @property
    def next_confirmed_index(self) -> int: ...
    async def index_bounds(self, position: Position) -> tuple[int, int] | None: ...


class SubscriptionCursor(Protocol):
    """What a subscription has acknowledged."""

    @property
    def name(self) -> str: ...
    @property
    def mark_delete(self) -> Position: ...
    @property
    def is_durable(self) -> bool: ...
    @property
    def is_storable(self) -> bool: ...
    @property
    def last_acknowledged(self) -> Position: ...
    def acknowledge(self, positions: Sequence[Position]) -> int: ...
    def acknowledge_batch(self, position: Position, still_unacked: Sequence[int], batch_size: int) -> bool: ...
    def acknowledge_to(
        self, position: Position, still_unacked: Sequence[int] | None = None, batch_size: int = 0
    ) -> None: ...
    def is_acknowledged(self, position: Position) -> bool: ...
    def ack_set_of(self, position: Position) -> Sequence[int] | None: ...
    def next_unacknowledged(self, position: Position) -> Position: ...
    def backlog_entries(self) -> int: ...
    def acked_parts(self, parts_max: int) -> AckedParts | None: ...
    async def flush(self) -> None: ...
    def flush_soon(self) -> None: ...
    async def reset(
        self, position: Position, still_unacked: Sequence[int] | None = None, batch_size: int = 0
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    """The policies of broker, namespace and topic, merged for one subscription. 0 means no limit."""

    unacked_messages_per_consumer_max: int = 50_000
    unacked_messages_per_subscription_max: int = 200_000
    consumers_max: int = 0
    delayed_delivery: bool = True
    delayed_tick_ms: int = 1_000
    rate: DispatchRate | None = None
    pause_on_ack_state: bool = False
    """No further entry is delivered while more is acknowledged out of order than the cursor stores."""

    @classmethod
    def of(cls, config: DispatchConfig) -> DispatchLimits:
        """The limits of a broker without policies."""
        return cls(
            unacked_messages_per_consumer_max=config.unacked_messages_per_consumer_max,
            unacked_messages_per_subscription_max=config.unacked_messages_per_subscription_max,
            consumers_max=config.consumers_per_subscription_max,
            delayed_delivery=config.delayed_delivery,
            delayed_tick_ms=config.delayed_tick_ms,
        )

    @classmethod
    def of_policies(cls, policies: EffectivePolicies, subscription: str) -> DispatchLimits:
        return cls(
            unacked_messages_per_consumer_max=policies.unacked_per_consumer_max,
            unacked_messages_per_subscription_max=policies.unacked_per_subscription_max,
            consumers_max=policies.consumers_per_subscription_max,
            delayed_delivery=policies.delayed.is_enabled,
            delayed_tick_ms=policies.delayed.tick_ms,
            rate=policies.dispatch_rate_of(subscription),
            pause_on_ack_state=policies.pause_on_ack_state,
        )


@dataclass(slots=True)
class DispatchContext:
    subscription: str
    topic: str
    partition: int
    cursor: SubscriptionCursor
    source: IndexedSource
    compacted: EntrySource | None
    config: DispatchConfig
    entropy: Entropy
    limits: DispatchLimits
    rates: Sequence[RateBucket]

    @property
    def unacked_per_consumer_max(self) -> int:
        """0: no limit. A cursor that is not durable has none."""
        return self.limits.unacked_messages_per_consumer_max if self.cursor.is_durable else 0

    def entries_allowed_from(self, position: Position) -> int:
        """Returns how many entries may be delivered from `position` on, so that a crash undoes no acknowledgement. When
        too much is acknowledged out of order, these are the ones that may close a gap, and no others."""
        cursor = self.cursor
        if not self.limits.pause_on_ack_state or not cursor.is_durable or cursor.is_storable:
            return UNLIMITED
        first = cursor.next_unacknowledged(position)
        return self.source.chain.entries_between(first.previous, cursor.last_acknowledged)
