"""Publishing staged epochs: a broker copies into its topics what an intent names, once, however often it is asked.

        await staged.publish(topic, owner, epoch)       done, or StillPublishingError: it continues, ask again
        await staged.forget(topic, owner)               an owner that is not used any more

    StagedSweeping finishes and removes what jobs have left, at intervals, and publishes through any broker.

    Order:     Before anything is appended, the topic's node records that this epoch is being copied, and where the log
               ended (progress.py). After the last append is durable it records that the epoch is done.
    Failure:   A broker that finds "copying" (this one after a failure, or the next owner of the topic) counts how much
               of it is in the log after that position, and continues after it (copy.py). A broker that lost the topic
               can append nothing: its ledger is fenced. It cannot change the node either. A topic that is terminated,
               exceeds its quota, or is missing and not made by use is an error; the epoch stays decided, and is
               published when a caller asks again after the cause was removed.
    Limits:    One copy of an owner at a time in one topic; several owners, and other producers, beside it.
Read next: copy.py, progress.py, staging/sweeper.py, admin/topics/staging.py; docs/staging.md
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from typing import Final

from magnetar.broker.service import BrokerService
from magnetar.broker.staged.copy import NOTHING_COPIED, Copied, StagedCopy, find_copied
from magnetar.broker.staged.progress import LAG, SinkProgress, lag_to_note, progress_of, property_of
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.client.http import HttpClient
from magnetar.errors import (
    EpochOrderError,
    MagnetarError,
    ServiceNotReadyError,
    StillPublishingError,
    TopicNotFoundError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import MetadataStore
from magnetar.names import TopicName
from magnetar.runtime.keyed_lock import KeyedLock
from magnetar.runtime.uncancelled import UncancelledTasks, end_task
from magnetar.staging.intents import Intents, OwnerNode
from magnetar.staging.publisher import HttpPublisher, Reached, nothing_reached
from magnetar.staging.reading import staged_chunks
from magnetar.staging.records import Intent, StagedPart
from magnetar.staging.register import StagingSettings
from magnetar.staging.sink import Sink
from magnetar.staging.sweeper import SweepReport, sweep

log = logging.getLogger(__name__)

WAIT_S: Final = 20.0
"""How long a request waits for its copy; below what HTTP clients and the admin interface allow."""
_COPIES_MAX: Final = 8  # At a time: each has a few megabytes in memory, and together they fill the bookies.
_RUNNING_MAX: Final = 1_000  # Requested and not done; each is one task.
_TURN_S: Final = 600.0  # For the previous copy of the same owner.

_Key = tuple[TopicName, str, int]


class StagedPublishing:
    """Serves one broker. `aclose` must come before its topics are closed."""

    def __init__(
        self, service: BrokerService, store: MetadataStore, ledgers: LedgerClient, *, reached: Reached = nothing_reached
    ) -> None:
        self._service = service
        self._store = store
        self._ledgers = ledgers
        self.reached = reached
        """Is called in the middle of a copy, for tests."""
        self._turns = KeyedLock()
        self._copies = asyncio.Semaphore(_COPIES_MAX)
        self._running: dict[_Key, asyncio.Task[None]] = {}
        """What is being published, for all that request it meanwhile."""
        self._publishes = UncancelledTasks(_stopping)
        self.skips = 0
        """Runs that came to an epoch, or to a job, that was committed before, and wrote nothing."""

    async def aclose(self) -> None:
        await self._publishes.give_up()

    async def publish(self, name: TopicName, owner: str, epoch: int, *, wait_s: float = WAIT_S) -> None:
        """Returns when the epoch is in the topic. StillPublishingError after `wait_s`; a caller that leaves stops
        nothing.

        TopicNotFoundError, TopicTerminatedError, BacklogQuotaExceededError, NotAllowedError: the topic takes nothing.
        EpochOrderError: the intent does not exist, or an earlier one is not done.
        """
        key = (name, owner, epoch)
        task = self._running.get(key) or self._begin(key)
        await asyncio.wait([task], timeout=wait_s)
        if not task.done():
            raise StillPublishingError(f"epoch {epoch} of {owner!r} is being copied to {name}: ask again")
        await self._publishes.result_of(task)

    def _begin(self, key: _Key) -> asyncio.Task[None]:
        if len(self._running) >= _RUNNING_MAX:
            raise ServiceNotReadyError(f"{_RUNNING_MAX} epochs are being published already: try again")
        task = self._publishes.begin(self._publish(*key), name=f"publish {key[1]} {key[2]}")
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key))
        return task

    async def forget(self, name: TopicName, owner: str) -> None:
        """Forgets the owner. Does nothing if the topic does not know it, or does not exist."""
        async with self._turn(name, owner):
            try:
                topic = await self._service.persistent_topic(name, create=False)
            except TopicNotFoundError:
                return
            progress = progress_of(topic.log.properties, owner)
            if progress is None:
                return
            if not progress.is_done:
                raise EpochOrderError(f"epoch {progress.epoch} of {owner!r} is not done on {name}: publish it first")
            await topic.set_property(property_of(owner), None)

    def note_skip(self, owner: str, epoch: int) -> None:
        """Counts a skip here, since the processes of a job end with it and have no metrics of their own."""
        self.skips += 1
        log.info("a run wrote nothing: it was committed before", extra={"owner": owner, "epoch": epoch})

    def _turn(self, name: TopicName, owner: str) -> AbstractAsyncContextManager[None]:
        late = StillPublishingError(f"another epoch of {owner!r} is being copied to {name}: ask again")
        return self._turns.hold(f"{name} {owner}", _TURN_S, late)

    async def _publish(self, name: TopicName, owner: str, epoch: int) -> None:
        async with self._turn(name, owner), self._copies:
            topic = await self._service.persistent_topic(name, create=True)
            progress = progress_of(topic.log.properties, owner)
            if progress is not None and progress.covers(epoch):
                return
            intent = await self._intent(owner, epoch)
            parts = () if intent is None else intent.parts_of(str(name))
            if not parts:
                return
            if progress is not None and progress.epoch < epoch and not progress.is_done:
                raise EpochOrderError(f"epoch {progress.epoch} of {owner!r} is not done on {name}: publish it first")
            topic.require_usable()
            if progress is None or progress.epoch < epoch:
                await self._copy_new(topic, owner, epoch, parts)
            else:
                await self._copy_rest(topic, owner, progress, parts)

    async def _intent(self, owner: str, epoch: int) -> Intent | None:
        """Returns the current intent; None if the epoch is done."""
        node = OwnerNode(self._store, owner)
        found = await node.find()
        if found is not None and found.record.last_done < epoch:
            intent = await Intents(self._store, self._ledgers, StagingSettings(), owner).read(epoch)
            if intent is not None:
                return intent
            found = await node.find()  # It may have been finished in between.
        if found is None or found.record.last_done < epoch:
            raise EpochOrderError(f"{owner!r} has not committed epoch {epoch}: commit it first")
        return None

    async def _copy_new(self, topic: PersistentTopic, owner: str, epoch: int, parts: tuple[StagedPart, ...]) -> None:
        await topic.quota.refresh(self._service.entropy.wall_ms())
        topic.quota.require_room()
        key, progress = property_of(owner), SinkProgress(epoch, False, topic.log.last_confirmed)
        topic.log.hold(key, progress.start)
        try:
            await topic.set_property(key, progress.to_text())
        except MagnetarError:
            topic.log.hold(key, None)  # Nothing is copied without the note.
            raise
        await self._copy(topic, owner, progress, parts, NOTHING_COPIED)

    async def _copy_rest(
        self, topic: PersistentTopic, owner: str, progress: SinkProgress, parts: tuple[StagedPart, ...]
    ) -> None:
        async with aclosing(staged_chunks(self._ledgers, parts)) as chunks:
            copied = await find_copied(topic.log, progress.start, chunks)
        await self._copy(topic, owner, progress, parts, copied)

    async def _copy(
        self, topic: PersistentTopic, owner: str, progress: SinkProgress, parts: tuple[StagedPart, ...], copied: Copied
    ) -> None:
        topic.last_used_s = topic.loop.time()
        copy = StagedCopy(topic, owner, lambda: self.reached("mid-copy", progress.epoch))
        async with aclosing(staged_chunks(self._ledgers, parts, copied.entries)) as chunks:
            await copy.run(chunks)
        oldest_ms = min(copied.oldest_ms, copy.oldest_ms)
        lag = lag_to_note(topic.log.properties, self._service.entropy.wall_ms() - oldest_ms)
        if lag is not None:
            await topic.set_property(LAG, lag)
        key = property_of(owner)
        await topic.set_property(key, replace(progress, is_done=True).to_text())
        topic.log.hold(key, None)


def _stopping() -> ServiceNotReadyError:
    return ServiceNotReadyError("the broker is stopping: look the topic up again")


_PATIENCE_S: Final = 30.0  # For one topic of one epoch: what cannot be published now is tried at the next sweep.
_MINUTE_MS: Final = 60_000


class BrokerPublisher:
    """Is a `Publisher` that serves this broker's own topics, and asks other brokers for theirs."""

    def __init__(self, service: BrokerService, staged: StagedPublishing) -> None:
        self._service = service
        self._staged = staged

    async def publish(self, topic: str, owner: str, epoch: int) -> None:
        name = TopicName.parse(topic)
        found = await self._service.look_up(name)
        if found.is_here:
            await self._staged.publish(name, owner, epoch)
        else:
            async with self._http(found.address.http_url) as http:
                await HttpPublisher(http, asked_max=1).publish(topic, owner, epoch)

    async def forget(self, topic: str, owner: str) -> None:
        name = TopicName.parse(topic)
        found = await self._service.look_up(name)
        if found.is_here:
            await self._staged.forget(name, owner)
        else:
            async with self._http(found.address.http_url) as http:
                await HttpPublisher(http).forget(topic, owner)

    async def note_skip(self, owner: str, epoch: int) -> None:
        self._staged.note_skip(owner, epoch)

    def _http(self, http_url: str) -> HttpClient:
        return HttpClient(http_url, self._service.entropy.random)


class StagedSweeping:
    """Is begun by `start` and ended by `aclose`."""

    def __init__(
        self, service: BrokerService, store: MetadataStore, ledgers: LedgerClient, publisher: BrokerPublisher
    ) -> None:
        self._service = service
        self._store = store
        self._ledgers = ledgers
        self._sink = Sink(store, ledgers, publisher, patience_s=_PATIENCE_S)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="staged-sweeping")

    async def aclose(self) -> None:
        await end_task(self._task)

    async def _run(self) -> None:
        interval_s = self._service.config.upkeep.staging_sweep_s
        while True:
            # Brokers that started together do not sweep together.
            await asyncio.sleep(interval_s * (0.5 + self._service.entropy.random.random()))
            try:
                await self.sweep()
            except MagnetarError as error:
                log.warning("a sweep of staged data failed", extra={"why": str(error)})
            except Exception:  # Otherwise one bad node would end the sweeping for as long as the broker runs.
                log.exception("a sweep of staged data failed unexpectedly")

    async def sweep(self) -> SweepReport:
        ttl_ms = self._service.config.upkeep.staging_ttl_minutes * _MINUTE_MS
        return await sweep(self._store, self._ledgers, self._service.entropy.wall_ms(), ttl_ms, sink=self._sink)
