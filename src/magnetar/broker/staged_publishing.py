"""Publishing staged epochs: a broker copies into its topics what an intent names, once, however often it is asked.

    await staged.publish(topic, owner, epoch)       done, or StillPublishingError: it goes on, ask again
    await staged.forget(topic, owner)               an owner that will never come again

Before:    the topic's node says that this epoch is being copied, and where the log ended (sink_marks.py), before any
           of it is appended. After the last append is durable it says that the epoch is done.
Again:     whoever finds "copying" (this broker after a failure, or the next owner of the topic) counts how much of it
           is in the log behind that place, and goes on behind it (staged_copy.py).
Zombies:   a broker that lost the topic can append nothing: its ledger is fenced. It cannot change the node either.
One:       copy of an owner at a time in one topic; several owners, and other producers, beside it.
Refused:   a topic that is terminated, beyond its quota, or missing and not made by use: the error says so, and the
           epoch stays decided; it is published when somebody asks again after that was mended.
Read next: staged_copy.py, sink_marks.py, staged_sweeping.py, admin/staging.py; docs/staging.md
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from typing import Final

from magnetar.broker import topic_upkeep
from magnetar.broker.names import TopicName
from magnetar.broker.one_by_one import OneByOne
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.service import BrokerService
from magnetar.broker.sink_marks import LAG, SinkMark, lag_to_note, mark_of, property_of
from magnetar.broker.staged_copy import NOTHING_COPIED, Copied, StagedCopy, find_copied
from magnetar.errors import (
    BacklogQuotaExceededError,
    EpochOrderError,
    MagnetarError,
    NotAllowedError,
    ServiceNotReadyError,
    StillPublishingError,
    TopicNotFoundError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import MetadataStore
from magnetar.staging.intents import Intents
from magnetar.staging.owner_node import OwnerNode
from magnetar.staging.publisher import Reached, nothing_reached
from magnetar.staging.reading import staged_chunks
from magnetar.staging.records import Intent, StagedPart
from magnetar.staging.settings import StagingSettings

WAIT_S: Final = 20.0
"""How long a request waits for its copy; below what HTTP clients and the admin interface allow."""
_COPIES_MAX: Final = 8  # At a time: each has a few megabytes in memory, and together they fill the bookies.
_RUNNING_MAX: Final = 1_000  # Asked for and not done; each is one task.
_TURN_S: Final = 600.0  # For the copy before it, of the same owner.

_Key = tuple[TopicName, str, int]


class StagedPublishing:
    """Of one broker. `aclose` before its topics are closed."""

    def __init__(
        self,
        service: BrokerService,
        store: MetadataStore,
        ledgers: LedgerClient,
        *,
        reached: Reached = nothing_reached,
    ) -> None:
        self._service = service
        self._store = store
        self._ledgers = ledgers
        self.reached = reached
        """For tests: called in the middle of a copy."""
        self._turns = OneByOne()
        self._copies = asyncio.Semaphore(_COPIES_MAX)
        self._running: dict[_Key, asyncio.Task[None]] = {}

    async def aclose(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- asking -------------------------------------------------------------------------------------------------------

    async def publish(self, name: TopicName, owner: str, epoch: int, *, wait_s: float = WAIT_S) -> None:
        """Returns when the epoch is in the topic. StillPublishingError after `wait_s`; whoever leaves stops nothing.

        TopicNotFoundError, TopicTerminatedError, BacklogQuotaExceededError, NotAllowedError: the topic takes nothing.
        EpochOrderError: there is no such intent, or an earlier one is not done.
        """
        key = (name, owner, epoch)
        task = self._running.get(key) or self._begin(key)
        await asyncio.wait([task], timeout=wait_s)
        if not task.done():
            raise StillPublishingError(f"epoch {epoch} of {owner!r} is being copied to {name}: ask again")
        if task.cancelled():
            raise ServiceNotReadyError("the broker is stopping: look the topic up again")
        task.result()

    def _begin(self, key: _Key) -> asyncio.Task[None]:
        if len(self._running) >= _RUNNING_MAX:
            raise ServiceNotReadyError(f"{_RUNNING_MAX} epochs are being published already: try again")
        task = asyncio.get_running_loop().create_task(self._publish(*key), name=f"publish {key[1]} {key[2]}")
        self._running[key] = task
        task.add_done_callback(lambda done: self._on_done(key, done))
        return task

    def _on_done(self, key: _Key, done: asyncio.Task[None]) -> None:
        del self._running[key]
        if not done.cancelled():
            done.exception()  # Whoever waits has it; if nobody does, the next who asks tries again.

    async def forget(self, name: TopicName, owner: str) -> None:
        """Nothing to do if the topic does not know the owner, or is gone."""
        async with self._turn(name, owner):
            try:
                topic = await self._topic(name, create=False)
            except TopicNotFoundError:
                return
            mark = mark_of(topic.log.properties, owner)
            if mark is None:
                return
            if not mark.is_done:
                raise EpochOrderError(f"epoch {mark.epoch} of {owner!r} is not done on {name}: publish it first")
            await topic.note(property_of(owner), None)

    # --- doing --------------------------------------------------------------------------------------------------------

    def _turn(self, name: TopicName, owner: str) -> AbstractAsyncContextManager[None]:
        late = StillPublishingError(f"another epoch of {owner!r} is being copied to {name}: ask again")
        return self._turns.turn(f"{name} {owner}", _TURN_S, late)

    async def _publish(self, name: TopicName, owner: str, epoch: int) -> None:
        async with self._turn(name, owner), self._copies:
            topic = await self._topic(name, create=True)
            mark = mark_of(topic.log.properties, owner)
            if mark is not None and mark.covers(epoch):
                return
            intent = await self._intent(owner, epoch)
            parts = () if intent is None else intent.parts_of(str(name))
            if not parts:
                return
            if mark is not None and mark.epoch < epoch and not mark.is_done:
                raise EpochOrderError(f"epoch {mark.epoch} of {owner!r} is not done on {name}: publish it first")
            topic.require_usable()
            if mark is None or mark.epoch < epoch:
                await self._copy_new(topic, owner, epoch, parts)
            else:
                await self._copy_rest(topic, owner, mark, parts)

    async def _topic(self, name: TopicName, *, create: bool) -> PersistentTopic:
        topic = await self._service.topic(name, create=create)
        if not isinstance(topic, PersistentTopic):
            raise NotAllowedError(f"topic {name} is not persistent: it keeps no messages")
        return topic

    async def _intent(self, owner: str, epoch: int) -> Intent | None:
        """As it is now. None: the epoch is done."""
        node = OwnerNode(self._store, owner)
        found = await node.find()
        if found is not None and found.record.last_done < epoch:
            intent = await Intents(self._store, self._ledgers, StagingSettings(), owner).read(epoch)
            if intent is not None:
                return intent
            found = await node.find()  # It may have been finished in between.
        if found is None or found.record.last_done < epoch:
            raise EpochOrderError(f"{owner!r} has decided nothing for epoch {epoch}: commit it first")
        return None

    async def _copy_new(self, topic: PersistentTopic, owner: str, epoch: int, parts: tuple[StagedPart, ...]) -> None:
        await topic_upkeep.look_at_quota(topic, self._service.entropy)
        if (quota := topic.quota_error) is not None:
            raise BacklogQuotaExceededError(str(quota), policy=quota.policy)
        key, mark = property_of(owner), SinkMark(epoch, False, topic.log.last_confirmed)
        topic.log.hold(key, mark.start)
        try:
            await topic.note(key, mark.to_text())
        except MagnetarError:
            topic.log.hold(key, None)  # Nothing is copied without the note.
            raise
        await self._copy(topic, owner, mark, parts, NOTHING_COPIED)

    async def _copy_rest(
        self, topic: PersistentTopic, owner: str, mark: SinkMark, parts: tuple[StagedPart, ...]
    ) -> None:
        async with aclosing(staged_chunks(self._ledgers, parts)) as chunks:
            copied = await find_copied(topic.log, mark.start, chunks)
        await self._copy(topic, owner, mark, parts, copied)

    async def _copy(
        self, topic: PersistentTopic, owner: str, mark: SinkMark, parts: tuple[StagedPart, ...], copied: Copied
    ) -> None:
        topic.last_used_s = topic.loop.time()
        copy = StagedCopy(topic, owner, lambda: self.reached("mid-copy", mark.epoch))
        async with aclosing(staged_chunks(self._ledgers, parts, copied.entries)) as chunks:
            await copy.run(chunks)
        oldest_ms = min(copied.oldest_ms, copy.oldest_ms)
        lag = lag_to_note(topic.log.properties, self._service.entropy.wall_ms() - oldest_ms)
        if lag is not None:
            await topic.note(LAG, lag)
        key = property_of(owner)
        await topic.note(key, replace(mark, is_done=True).to_text())
        topic.log.hold(key, None)
