"""Looking after one loaded topic: what it gives back, what it forgets, whom it holds up.

Trim:      ledgers that every durable cursor has passed, durably, and that retention does not want; never the last one.
Truncate:  all of them, read or not; deduplication remembers what was in them, durably, before they go.
Compact:   when more is not compacted than the policies' threshold.
Expire:    messages beyond their time to live count as acknowledged on every subscription.
Quota:     a backlog of durable subscriptions beyond its size or age, each with a policy of its own: producers are
           disconnected and refused, to hold or to fail as the policy says; or the oldest messages of the slowest
           subscriptions are skipped until it fits. Readers have no backlog: nothing is kept for them.
Idle:      a topic that nobody is connected to, and that has no subscription (or none with anything to read), is
           deleted after a while; subscriptions that nobody uses, too, if the policies say so. Deduplication forgets
           producers that have not been there for long.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from magnetar.broker.compaction import CompactionStatus
from magnetar.broker.dedup import CURSOR_NAME as DEDUP_CURSOR
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.policies.values import DeleteMode, QuotaPolicy
from magnetar.broker.sink_marks import has_marks
from magnetar.broker.subscription import Subscription
from magnetar.broker.topic import Topic
from magnetar.errors import BacklogQuotaExceededError
from magnetar.runtime.entropy import Entropy
from magnetar.topic.log_search import time_of
from magnetar.topic.position import LATEST, Position

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


async def truncate(topic: PersistentTopic) -> None:
    """Drops every message there is now, whether or not it was read."""
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
    """As far as deduplication would know its messages without the log, also after a crash."""
    cursor = topic.cursors.get(DEDUP_CURSOR)
    if topic.dedup is None or cursor is None:
        return up_to
    await topic.dedup.snapshot()
    return min(up_to, cursor.stored_mark_delete)


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
        if subscription.cursor.backlog_entries() and not subscription.is_fenced:
            expired += await subscription.expire(before_ms)
    return expired


async def check_quota(topic: PersistentTopic, entropy: Entropy) -> None:
    """Room is made first, where that is the policy: only what is beyond its quota even then holds producers."""
    exceeded = await _exceeded(topic, entropy)
    if skipping := [each for each in exceeded if each.is_skipped]:
        for each in skipping:
            await each.make_room()
        exceeded = await _exceeded(topic, entropy)
    _note_quota(topic, exceeded)
    if topic.quota_error is not None:
        extra = {"topic": str(topic.name), "why": str(topic.quota_error)}
        log.warning("a topic's backlog is beyond its quota", extra=extra)
        topic.disconnect_producers()


async def look_at_quota(topic: PersistentTopic, entropy: Entropy) -> None:
    """For a producer that wants to be admitted: as it is now, and not at the last check."""
    _note_quota(topic, await _exceeded(topic, entropy))


@dataclass(frozen=True, slots=True)
class _Exceeded:
    """A quota that the backlog is beyond; each kind has a policy of its own."""

    policy: QuotaPolicy
    why: str
    make_room: Callable[[], Awaitable[None]]

    @property
    def is_skipped(self) -> bool:
        return self.policy is QuotaPolicy.SKIP_OLDEST


def _note_quota(topic: PersistentTopic, exceeded: Sequence[_Exceeded]) -> None:
    refusing = next((each for each in exceeded if not each.is_skipped), None)
    topic.quota_error = (
        None if refusing is None else BacklogQuotaExceededError(refusing.why, policy=str(refusing.policy))
    )


async def _exceeded(topic: PersistentTopic, entropy: Entropy) -> list[_Exceeded]:
    size, age = topic.policies.storage_quota, topic.policies.age_quota
    found = []
    if size.limit_bytes > 0 and (held := backlog_bytes(topic)) >= size.limit_bytes:
        why = f"topic {topic.name} has a backlog of {held} bytes: its quota is {size.limit_bytes}"
        found.append(_Exceeded(size.policy, why, partial(_skip_to_size, topic, size.limit_bytes)))
    if age.limit_s > 0 and (old_s := await _oldest_age_s(topic, entropy)) >= age.limit_s:
        why = f"the oldest message of {topic.name} is {old_s:.0f} s old: its quota is {age.limit_s} s"
        before_ms = entropy.wall_ms() - age.limit_s * 1000
        found.append(_Exceeded(age.policy, why, partial(_skip_to_time, topic, before_ms)))
    return found


def _durable(topic: PersistentTopic) -> list[Subscription]:
    """Those whose backlog the topic must keep. A reader's is not kept for it: it reads what is there. One that is being
    deleted or set to another place has none until that is over."""
    return [each for each in topic.subscriptions.values() if each.cursor.is_durable and not each.is_fenced]


def backlog_bytes(topic: PersistentTopic) -> int:
    """Of the durable subscription that is most behind."""
    return max((_bytes_behind(topic, each) for each in _durable(topic)), default=0)


def _bytes_behind(topic: PersistentTopic, subscription: Subscription) -> int:
    return topic.log.chain.bytes_between(subscription.cursor.mark_delete, topic.log.last_confirmed)


async def _oldest_age_s(topic: PersistentTopic, entropy: Entropy) -> float:
    mark_deletes = [each.cursor.mark_delete for each in _durable(topic)]
    if not mark_deletes:
        return 0.0
    first = topic.log.chain.next_position(min(mark_deletes))
    if not topic.log.chain.contains(first):
        return 0.0
    entries = await topic.log.read(first, 1, 1)
    if not entries:
        return 0.0
    return (entropy.wall_ms() - time_of(entries[0])) / 1000


async def _skip_to_size(topic: PersistentTopic, limit_bytes: int) -> None:
    for subscription in _durable(topic):
        behind = _bytes_behind(topic, subscription)
        if behind >= limit_bytes:
            entries = subscription.cursor.backlog_entries()
            await subscription.skip(max(1, int(entries * (1 - _SIZE_TARGET * limit_bytes / behind))))


async def _skip_to_time(topic: PersistentTopic, before_ms: int) -> None:
    for subscription in _durable(topic):
        await subscription.expire(before_ms)


async def drop_idle_subscriptions(topic: PersistentTopic, entropy: Entropy) -> None:
    minutes = topic.policies.subscription_expiry_minutes
    if not minutes:
        return
    before_ms = entropy.wall_ms() - minutes * _MINUTE_MS
    for subscription in _durable(topic):
        if not subscription.consumers and subscription.last_active_ms < before_ms:
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
    return not topic.subscriptions or (goes_with_subscriptions(topic) and _all_have_read(topic))


def goes_with_subscriptions(topic: Topic) -> bool:
    """Whether subscriptions that have read everything do not keep it."""
    return topic.policies.inactive.mode is DeleteMode.CAUGHT_UP


def _all_have_read(topic: PersistentTopic) -> bool:
    """One that is being set to another place is going to read, whatever its cursor says until then."""
    durable = [each for each in topic.subscriptions.values() if each.cursor.is_durable]
    return not any(each.is_fenced or each.cursor.backlog_entries() for each in durable)


def _is_retained(topic: PersistentTopic, unused_s: float) -> bool:
    """Messages that are to be kept for a time keep their topic for as long."""
    minutes = topic.policies.retention.minutes
    return topic.log.chain.entries > 0 and (minutes < 0 or unused_s < minutes * 60)


def forget_producers(topic: PersistentTopic, idle_s: float, now_s: float) -> None:
    if topic.dedup is not None:
        connected = frozenset(producer.name for producer in topic.producers)
        topic.dedup.forget_idle(idle_s, now_s, connected.__contains__)
