"""Looking after one loaded topic: what it gives back, what it forgets, whom it holds up.

Trim:      ledgers that every durable cursor has passed, durably, and that retention does not want; never the last one.
Compact:   when more is not compacted than the policies' threshold.
Expire:    messages beyond their time to live count as acknowledged on every subscription.
Quota:     a backlog beyond its size or age: producers are disconnected and refused, to hold or to fail as the policy
           says; or the oldest messages of the slowest subscriptions are skipped until it fits.
Idle:      a topic that nobody is connected to, and that has no subscription (or none with anything to read), is
           deleted after a while; subscriptions that nobody uses, too, if the policies say so.
"""

from __future__ import annotations

import logging
from typing import Final

from magnetar.broker.compaction import CompactionStatus
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.policies.values import DeleteMode, QuotaPolicy
from magnetar.broker.sink_marks import has_marks
from magnetar.broker.subscription import Subscription
from magnetar.broker.topic import Topic
from magnetar.errors import BacklogQuotaExceededError
from magnetar.runtime.entropy import Entropy
from magnetar.topic.log_search import time_of
from magnetar.topic.position import LATEST

log = logging.getLogger(__name__)

_MEGABYTE: Final = 2**20
_MINUTE_MS: Final = 60_000
_SIZE_TARGET: Final = 0.9  # Of the quota, when the oldest messages are skipped: so that it is not at once beyond again.


async def trim(topic: PersistentTopic) -> int:
    """Returns how many ledgers went."""
    await topic.log.roll_if_due()
    retention = topic.policies.retention
    consumed = topic.cursors.slowest_mark_delete()
    retention_ms = retention.minutes * _MINUTE_MS if retention.minutes >= 0 else -1
    retention_bytes = retention.megabytes * _MEGABYTE if retention.megabytes >= 0 else -1
    gone = await topic.log.trim(
        LATEST if consumed is None else consumed, retention_ms=retention_ms, retention_bytes=retention_bytes
    )
    if gone:
        topic.cursors.on_trimmed()
    return len(gone)


def compact_if_due(topic: PersistentTopic) -> bool:
    """Begins a run if more than the policies' threshold is not compacted."""
    threshold, runs = topic.policies.compaction_threshold_bytes, topic.compaction
    if not threshold or runs.status is CompactionStatus.RUNNING:
        return False
    if runs.uncompacted_bytes(topic.log.chain) < threshold:
        return False
    runs.begin()
    return True


async def expire(topic: PersistentTopic, entropy: Entropy) -> int:
    """Returns how many entries were too old, over all subscriptions."""
    ttl_s = topic.policies.message_ttl_s
    if not ttl_s:
        return 0
    before_ms = entropy.wall_ms() - ttl_s * 1000
    expired = 0
    for subscription in list(topic.subscriptions.values()):
        if subscription.cursor.backlog_entries():
            expired += await subscription.expire(before_ms)
    return expired


async def check_quota(topic: PersistentTopic, entropy: Entropy) -> None:
    beyond = await _beyond_quota(topic, entropy)
    _note_quota(topic, beyond)
    if topic.quota_error is not None:
        extra = {"topic": str(topic.name), "why": str(topic.quota_error)}
        log.warning("a topic's backlog is beyond its quota", extra=extra)
        topic.disconnect_producers()
    elif beyond is not None:
        await _skip_oldest(topic, entropy)


async def look_at_quota(topic: PersistentTopic, entropy: Entropy) -> None:
    """For a producer that wants to be admitted: as it is now, and not at the last check."""
    _note_quota(topic, await _beyond_quota(topic, entropy))


def _note_quota(topic: PersistentTopic, beyond: tuple[QuotaPolicy, str] | None) -> None:
    topic.quota_error = None
    if beyond is not None and beyond[0] is not QuotaPolicy.SKIP_OLDEST:
        topic.quota_error = BacklogQuotaExceededError(beyond[1], policy=str(beyond[0]))


