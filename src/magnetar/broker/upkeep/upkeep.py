"""Upkeep: one task that runs the chores of all loaded topics, each chore at its own interval.

Topics are taken one after the other, in slices of the loop's time, so that thousands of them do not delay the clients.

Failure:   A chore that fails for one topic is logged, and repeated next time; the others continue, also after an
           unexpected error: otherwise a single topic would end the upkeep of all, for as long as the broker runs.
Read next: chores.py
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from magnetar.broker.service import BrokerService
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.topic import Topic
from magnetar.broker.upkeep import chores
from magnetar.errors import MagnetarError

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Topic)

_TOPIC_SECONDS_MAX = 60.0  # What one chore of one topic may take; it delays the others.


@dataclass(slots=True)
class _Chore(Generic[T]):
    name: str
    interval_s: float
    topics: Callable[[], Sequence[T]]
    """Returns the loaded topics that it is for."""
    work: Callable[[T], Awaitable[None]]
    due_s: float = 0.0


class Upkeep:
    def __init__(self, service: BrokerService) -> None:
        self._service = service
        config, topics = service.config.upkeep, service.topics
        self._chores: list[_Chore[Any]] = [
            _Chore("trim", config.retention_check_s, topics.loaded_persistent, self._trim),
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
        """Runs a chore now, for all topics."""
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

    async def _trim(self, topic: PersistentTopic) -> None:
        await chores.trim(topic)

    async def _compact(self, topic: PersistentTopic) -> None:
        chores.compact_if_due(topic)

    async def _expire(self, topic: PersistentTopic) -> None:
        await chores.expire(topic, self._service.entropy)
        await chores.drop_idle_subscriptions(topic, self._service.entropy)

    async def _check_quota(self, topic: PersistentTopic) -> None:
        await chores.check_quota(topic, self._service.entropy)

    async def _end_idle(self, topic: Topic) -> None:
        if topic.is_idle(self._loop.time()):
            log.info("an unused topic is deleted", extra={"topic": str(topic.name)})
            # A subscription that has just come keeps it, unless caught-up ones do not count.
            await self._service.delete_topic(topic.name, with_subscriptions=topic.goes_with_subscriptions)
        else:
            topic.forget_idle_producers(self._service.config.broker.deduplication_producer_idle_minutes * 60)
