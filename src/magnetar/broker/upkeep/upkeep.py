"""Upkeep: one task that runs the chores of all loaded topics, each chore at its own interval.

`trim` drops ledgers that every durable cursor has passed, durably, and that retention does not need; never the last
one. `truncate` drops all of them, read or not; deduplication stores what was in them first. A compaction begins when
the uncompacted part exceeds the policies' threshold. Messages beyond their time to live are acknowledged on every
subscription, and unused subscriptions deleted, if the policies require it. Producers of a topic whose backlog exceeds
its quota are disconnected; they are refused when they come back, to hold or to fail as the policy requires
(backlog_limiter.py). Topics are taken one after the other, in slices of the loop's time, so that thousands of them do
not delay the clients.

Failure:   A chore that fails for one topic is logged, and repeated next time; the others continue, also after an
           unexpected error: otherwise a single topic would end the upkeep of all, for as long as the broker runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from magnetar.broker.publishing.dedup import CURSOR_NAME as DEDUP_CURSOR
from magnetar.broker.service import BrokerService
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.topic import Topic
from magnetar.broker.upkeep.compaction import CompactionStatus
from magnetar.errors import MagnetarError
from magnetar.runtime.runtime import Entropy
from magnetar.runtime.uncancelled import end_task
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


T = TypeVar("T", bound=Topic)

_TOPIC_SECONDS_MAX = 60.0  # What one chore of one topic may take; it delays the others.


@dataclass(slots=True)
class _Chore(Generic[T]):
    name: str
    interval_s: float
    topics: Callable[[], Sequence[T]]
    """Returns the loaded topics that it is for."""
    work: Callable[[T], Awaitable[object]]
    due_s: float = 0.0


class Upkeep:
    def __init__(self, service: BrokerService) -> None:
        self._service = service
        config, topics = service.config.upkeep, service.topics
        self._chores: list[_Chore[Any]] = [
            _Chore("trim", config.retention_check_s, topics.loaded_persistent, trim),
            _Chore("compact", config.compaction_check_s, topics.loaded_persistent, self._compact),
            _Chore("expire", config.expiry_check_s, topics.loaded_persistent, self._expire),
            _Chore("quota", config.backlog_quota_check_s, topics.loaded_persistent, self._check_quota),
            _Chore("idle", config.inactive_check_s, topics.loaded, self._end_idle),
        ]
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        now = self._loop.time()
        for chore in self._chores:
            chore.due_s = now + chore.interval_s
        self._task = self._loop.create_task(self._run(), name="broker-upkeep")

    async def aclose(self) -> None:
        await end_task(self._task)

    async def _run(self) -> None:
        while True:
            chore = min(self._chores, key=lambda each: each.due_s)
            await asyncio.sleep(max(0.0, chore.due_s - self._loop.time()))
            await self.run_chore(chore.name)
            chore.due_s = self._loop.time() + chore.interval_s

    async def run_chore(self, name: str) -> None:
        chore = next(each for each in self._chores if each.name == name)
        for topic in chore.topics():
            try:
                async with asyncio.timeout(_TOPIC_SECONDS_MAX):
                    await chore.work(topic)
            except (MagnetarError, TimeoutError) as error:
                log.warning("upkeep failed", extra={"chore": name, "topic": str(topic.name), "why": str(error)})
            except Exception:
                log.exception("upkeep failed unexpectedly", extra={"chore": name, "topic": str(topic.name)})
            await self._service.slices.turn()

    async def _compact(self, topic: PersistentTopic) -> None:
        threshold, runs = topic.policies.compaction_threshold_bytes, topic.compaction
        is_running = runs.status is CompactionStatus.RUNNING
        if threshold and not is_running and runs.uncompacted_bytes(topic.log.chain) >= threshold:
            runs.begin()

    async def _expire(self, topic: PersistentTopic) -> None:
        await expire(topic, self._service.entropy)
        await drop_idle_subscriptions(topic, self._service.entropy)

    async def _check_quota(self, topic: PersistentTopic) -> None:
        await check_quota(topic, self._service.entropy)

    async def _end_idle(self, topic: Topic) -> None:
        if topic.is_idle(self._loop.time()):
            log.info("an unused topic is deleted", extra={"topic": str(topic.name)})
            # A subscription that has just come keeps it, unless caught-up ones do not count.
            await self._service.delete_topic(topic.name, with_subscriptions=topic.goes_with_subscriptions)
        else:
            topic.forget_idle_producers(self._service.config.broker.deduplication_producer_idle_minutes * 60)
