"""The loaded topics of a broker: loaded once; unloaded when lost, idle, or on request.

All callers that ask for a topic that is being loaded wait for the same load. `find_persistent`, `get_persistent` and
`loaded_persistent` serve callers that need a topic with a log. Besides them, only the admin interface's statistics ask
for the kind of a topic.

Order:     A topic that is being unloaded is not served any more; a caller that asks for it waits for its end, then it
           is loaded again. A topic whose log was fenced, or that another broker owns now, is unloaded at once.
Failure:   A load that takes too long, or fails, fails for all callers, and the next call tries again.
Limits:    The configuration limits how many load at once.
Read next: persistent.py, broker/ownership.py, broker/upkeep/upkeep.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from magnetar.broker.ownership import Ownership, Successor, TopicSet
from magnetar.broker.policies.service import PolicyService
from magnetar.broker.topics.non_persistent import NonPersistentTopic
from magnetar.broker.topics.persistent import PersistentTopic, TopicParts
from magnetar.broker.topics.topic import Topic, given_up
from magnetar.config.upkeep import UpkeepConfig
from magnetar.errors import (
    MagnetarError,
    NotAllowedError,
    PoliciesUnavailableError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from magnetar.names import TopicName
from magnetar.runtime.uncancelled import UncancelledTasks

log = logging.getLogger(__name__)

_LOST: Final = "its bundle was unloaded, or another broker serves it now"


@dataclass(frozen=True, slots=True)
class TopicsStatistics:
    loaded: int
    loading: int
    unloading: int
    loads: int
    load_failures: int
    lost: int


def require_persistent(topic: Topic) -> PersistentTopic:
    if not isinstance(topic, PersistentTopic):
        raise NotAllowedError(f"topic {topic.name} is not persistent: it keeps no messages")
    return topic


class Topics:
    """Owns the topics. `aclose` unloads all."""

    def __init__(self, parts: TopicParts, ownership: Ownership, policies: PolicyService) -> None:
        self._parts = parts
        self._config: UpkeepConfig = parts.config.upkeep
        self._ownership = ownership
        self._policies = policies
        self._unwatch: dict[TopicName, Callable[[], None]] = {}
        self._loaded: dict[TopicName, Topic] = {}
        self._loading: dict[TopicName, asyncio.Task[Topic]] = {}
        self._unloading: dict[TopicName, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(self._config.topic_loads_max)
        self._is_closing = False
        self._uncancelled = UncancelledTasks(given_up)
        self._loads = self._load_failures = self._lost = 0
        self.changed: list[Callable[[TopicName, bool], None]] = []
        """Is called with a topic that was loaded (True) or unloaded (False), on the loop."""
        self._stop_listening = ownership.listen(self._on_ownership_lost)

    # --- what is loaded -----------------------------------------------------------------------------------------------

    def find(self, name: TopicName) -> Topic | None:
        """If it is loaded."""
        return self._loaded.get(name)

    def find_persistent(self, name: TopicName) -> PersistentTopic | None:
        """If it is loaded, and is persistent."""
        found = self._loaded.get(name)
        return found if isinstance(found, PersistentTopic) else None

    def loaded(self) -> list[Topic]:
        return list(self._loaded.values())

    def loaded_persistent(self) -> list[PersistentTopic]:
        return [topic for topic in self._loaded.values() if isinstance(topic, PersistentTopic)]

    def statistics(self) -> TopicsStatistics:
        return TopicsStatistics(
            len(self._loaded), len(self._loading), len(self._unloading), self._loads, self._load_failures, self._lost
        )

    # --- loading ------------------------------------------------------------------------------------------------------

    async def get(self, name: TopicName, *, create: bool) -> Topic:
        """Loaded. TopicNotFoundError without `create`; ServiceNotReadyError if it is not ours or takes too long."""
        found = self._loaded.get(name)
        if found is not None:
            return found
        while (loading := self._loading.get(name)) is None:
            if self._is_closing:
                raise ServiceNotReadyError("the broker is stopping: look the topic up again")
            if (unloading := self._unloading.get(name)) is not None:
                await asyncio.wait([unloading])
            elif (found := self._loaded.get(name)) is not None:
                return found
            else:
                loading = self._begin_load(name, create=create)
                break
        try:
            return await asyncio.shield(loading)
        except TopicNotFoundError:
            if not create:
                raise
        return await self._get_again(name)

    async def get_persistent(self, name: TopicName, *, create: bool) -> PersistentTopic:
        """As `get`. NotAllowedError if the topic keeps no messages."""
        return require_persistent(await self.get(name, create=create))

    async def _get_again(self, name: TopicName) -> Topic:
        """For a caller that may make the topic, and had to wait for one that may not."""
        loading = self._loading.get(name) or self._begin_load(name, create=True)
        return await asyncio.shield(loading)

    def _begin_load(self, name: TopicName, *, create: bool) -> asyncio.Task[Topic]:
        """Not one of the uncancelled tasks: its outcome is used even if no caller waits (`_on_loaded`), and a broker
        that stops cancels the requests that wait for a load together with it."""
        task = asyncio.get_running_loop().create_task(self._load(name, create=create), name=f"load {name}")
        self._loading[name] = task
        task.add_done_callback(lambda done: self._on_loaded(name, done))
        return task

    async def _load(self, name: TopicName, *, create: bool) -> Topic:
        limit_s = self._config.topic_load_timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                if not self._ownership.owns(name):
                    await self._ownership.take_up(name)
            async with asyncio.timeout(limit_s), self._turns:
                if not self._ownership.owns(name):
                    raise ServiceNotReadyError(f"topic {name} is not served by this broker: look it up again")
                await self._policies.load(name)
                policies = self._policies.effective(name)
                if not name.is_persistent:
                    return NonPersistentTopic(name, policies, self._parts.config.dispatch, self._parts.log.entropy)
                return await PersistentTopic.open(name, self._parts, policies, self._on_lost, create=create)
        except TimeoutError:
            raise ServiceNotReadyError(
                f"topic {name} was not loaded within {limit_s:g} s: try again; check that the bookies and the "
                "metadata store can be reached"
            ) from None

    def _on_loaded(self, name: TopicName, done: asyncio.Task[Topic]) -> None:
        del self._loading[name]
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            if not isinstance(error, TopicNotFoundError):
                self._load_failures += 1
                log.warning("a topic was not loaded", extra={"topic": str(name), "why": str(error)})
            return
        self._loads += 1
        if name in self._unloading:  # Lost again before it was loaded.
            return
        topic = self._loaded[name] = done.result()
        try:
            self._follow_policies(topic)
        except PoliciesUnavailableError as error:  # The broker stops, or the namespace was deleted meanwhile.
            self._begin_end(topic, str(error))
            return
        self._report(name, is_loaded=True)

    def _follow_policies(self, topic: Topic) -> None:
        self._unwatch[topic.name] = self._policies.watch(topic.name, topic.apply)
        policies = self._policies.effective(topic.name)  # They may have changed while it was loaded.
        if policies != topic.policies:
            topic.apply(policies)

    # --- unloading ----------------------------------------------------------------------------------------------------

    async def unload(self, name: TopicName, why: str = "topic unloaded") -> None:
        """Returns when it is closed; nothing to do if it is not loaded."""
        if (loading := self._loading.get(name)) is not None:
            await asyncio.wait([loading])
        topic = self._loaded.get(name)
        if topic is not None:
            self._begin_end(topic, why)
        if (ending := self._unloading.get(name)) is not None:
            await asyncio.shield(ending)

    async def delete(self, topic: Topic, *, force: bool = False, with_subscriptions: bool = False) -> None:
        """NotAllowedError while it is in use, unless forced; then it stays as it is. Goes to its end, once begun."""
        await self._uncancelled.run(self._delete(topic, force, with_subscriptions))

    async def _delete(self, topic: Topic, force: bool, with_subscriptions: bool) -> None:
        try:
            await topic.delete(force=force, with_subscriptions=with_subscriptions)
        except NotAllowedError:
            raise
        except BaseException as error:  # Half of it is deleted: the next load finds what is left.
            self._begin_end(topic, f"it could not be deleted: {error}")
            raise
        self._forget(topic)

    def _on_lost(self, topic: PersistentTopic, error: MagnetarError) -> None:
        self._lost += 1
        self._begin_end(topic, str(error))

    def _on_ownership_lost(self, names: TopicSet, successor: Successor | None) -> asyncio.Task[None]:
        for topic in self.loaded():
            if topic.name in names:
                topic.successor = successor
                self._begin_end(topic, _LOST)
        return self._uncancelled.begin(self._end_lost(names), name="unload lost topics")

    async def _end_lost(self, names: TopicSet) -> None:
        """Returns when none of them is open. A load that began before the ownership was lost comes to its end first."""
        loading = {name: task for name, task in self._loading.items() if name in names}
        if loading:
            await asyncio.wait(loading.values())
        for name in loading:
            if (topic := self._loaded.get(name)) is not None:
                self._begin_end(topic, _LOST)
        unloading = [task for name, task in self._unloading.items() if name in names]
        if unloading:
            await asyncio.wait(unloading)

    def _begin_end(self, topic: Topic, why: str) -> None:
        name = topic.name
        self._remove(topic)
        if name in self._unloading:  # For another reason, which is as good.
            return
        task = asyncio.get_running_loop().create_task(self._end(topic, why), name=f"unload {name}")
        self._unloading[name] = task
        task.add_done_callback(lambda done: self._on_ended(name, done))

    async def _end(self, topic: Topic, why: str) -> None:
        limit_s = self._config.close_timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                await topic.aclose(why)
        except TimeoutError:
            log.error("a topic was not closed in time", extra={"topic": str(topic.name), "seconds": limit_s})
        except MagnetarError as error:  # The next owner recovers what was not stored.
            log.warning("a topic was not closed cleanly", extra={"topic": str(topic.name), "why": str(error)})

    def _on_ended(self, name: TopicName, done: asyncio.Task[None]) -> None:
        if self._unloading.get(name) is done:
            del self._unloading[name]
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("a topic could not be unloaded", extra={"topic": str(name)}, exc_info=error)
        self._report(name, is_loaded=False)

    def _forget(self, topic: Topic) -> None:
        if self._remove(topic):
            self._report(topic.name, is_loaded=False)

    def _remove(self, topic: Topic) -> bool:
        if self._loaded.get(topic.name) is not topic:
            return False
        del self._loaded[topic.name]
        unwatch = self._unwatch.pop(topic.name, None)
        if unwatch is not None:
            unwatch()
        return True

    def _report(self, name: TopicName, *, is_loaded: bool) -> None:
        for listener in list(self.changed):
            listener(name, is_loaded)

    async def aclose(self) -> None:
        self._is_closing = True
        self._stop_listening()
        for loading in list(self._loading.values()):
            loading.cancel()
        if self._loading:
            await asyncio.wait(list(self._loading.values()))
        await self._uncancelled.wait()
        for topic in self.loaded():
            self._begin_end(topic, "the broker is stopping")
        if self._unloading:
            await asyncio.wait(list(self._unloading.values()))
