"""The chores of one loaded topic.

`trim` drops ledgers that every durable cursor has passed, durably, and that retention does not need; never the last
one. `truncate` drops all of them, read or not; deduplication stores what was in them first. `compact_if_due` begins a
compaction when the uncompacted part exceeds the policies' threshold. `expire` acknowledges messages beyond their time
to live on every subscription. `check_quota` disconnects producers of a topic whose backlog exceeds its quota; they are
refused when they come back, to hold or to fail as the policy requires (backlog_limiter.py). `drop_idle_subscriptions`
deletes unused subscriptions, if the policies require it.
"""

from __future__ import annotations

import logging
from typing import Final

from magnetar.broker.publishing.dedup import CURSOR_NAME as DEDUP_CURSOR
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.upkeep.compaction import CompactionStatus
from magnetar.runtime.runtime import Entropy
from magnetar.topic.position import LATEST, Position

log = logging.getLogger(__name__)

_MEGABYTE: Final = 2**20
_MINUTE_MS: Final = 60_000
_RETURN_MINUTES: Final = 5  # After a topic was loaded, its consumers may still be coming from another broker.


async def trim(topic: PersistentTopic) -> int:
    """Returns the number of dropped ledgers."""
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


async def truncate(topic: PersistentTopic) -> None:
    """Drops every message that exists now, whether or not it was read."""
    subscriptions = list(topic.subscriptions.values())
    for subscription in subscriptions:
        await subscription.clear_backlog()
    if not topic.log.is_terminated:
        await topic.log.roll()
    await topic.log.trim(await _known_to_dedup(topic, topic.log.last_confirmed))
    topic.cursors.on_trimmed()
    for subscription in subscriptions:
        subscription.cursor_moved()


async def _known_to_dedup(topic: PersistentTopic, up_to: Position) -> Position:
    """Returns the position up to which deduplication would know messages without the log, also after a crash."""
    cursor = topic.cursors.get(DEDUP_CURSOR)
    if topic.publisher.dedup is None or cursor is None:
        return up_to
    await topic.publisher.dedup.snapshot()
    return min(up_to, cursor.stored_mark_delete)


def compact_if_due(topic: PersistentTopic) -> bool:
    """Begins a run if the uncompacted part exceeds the policies' threshold."""
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
        if subscription.backlog_entries and not subscription.is_fenced:
            expired += await subscription.expire(before_ms)
    return expired


async def check_quota(topic: PersistentTopic, entropy: Entropy) -> None:
    await topic.quota.check(entropy.wall_ms())
    if topic.quota.error is not None:
        topic.disconnect_producers()


async def drop_idle_subscriptions(topic: PersistentTopic, entropy: Entropy) -> None:
    minutes = topic.policies.subscription_expiry_minutes
    if not minutes:
        return
    await topic.subscriptions.store_activity()
    now_ms = entropy.wall_ms()
    before_ms, opened_before_ms = now_ms - minutes * _MINUTE_MS, now_ms - min(minutes, _RETURN_MINUTES) * _MINUTE_MS
    for subscription in topic.subscriptions.with_backlog():
        is_expired = subscription.last_active_ms < before_ms and subscription.opened_ms < opened_before_ms
        if is_expired and not subscription.consumers:
            log.info("an unused subscription is deleted", extra={"subscription": subscription.name})
            await topic.unsubscribe(subscription)
