"""Snapshots of subscriptions and consumers, as the admin interface and metrics show them. Counts are in messages."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.broker.consumer import ConsumerAbout
from magnetar.topic.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainingHash:
    """A key hash that belongs to another consumer now, and waits until this one has acknowledged what it has."""

    key_hash: int
    unacked_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """Times are wall milliseconds, 0 if it never happened."""

    consumer_id: int
    name: str
    priority: int
    about: ConsumerAbout
    is_active: bool
    permits: int
    unacked_messages: int
    is_blocked: bool
    messages_per_entry: float
    delivered_entries: int
    delivered_messages: int
    delivered_bytes: int
    redelivered_messages: int
    acked_messages: int
    first_delivered_ms: int
    last_delivered_ms: int
    last_acked_ms: int
    last_flow_ms: int
    key_ranges: tuple[tuple[int, int], ...] = ()
    draining_hashes: tuple[DrainingHash, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStatistics:
    """`delivered_*`, `acked_*`, `redelivered_*` include consumers that have left."""

    name: str
    type: str
    is_durable: bool
    consumers: tuple[ConsumerStatistics, ...]
    active_consumer: str | None
    mark_delete: Position
    next_read: Position | None
    backlog_entries: int
    unacked_messages: int
    is_blocked_on_unacked: bool
    waiting_for_redelivery: int
    delayed_entries: int
    delayed_index_bytes: int
    delivered_entries: int
    delivered_messages: int
    delivered_bytes: int
    redelivered_messages: int
    acked_messages: int
    expired_entries: int
    last_expire_ms: int
    last_acked_ms: int
    last_delivered_ms: int
    last_flow_ms: int
    allow_out_of_order: bool = False
    key_shared_mode: str | None = None
