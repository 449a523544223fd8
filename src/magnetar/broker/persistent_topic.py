"""A topic whose messages are kept: its log, its subscriptions, its deduplication; how it begins and ends.

Load:      log (fences whoever served it before) → cursors → deduplication, replayed whole → then it serves.
Sides:     persistent_publishing.py (producers, messages, refusals) and, on top of it, persistent_subscribing.py.
Fenced:    another owner took over, or the log cannot go on: nothing more is taken, everybody is disconnected, and
           `on_lost` asks the registry to unload it. Whoever comes back finds it loaded again, here or elsewhere.
Close:     nobody new; producers and consumers are told, before anything is waited for; cursors are stored; the log is
           closed. If that takes too long, all of it is given up, and the next owner recovers what was not stored.
Read next: persistent_publishing.py, persistent_subscribing.py, topic_upkeep.py
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass

from magnetar.broker.compaction import CompactionRuns
from magnetar.broker.dedup import CURSOR_NAME as DEDUP_CURSOR
from magnetar.broker.dedup import Deduplication
from magnetar.broker.names import TopicName
from magnetar.broker.persistent_publishing import EPOCH_PROPERTY
from magnetar.broker.persistent_subscribing import SubscribingSide
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.sink_marks import unfinished
from magnetar.broker.subscriptions import Subscriptions
from magnetar.config.root import Config
from magnetar.config.topic import TopicConfig
from magnetar.errors import MagnetarError, NotAllowedError, TopicFencedError
from magnetar.ledger.client import LedgerClient
from magnetar.quorum.sizes import QuorumSizes
from magnetar.runtime.entropy import Entropy
from magnetar.topic.compaction import TopicCompaction
from magnetar.topic.cursor_ledger import CursorParts
from magnetar.topic.cursors import Cursors
from magnetar.topic.log import TopicLog
from magnetar.topic.log_parts import LogParts
from magnetar.topic.position import LATEST, Position

log = logging.getLogger(__name__)

Lost = Callable[["PersistentTopic", MagnetarError], None]


@dataclass(frozen=True, slots=True)
class TopicParts:
    """Shared by the persistent topics of a broker."""

    log: LogParts
    config: Config


class PersistentTopic(SubscribingSide):
    is_persistent = True

    def __init__(self, name: TopicName, parts: TopicParts, policies: EffectivePolicies, on_lost: Lost) -> None:
        """For `open` only."""
        super().__init__(name, policies)
        self._parts = parts
        self._on_lost = on_lost
        self._is_fenced = False
        self._dedup_check: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        name: TopicName,
        parts: TopicParts,
        policies: EffectivePolicies,
        on_lost: Lost,
        *,
        create: bool = True,
    ) -> PersistentTopic:
        """TopicNotFoundError without `create`. The caller brings the timeout."""
        topic = cls(name, parts, policies, on_lost)
        topic.log = await TopicLog.open(
            name.log_name, parts.log, _config_for(parts.config.topic, policies), topic, create=create
        )
        try:
            await topic._open_rest()
        except BaseException:
            await topic.log.aclose()
            raise
        return topic

    async def _open_rest(self) -> None:
        config, parts = self._parts.config, self._parts.log
        quorums = _config_for(config.topic, self.policies)
        sizes = QuorumSizes(quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum)
        for key, start in unfinished(self.log.properties).items():
            self.log.hold(key, start)
        cursor_parts = CursorParts(parts.client, parts.store, parts.entropy, sizes, config.cursor)
        self.cursors = await Cursors.open(
            self.name.log_name, self.log.chain, cursor_parts, on_fenced=self.on_fenced, is_new=self.log.is_new
        )
        self.compaction = CompactionRuns(TopicCompaction(str(self.name), self.log, parts, quorums), self.cursors)
        try:
            if len(self.cursors):
                await self._check_that_nobody_overtook()
            await self.compaction.restore()
            self._subscriptions = Subscriptions(
                self.name,
                self.log,
                self.compaction.view,
                self.cursors,
                config.dispatch,
                parts.entropy,
                self.policies,
                self._on_left,
            )
            if epoch := self.log.properties.get(EPOCH_PROPERTY):
                self.producers.epoch = int(epoch)
            await self.check_dedup()
        except BaseException:
            await self.cursors.aclose()
            raise

    async def _check_that_nobody_overtook(self) -> None:
        """A broker that was slow to get here may have read the cursors of the next owner: what that one's consumers
        acknowledged lies behind the end of this log, means nothing here, and would be forgotten with the next store.
        Whoever takes over from here on changes the cursors' nodes before anything is acknowledged, and our store fails
        at that."""
        await self.log.check_owner()

    @property
    def ledger_client(self) -> LedgerClient:
        """Who knows about the topic's ledgers."""
        return self._parts.log.client

    @property
    def _entropy(self) -> Entropy:
        return self._parts.log.entropy

    # --- deduplication ------------------------------------------------------------------------------------------------

    def apply(self, policies: EffectivePolicies) -> None:
        super().apply(policies)
        if self.dedup is not None:
            self.dedup.set_snapshot_s(policies.deduplication_snapshot_s)
        if not (self._is_dedup_as_wanted or self.is_switching_dedup or self._is_gone):
            self._dedup_check = self.loop.create_task(self._check_dedup_again(), name=f"dedup {self.name}")

    @property
    def is_switching_dedup(self) -> bool:
        return self._dedup_check is not None

    @property
    def _is_dedup_as_wanted(self) -> bool:
        return self.policies.deduplication == (self.dedup is not None)

    async def check_dedup(self) -> None:
        """Begins or ends deduplication, as the policies say."""
        wanted = self.policies.deduplication
        if wanted and self.dedup is None:
            broker = self._parts.config.broker
            cursor = self.cursors.get(DEDUP_CURSOR) or await self.cursors.create(DEDUP_CURSOR, LATEST)
            self.dedup = Deduplication(
                cursor,
                snapshot_s=self.policies.deduplication_snapshot_s,
                snapshot_entries=broker.deduplication_snapshot_entries,
                producers_max=broker.deduplication_producers_max,
                messages_under_way=self._messages_under_way(),
            )
            await self.dedup.learn(self.log, self.loop.time())
        elif not wanted:
            self._forget_dedup()
            if self.cursors.get(DEDUP_CURSOR) is not None:
                await self.cursors.delete(DEDUP_CURSOR)

    def _forget_dedup(self) -> None:
        if self.dedup is not None:
            self.dedup.close()
            self.dedup = None

    def _messages_under_way(self) -> int:
        """Appended, and not durable. What a terminated topic had in line when it ended will never be."""
        return 0 if self.log.is_terminated else self.log.next_index - self.log.next_confirmed_index

    async def _check_dedup_again(self) -> None:
        """Until it is as the policies want it, which may change meanwhile."""
        try:
            async with asyncio.timeout(self._parts.config.upkeep.topic_load_timeout_ms / 1000):
                while not (self._is_dedup_as_wanted or self._is_gone):
                    await self.check_dedup()
        except (MagnetarError, TimeoutError) as error:  # Loading it again does it, or says why not.
            self.on_fenced(TopicFencedError(f"deduplication of {self.name} could not be changed: {error}"))
        finally:
            self._dedup_check = None

    # --- its end ------------------------------------------------------------------------------------------------------

    def on_fenced(self, error: MagnetarError) -> None:
        """Of the log, or of a cursor: another owner is there."""
        self._is_fenced = True
        self._refuse(error)
        if not self._is_gone:
            log.warning("a topic is given up", extra={"topic": str(self.name), "why": str(error)})
            self._on_lost(self, error)

    async def terminate(self) -> Position:
        """No more messages, for ever; consumers that have read all are told."""
        return await self._finish(self._terminate())  # With what follows: somebody may be held until there is room.

    async def _terminate(self) -> Position:
        last = await self.log.terminate()
        self.on_room()
        self.disconnect_producers()
        for subscription in list(self.subscriptions.values()):
            subscription.on_topic_terminated()
        return last

    async def aclose(self, why: str = "topic unloaded") -> None:
        if self._is_gone:
            return
        self._is_gone = True
        try:
            await self._close(why)
        except BaseException:  # Above all: it took too long. Nothing of it may go on all the same.
            await self._give_up(why)
            raise

    async def _close(self, why: str) -> None:
        if self._dedup_check is not None:
            self._dedup_check.cancel()
        self._send_away(why, why)
        await self.compaction.aclose()
        await self._finish.wait()
        await self._subscriptions.aclose(why)
        try:
            await self._store_for_the_next_owner()
        except MagnetarError:
            await self._close_log()  # In order all the same.
            raise
        await self._close_log()

    def _send_away(self, refusal: str, why: str) -> None:
        """Everybody, and nobody is let in any more. What is waited for after this may never come: a client that was
        not told would then wait for ever on a topic that is not there."""
        self._refuse(TopicFencedError(refusal))
        self.disconnect_producers()
        self._subscriptions.send_away(why)

    async def _close_log(self) -> None:
        self._forget_dedup()
        await self.log.aclose()

    async def _give_up(self, why: str) -> None:
        """Whoever waits for something here is told. Of what has ended already, nothing more happens."""
        self._forget_dedup()
        async with contextlib.AsyncExitStack() as ends:  # The last is the first; each, whatever becomes of the others.
            ends.push_async_callback(self._finish.give_up)
            ends.push_async_callback(self._subscriptions.abandon, why)
            ends.push_async_callback(self.cursors.abandon)
            ends.push_async_callback(self.log.give_up)

    async def _store_for_the_next_owner(self) -> None:
        if self._is_fenced:  # It is there already, and what we would store is older than what it knows.
            await self.cursors.abandon()
            return
        with contextlib.suppress(MagnetarError):  # Without it more of the log is replayed.
            if self.dedup is not None:
                await self.dedup.snapshot()
        await self.cursors.aclose()

    async def delete(self, *, force: bool = False, with_subscriptions: bool = False) -> None:
        if not force and self.is_in_use:
            raise NotAllowedError(
                f"topic {self.name} has producers or consumers connected: disconnect them, or force it"
            )
        if self.subscriptions and not force and not with_subscriptions:
            raise NotAllowedError(f"topic {self.name} has subscriptions: delete them first, or force it")
        self._is_gone = True
        self._send_away("the topic is being deleted", "topic deleted")
        try:
            await self.compaction.aclose()
            await self._finish.wait()
            await self._subscriptions.aclose("topic deleted")
            await self.compaction.view.delete()
            await self.cursors.delete_all()
            await self.log.delete()
        except BaseException:
            self._is_gone = False  # It can be closed, and loaded again.
            raise
        self._forget_dedup()


def _config_for(config: TopicConfig, policies: EffectivePolicies) -> TopicConfig:
    """With the quorums that the policies want."""
    persistence = policies.persistence
    if persistence is None:
        return config
    return dataclasses.replace(
        config,
        ensemble_size=persistence.ensemble_size,
        write_quorum=persistence.write_quorum,
        ack_quorum=persistence.ack_quorum,
    )