async def _beyond_quota(topic: PersistentTopic, entropy: Entropy) -> tuple[QuotaPolicy, str] | None:
    size, age = topic.policies.storage_quota, topic.policies.age_quota
    if size.limit_bytes > 0 and (held := backlog_bytes(topic)) >= size.limit_bytes:
        return size.policy, f"topic {topic.name} has a backlog of {held} bytes: its quota is {size.limit_bytes}"
    if age.limit_s > 0 and (old_s := await _oldest_age_s(topic, entropy)) >= age.limit_s:
        return age.policy, f"the oldest message of {topic.name} is {old_s:.0f} s old: its quota is {age.limit_s} s"
    return None


def backlog_bytes(topic: PersistentTopic) -> int:
    """Of the subscription that is most behind."""
    return max((_bytes_behind(topic, each) for each in topic.subscriptions.values()), default=0)


def _bytes_behind(topic: PersistentTopic, subscription: Subscription) -> int:
    return topic.log.chain.bytes_between(subscription.cursor.mark_delete, topic.log.last_confirmed)


async def _oldest_age_s(topic: PersistentTopic, entropy: Entropy) -> float:
    durable = [each.cursor for each in topic.subscriptions.values() if each.cursor.is_durable]
    if not durable:
        return 0.0
    first = topic.log.chain.next_position(min(cursor.mark_delete for cursor in durable))
    if not topic.log.chain.contains(first):
        return 0.0
    entries = await topic.log.read(first, 1, 1)
    if not entries:
        return 0.0
    return (entropy.wall_ms() - time_of(entries[0])) / 1000


async def _skip_oldest(topic: PersistentTopic, entropy: Entropy) -> None:
    size, age = topic.policies.storage_quota, topic.policies.age_quota
    for subscription in list(topic.subscriptions.values()):
        behind = _bytes_behind(topic, subscription)
        if size.limit_bytes > 0 and behind > size.limit_bytes:
            entries = subscription.cursor.backlog_entries()
            await subscription.skip(max(1, int(entries * (1 - _SIZE_TARGET * size.limit_bytes / behind))))
        if age.limit_s > 0:
            await subscription.expire(entropy.wall_ms() - age.limit_s * 1000)


async def drop_idle_subscriptions(topic: PersistentTopic, entropy: Entropy) -> None:
    minutes = topic.policies.subscription_expiry_minutes
    if not minutes:
        return
    before_ms = entropy.wall_ms() - minutes * _MINUTE_MS
    for subscription in list(topic.subscriptions.values()):
        seen = subscription.statistics()
        last_ms = max(seen.last_acked_ms, seen.last_flow_ms, seen.last_delivered_ms)
        if not subscription.consumers and subscription.cursor.is_durable and 0 < last_ms < before_ms:
            log.info("a subscription is deleted: nobody used it", extra={"subscription": subscription.name})
            await topic.unsubscribe(subscription)


def is_idle(topic: Topic, now_s: float) -> bool:
    """Whether it is to be deleted."""
    inactive = topic.policies.inactive
    if not inactive.is_deleted or topic.is_in_use or topic.name.is_system:
        return False
    if now_s - topic.last_used_s < inactive.after_s:
        return False
    if not isinstance(topic, PersistentTopic):
        return True
    if has_marks(topic.log.properties):  # A job publishes to it, without ever being connected.
        return False
    if _is_retained(topic, now_s - topic.last_used_s):
        return False
    durable = [each for each in topic.subscriptions.values() if each.cursor.is_durable]
    if inactive.mode is DeleteMode.NO_SUBSCRIPTIONS:
        return not durable
    return all(not each.cursor.backlog_entries() for each in durable)


def _is_retained(topic: PersistentTopic, unused_s: float) -> bool:
    """Messages that are to be kept for a time keep their topic for as long."""
    minutes = topic.policies.retention.minutes
    return topic.log.chain.entries > 0 and (minutes < 0 or unused_s < minutes * 60)


async def remember_producers(topic: PersistentTopic, idle_s: float, now_s: float) -> None:
    if topic.dedup is None:
        return
    connected = frozenset(producer.name for producer in topic.producers)
    topic.dedup.forget_idle(now_s - idle_s, connected.__contains__)
    await topic.dedup.snapshot(topic.log.last_confirmed)
