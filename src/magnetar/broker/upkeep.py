"""Upkeep: one task that looks after all loaded topics, each chore at its own interval.

A chore that fails for one topic is logged, and done again next time; the others go on, also after what nobody expected:
else a single topic would end the upkeep of all, for as long as the broker runs. Topics are taken one after the
other, with a turn of the loop between them, so that thousands of them do not stall the clients.
Read next: topic_upkeep.py
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from magnetar.broker import topic_upkeep
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.service import BrokerService
from magnetar.broker.topic import Topic
from magnetar.errors import MagnetarError

log = logging.getLogger(__name__)

_TOPIC_SECONDS_MAX = 60.0  # What one chore of one topic may take; it holds up the others.


@dataclass(slots=True)
class _Chore:
    name: str
    interval_s: float
    work: Callable[[Topic], Awaitable[None]]
    due_s: float = 0.0


class Upkeep:
    def __init__(self, service: BrokerService) -> None:
        self._service = service
        config = service.config.upkeep
        self._chores = [
            _Chore("trim", config.retention_check_s, self._trim),
            _Chore("compact", config.compaction_check_s, self._compact),
            _Chore("expire", config.expiry_check_s, self._expire),
            _Chore("quota", config.backlog_quota_check_s, self._check_quota),
            _Chore("idle", config.inactive_check_s, self._end_idle),
        ]
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        now = self._loop.time()
        for chore in self._chores:
            chore.due_s = now + chore.interval_s
        self._task = self._loop.create_task(self._run(), name="broker-upkeep")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            chore = min(self._chores, key=lambda each: each.due_s)
            await asyncio.sleep(max(0.0, chore.due_s - self._loop.time()))
            await self.run_chore(chore.name)
            chore.due_s = self._loop.time() + chore.interval_s

    async def run_chore(self, name: str) -> None:
        """Now, for all topics."""
        chore = next(each for each in self._chores if each.name == name)
        for topic in self._service.topics.loaded():
            try:
                async with asyncio.timeout(_TOPIC_SECONDS_MAX):
                    await chore.work(topic)
            except (MagnetarError, TimeoutError) as error:
                log.warning("upkeep failed", extra={"chore": name, "topic": str(topic.name), "why": str(error)})
            except Exception:
                log.exception("upkeep failed unexpectedly", extra={"chore": name, "topic": str(topic.name)})
            await asyncio.sleep(0)

    async def _trim(self, topic: Topic) -> None:
        if isinstance(topic, PersistentTopic):
            await topic_upkeep.trim(topic)

    async def _compact(self, topic: Topic) -> None:
        if isinstance(topic, PersistentTopic):
            topic_upkeep.compact_if_due(topic)

    async def _expire(self, topic: Topic) -> None:
        if isinstance(topic, PersistentTopic):
            await topic_upkeep.expire(topic, self._service.entropy)
            await topic_upkeep.drop_idle_subscriptions(topic, self._service.entropy)

    async def _check_quota(self, topic: Topic) -> None:
        if isinstance(topic, PersistentTopic):
            await topic_upkeep.check_quota(topic, self._service.entropy)

    async def _end_idle(self, topic: Topic) -> None:
        if topic_upkeep.is_idle(topic, self._loop.time()):
            log.info("a topic is deleted: nobody used it", extra={"topic": str(topic.name)})
            with_subscriptions = topic_upkeep.goes_with_subscriptions(topic)  # Else one that has just come keeps it.
            await self._service.delete_topic(topic.name, with_subscriptions=with_subscriptions)
        elif isinstance(topic, PersistentTopic):
            idle_s = self._service.config.broker.deduplication_producer_idle_minutes * 60
            topic_upkeep.forget_producers(topic, idle_s, self._loop.time())
