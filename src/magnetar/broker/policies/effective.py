"""EffectivePolicies: what counts for one topic after everybody was asked: the topic, its namespace, the settings.

Read next: merge.py (how it comes about), service.py (who keeps it), docs/policies.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from magnetar.broker.policies.values import (
    BacklogQuota,
    DispatchRate,
    InactiveTopics,
    Persistence,
    PublishRate,
    Retention,
    SubscribeRate,
)
from magnetar.broker.schemas.strategy import CompatibilityStrategy

NO_RATES: Mapping[str, DispatchRate] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePolicies:
    """Of one topic. Counts and times of 0 mean: no limit, never."""

    retention: Retention
    message_ttl_s: int
    storage_quota: BacklogQuota
    """By size; its `limit_bytes` of 0 or less is none."""
    age_quota: BacklogQuota
    """By age of the oldest message; its `limit_s` of 0 or less is none."""
    subscription_expiry_minutes: int
    compaction_threshold_bytes: int
    deduplication: bool
    deduplication_snapshot_s: int
    producers_max: int
    consumers_max: int
    consumers_per_subscription_max: int
    subscriptions_max: int
    unacked_per_consumer_max: int
    unacked_per_subscription_max: int
    subscription_types: tuple[str, ...]
    publish_rate: PublishRate | None
    dispatch_rate: DispatchRate | None
    subscription_dispatch_rate: DispatchRate | None
    subscription_dispatch_rates: Mapping[str, DispatchRate] = field(default_factory=lambda: NO_RATES)
    """Of single subscriptions; `dispatch_rate_of` knows which counts."""
    replicator_dispatch_rate: DispatchRate | None
    subscribe_rate: SubscribeRate | None
    delayed_delivery: bool
    delayed_tick_ms: int
    delayed_max_ms: int
    inactive: InactiveTopics
    persistence: Persistence | None
    """None: as the broker's settings of topics and cursors say."""
    message_bytes_max: int | None
    """None: as the broker's setting of connections says."""
    schema_compatibility: CompatibilityStrategy
    schema_auto_update: bool
    schema_validation_enforced: bool
    auto_create_subscriptions: bool
    encryption_required: bool
    replication_clusters: tuple[str, ...]
    entry_filters: str
    pause_on_ack_state: bool
    """Delivery waits while more acknowledgements are outstanding than a cursor can write down."""

    def dispatch_rate_of(self, subscription: str) -> DispatchRate | None:
        return self.subscription_dispatch_rates.get(subscription, self.subscription_dispatch_rate)
