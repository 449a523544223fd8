"""A topic whose messages are kept: its log, its subscriptions, its deduplication, and who may publish.

Load:      log (fences whoever served it before) → cursors → deduplication, replayed whole → then it serves.
Publish:   checked, judged for duplicates, appended; answered when it is durable, in the order of the log, all of one
           run of the log at once.
Fenced:    another owner took over, or the log cannot go on: nothing more is taken, everybody is disconnected, and
           `on_lost` asks the registry to unload it. Whoever comes back finds it loaded again, here or elsewhere.
Close:     nobody new; producers and consumers are told; cursors are stored; the log is closed.
Read next: topic.py, subscriptions.py, dedup.py, topic_upkeep.py; topic/log.py
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from magnetar.broker.compaction import CompactionRuns
from magnetar.broker.consumer import Consumer
from magnetar.broker.dedup import CURSOR_NAME as DEDUP_CURSOR
from magnetar.broker.dedup import Deduplication, Verdict
from magnetar.broker.finishing import Finishing
from magnetar.broker.names import TopicName
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.producer import Producer, Publish, Published
from magnetar.broker.subscription import Subscription
from magnetar.broker.subscriptions import Subscriptions
from magnetar.broker.topic import LastMessage, SubscribeOptions, SubscriptionLike, Topic
from magnetar.config.root import Config
from magnetar.config.topic import TopicConfig
from magnetar.errors import (
    BacklogQuotaExceededError,
    CursorMissingError,
    DuplicateUndecidedError,
    MagnetarError,
    NotAllowedError,
    TopicFencedError,
    TopicTerminatedError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.quorum.sizes import QuorumSizes
from magnetar.topic.compaction import TopicCompaction
from magnetar.topic.cursor_ledger import CursorParts
from magnetar.topic.cursors import Cursors
from magnetar.topic.log import TopicLog
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.log_parts import LogParts
from magnetar.topic.position import EARLIEST, LATEST, Position
from magnetar.wire.pulsar.entry import metadata_of
from magnetar.wire.pulsar.frames import Buffer
from magnetar.wire.pulsar.hot_path import Send

log = logging.getLogger(__name__)

EPOCH_PROPERTY: Final = "pulsar.topic.epoch"
ENTRIES_AT_ONCE: Final = 64  # Appended before the log is asked for room again; it has some to spare.

Lost = Callable[["PersistentTopic", MagnetarError], None]


@dataclass(frozen=True, slots=True)
class TopicParts:
    """Shared by the persistent topics of a broker."""

    log: LogParts
    config: Config


class PersistentTopic(Topic):
    is_persistent = True

    def __init__(self, name: TopicName, parts: TopicParts, policies: EffectivePolicies, on_lost: Lost) -> None:
        """For `open` only."""
        super().__init__(name, policies)
        self._parts = parts
        self._on_lost = on_lost
        self._refusal: MagnetarError | None = None
        self._is_gone = False
        self._is_fenced = False
        self._finish = Finishing()
        self._inspects = _must_inspect(policies)
        self._dedup_check: asyncio.Task[None] | None = None
        self.dedup: Deduplication | None = None
        self.quota_error: BacklogQuotaExceededError | None = None
        """Why no producer is admitted now, if its backlog is beyond its quota."""

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

    log: TopicLog

    async def _open_rest(self) -> None:
        config, parts = self._parts.config, self._parts.log
        quorums = _config_for(config.topic, self.policies)
        sizes = QuorumSizes(quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum)
        cursor_parts = CursorParts(parts.client, parts.store, parts.entropy, sizes, config.cursor)
        self.cursors = await Cursors.open(
            self.name.log_name, self.log.chain, cursor_parts, on_fenced=self.on_fenced, is_new=self.log.is_new
        )
        self.compaction = CompactionRuns(TopicCompaction(str(self.name), self.log, parts, quorums), self.cursors)
        try:
            await self.compaction.restore()
            self._subscriptions = Subscriptions(
                self.name, self.log, self.compaction.view, self.cursors, config.dispatch, parts.entropy, self.policies
            )
            if epoch := self.log.properties.get(EPOCH_PROPERTY):
                self.producers.epoch = int(epoch)
            await self.check_dedup()
        except BaseException:
            await self.cursors.aclose()
            raise

    # --- publishing ---------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return self.log.has_room or self._refusal is not None

    def publish(self, publish: Publish, body: Buffer, *, counts: bool = True) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(str(self._refusal))
        if self._inspects:
            self._inspect(body)
        if self.dedup is not None and not self._is_new(self.dedup, publish, counts):
            return
        producer = publish[0]
        producer.pending += 1
        try:
            self.log.append(body, publish[3], publish)
        except BaseException:
            producer.pending -= 1
            if self.dedup is not None:
                self.dedup.take_back()
            raise
        if self._publish_limit is not None:
            self._limit_rate(publish)

    def publish_run(
        self, producer: Producer, sends: Sequence[Send], first: int, end: int, view: memoryview, now: float
    ) -> Published:
        if self.dedup is not None or self._inspects or self._refusal is not None or self._publish_limit is not None:
            return super().publish_run(producer, sends, first, end, view, now)
        result, log_ = Published(first), self.log
        append, size = log_.append, 0
        while result.end < end and log_.has_room:
            some = sends[result.end : min(end, result.end + ENTRIES_AT_ONCE)]
            for _, sequence_id, highest, messages, offset, length in some:
                try:
                    publish = (producer, sequence_id, highest, messages, length, now)
                    append(view[offset : offset + length], messages, publish)
                    size += length
                except MagnetarError as error:
                    result.refused.append((max(sequence_id, highest), error))
            result.end += len(some)
        result.size = size
        result.entries = result.end - first - len(result.refused)
        producer.pending += result.entries
        return result

    def _is_new(self, dedup: Deduplication, publish: Publish, counts: bool) -> bool:
        verdict = dedup.judge(publish, counts=counts)
        if verdict is Verdict.DUPLICATE:
            publish[0].pending += 1
            publish[0].on_persisted(-1, -1, (publish,))
        elif verdict is Verdict.UNDECIDED:
            raise DuplicateUndecidedError(
                f"a message of producer {publish[0].name!r} with sequence id {publish[1]} is being stored: send it "
                "again to learn whether it was"
            )
        return verdict is Verdict.NEW

    def _inspect(self, body: Buffer) -> None:
        """Policies that need to know what is in a message."""
        policies = self.policies
        if policies.message_bytes_max and len(body) > policies.message_bytes_max:
            raise NotAllowedError(f"topic {self.name} takes messages up to {policies.message_bytes_max} bytes")
        if not policies.encryption_required and not policies.delayed_max_ms:
            return
        metadata = metadata_of(body)
        if policies.encryption_required and not metadata.encryption_keys:
            raise NotAllowedError(f"topic {self.name} takes encrypted messages only")
        if policies.delayed_max_ms and metadata.deliver_at_time:
            delay_ms = metadata.deliver_at_time - self._parts.log.entropy.wall_ms()
            if delay_ms > policies.delayed_max_ms:
                raise NotAllowedError(f"topic {self.name} delays messages by up to {policies.delayed_max_ms} ms")

    # --- what the log says --------------------------------------------------------------------------------------------

    def on_appended(self, first: Position, tokens: Sequence[Publish]) -> None:
        ledger_id, first_entry_id = first
        count = len(tokens)
        if self.dedup is not None:
            self.dedup.on_persisted(tokens, Position(ledger_id, first_entry_id + count - 1))
        self.entries_in += count
        self.last_published_s = tokens[-1][5]
        start = 0
        while start < count:
            producer = tokens[start][0]
            end = start + 1
            while end < count and tokens[end][0] is producer:
                end += 1
            messages, size = producer.on_persisted(ledger_id, first_entry_id + start, tokens[start:end])
            self.messages_in += messages
            self.bytes_in += size
            start = end

    def on_append_failed(self, tokens: Sequence[Publish], error: MagnetarError) -> None:
        self._refuse(error)
        by_producer: dict[Producer, list[Publish]] = {}
        for publish in tokens:
            by_producer.setdefault(publish[0], []).append(publish)
        for producer, run in by_producer.items():
            producer.on_failed(run, error)

    def on_fenced(self, error: MagnetarError) -> None:
        """Of the log, or of a cursor: another owner is there."""
        self._is_fenced = True
        self._refuse(error)
        if not self._is_gone:
            log.warning("a topic is given up", extra={"topic": str(self.name), "why": str(error)})
            self._on_lost(self, error)

    def _refuse(self, error: MagnetarError) -> None:
        """Nothing more is taken; whoever waits for room shall come and hear it."""
        if self._refusal is None:
            self._refusal = TopicFencedError(f"topic {self.name} is not served here any more: {error}")
        self.on_room()

    # --- producers ----------------------------------------------------------------------------------------------------

    def require_producer_room(self) -> None:
        super().require_producer_room()
        if self.quota_error is not None:
            raise BacklogQuotaExceededError(str(self.quota_error), policy=self.quota_error.policy)

    async def add_producer(self, producer: Producer, on_queued: Callable[[], None]) -> int | None:
        epoch = await super().add_producer(producer, on_queued)
        if self.dedup is not None:
            self.dedup.on_connected(producer.name)
        return epoch

    def remove_producer(self, producer: Producer) -> None:
        super().remove_producer(producer)
        if self.dedup is not None:
            self.dedup.on_disconnected(producer.name, self.loop.time())

    def last_sequence_id(self, producer_name: str) -> int:
        return -1 if self.dedup is None else self.dedup.last_sequence_id(producer_name)

    async def _store_epoch(self, epoch: int) -> None:
        await self._finish(self.log.set_property(EPOCH_PROPERTY, str(epoch)))

    # --- subscriptions ------------------------------------------------------------------------------------------------

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        return self._subscriptions.by_name

    async def subscribe(self, options: SubscribeOptions, consumer: Consumer) -> Subscription:
        self.require_readable()
        self._require_allowed(options)
        self._require_rate(consumer)
        self.require_consumer_room()
        is_new = options.subscription not in self.subscriptions
        if is_new and options.is_durable and not self.policies.auto_create_subscriptions:
            raise CursorMissingError(
                f"topic {self.name} has no subscription {options.subscription!r}, and none is made by using it: "
                "make it first"
            )
        subscription = await self._subscriptions.get_or_make(options)
        if options.rollback_s > 0:
            wanted_ms = self._parts.log.entropy.wall_ms() - options.rollback_s * 1000
            await self._finish(subscription.seek(await self.log.position_at_time(wanted_ms)))
        self.require_readable()
        try:
            subscription.add_consumer(consumer)
        except BaseException:
            await self._subscriptions.end_if_unused(subscription)
            raise
        self.last_used_s = self.loop.time()
        return subscription

    async def create_subscription(
        self, name: str, start: Position, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        self.require_readable()
        return await self._finish(self._subscriptions.make_durable(name, start, properties or {}))

    def subscription(self, name: str) -> Subscription:
        return self._subscriptions.require(name)

    async def unsubscribe(
        self, subscription: SubscriptionLike, consumer: Consumer | None = None, *, force: bool = False
    ) -> None:
        await self._finish(self._subscriptions.unsubscribe(subscription.name, consumer, force=force))
        self.last_used_s = self.loop.time()

    def remove_consumer(self, subscription: SubscriptionLike, consumer: Consumer) -> None:
        super().remove_consumer(subscription, consumer)
        found = cast("Subscription", subscription)
        if not found.cursor.is_durable and not found.consumers and not self._is_gone:
            self._finish.begin(self._subscriptions.end_if_unused(found))

    async def seek(self, subscription: SubscriptionLike, position: Position) -> None:
        await self._finish(cast("Subscription", subscription).seek(position))

    async def seek_to_time(self, subscription: SubscriptionLike, publish_ms: int) -> None:
        await self.seek(subscription, await self.log.position_at_time(publish_ms))

    def mark_delete_of(self, subscription: SubscriptionLike) -> Position:
        return cast("Subscription", subscription).cursor.mark_delete

    def backlog_of(self, subscription: SubscriptionLike) -> int:
        return cast("Subscription", subscription).cursor.backlog_entries()

    async def last_message(self, *, read_compacted: bool = False) -> LastMessage:
        last = self.log.last_confirmed
        compacted = self.compaction.view.compacted if read_compacted else None
        entry: LogEntry | None = None
        if compacted is not None and (last <= compacted.horizon or not self.log.chain.contains(last)):
            entry = await compacted.last_entry()
        elif self.log.chain.contains(last):
            entry = next(iter(await self.log.read(last, 1, 1)), None)
        if entry is None:
            return LastMessage(EARLIEST)
        metadata = entry.head.metadata
        is_batch = metadata.HasField("num_messages_in_batch")
        return LastMessage(entry.position, metadata.num_messages_in_batch - 1 if is_batch else -1)

    # --- the topic itself ---------------------------------------------------------------------------------------------

    def require_usable(self) -> None:
        self.require_readable()
        if self.log.is_terminated:
            raise TopicTerminatedError(f"topic {self.name} is terminated: it takes no more messages")

    @property
    def ledger_client(self) -> LedgerClient:
        """Who knows about the topic's ledgers."""
        return self._parts.log.client

    def require_readable(self) -> None:
        if self._refusal is not None:
            raise TopicFencedError(str(self._refusal))

    def apply(self, policies: EffectivePolicies) -> None:
        super().apply(policies)
        self._subscriptions.apply(policies)
        self._inspects = _must_inspect(policies)
        if policies.deduplication != (self.dedup is not None) and self._dedup_check is None:
            self._dedup_check = self.loop.create_task(self._check_dedup_again(), name=f"dedup {self.name}")

    async def check_dedup(self) -> None:
        """Begins or ends deduplication, as the policies say."""
        wanted = self.policies.deduplication
        if wanted and self.dedup is None:
            broker = self._parts.config.broker
            cursor = self.cursors.get(DEDUP_CURSOR) or await self.cursors.create(DEDUP_CURSOR, LATEST)
            self.dedup = await Deduplication.open(
                self.log,
                cursor,
                now_s=self.loop.time(),
                snapshot_entries=broker.deduplication_snapshot_entries,
                producers_max=broker.deduplication_producers_max,
            )
        elif not wanted and self.cursors.get(DEDUP_CURSOR) is not None:
            self.dedup = None
            await self.cursors.delete(DEDUP_CURSOR)

    async def _check_dedup_again(self) -> None:
        try:
            async with asyncio.timeout(self._parts.config.upkeep.topic_load_timeout_ms / 1000):
                await self.check_dedup()
        except (MagnetarError, TimeoutError) as error:  # Loading it again does it, or says why not.
            self.on_fenced(TopicFencedError(f"deduplication of {self.name} could not be changed: {error}"))
        finally:
            self._dedup_check = None

    async def terminate(self) -> Position:
        """No more messages, for ever; consumers that have read all are told."""
        last = await self._finish(self.log.terminate())
        self.on_room()
        self.disconnect_producers()
        for subscription in list(self.subscriptions.values()):
            subscription.on_topic_terminated()
        return last

    async def aclose(self, why: str = "topic unloaded") -> None:
        if self._is_gone:
            return
        self._is_gone = True
        if self._dedup_check is not None:
            self._dedup_check.cancel()
        await self.compaction.aclose()
        self._refuse(TopicFencedError(why))
        self.disconnect_producers()
        await self._finish.wait()
        await self._subscriptions.aclose(why)
        try:
            await self._store_for_the_next_owner()
        finally:
            await self.log.aclose()

    async def _store_for_the_next_owner(self) -> None:
        if self._is_fenced:  # It is there already, and what we would store is older than what it knows.
            await self.cursors.abandon()
            return
        with contextlib.suppress(MagnetarError):  # Without it more of the log is replayed.
            if self.dedup is not None:
                await self.dedup.snapshot(self.log.last_confirmed)
        await self.cursors.aclose()

    async def delete(self, *, force: bool = False, with_subscriptions: bool = False) -> None:
        if not force and self.is_in_use:
            raise NotAllowedError(
                f"topic {self.name} has producers or consumers connected: disconnect them, or force it"
            )
        if self.subscriptions and not force and not with_subscriptions:
            raise NotAllowedError(f"topic {self.name} has subscriptions: delete them first, or force it")
        self._is_gone = True
        self._refuse(TopicFencedError("the topic is being deleted"))
        try:
            self.disconnect_producers()
            await self.compaction.aclose()
            await self._finish.wait()
            await self._subscriptions.aclose("topic deleted")
            await self.compaction.view.delete()
            await self.cursors.delete_all()
            await self.log.delete()
        except BaseException:
            self._is_gone = False  # It can be closed, and loaded again.
            raise


def _must_inspect(policies: EffectivePolicies) -> bool:
    return policies.encryption_required or bool(policies.delayed_max_ms) or policies.message_bytes_max is not None


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
