"""TopicPublisher: appends the messages of a persistent topic's producers to its log.

A message is checked, judged for duplicates, and appended; it is answered when it is durable, in the order of the log,
all of one run of the log at once. Deduplication begins and ends as the policies require: before the topic serves, and
again after each change of them.

Failure:   Messages are refused once the log has failed or the topic ends. A terminated log refuses by itself, and fails
           what waited in line; the topic does not end then, and can still be read.
Read next: publisher.py, dedup.py; topic/log/log.py
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

from magnetar.broker.policies.registry import EffectivePolicies
from magnetar.broker.publishing.dedup import CURSOR_NAME as DEDUP_CURSOR
from magnetar.broker.publishing.dedup import Deduplication, Verdict
from magnetar.broker.publishing.producers import Offer, Producer, Publish, TakenRun, producer_of
from magnetar.broker.publishing.publisher import Publisher
from magnetar.config.root import Config
from magnetar.errors import (
    DuplicateUndecidedError,
    MagnetarError,
    NotAllowedError,
    TopicFencedError,
    TopicTerminatedError,
)
from magnetar.names import TopicName
from magnetar.runtime.runtime import Entropy
from magnetar.topic.cursor.cursors import Cursors
from magnetar.topic.entry_format.head import read_body
from magnetar.topic.log.log import TopicLog
from magnetar.topic.position import LATEST, Position
from magnetar.wire.bookkeeper.frames import Buffer

ENTRIES_AT_ONCE: Final = 64  # Appended before the log is asked for room again; it has some to spare.


class TopicPublisher(Publisher):
    """Listens to its log. The topic sets `log` when it is open, and then calls `begin`."""

    log: TopicLog
    _cursors: Cursors

    def __init__(
        self,
        topic: TopicName,
        policies: EffectivePolicies,
        config: Config,
        entropy: Entropy,
        on_fenced: Callable[[MagnetarError], None],
    ) -> None:
        """`on_fenced`: the topic must be given up."""
        super().__init__(topic, policies)
        self.on_fenced = on_fenced
        self.dedup: Deduplication | None = None
        self._config = config
        self._entropy = entropy
        self._inspects = _must_inspect(policies)
        self._dedup_switch: asyncio.Task[None] | None = None

    async def begin(self, cursors: Cursors) -> None:
        """Returns when it is known what the topic's producers have published before. The caller sets the timeout."""
        self._cursors = cursors
        await self.switch_dedup()

    def apply(self, policies: EffectivePolicies) -> None:
        super().apply(policies)
        self._inspects = _must_inspect(policies)
        if self.dedup is not None:
            self.dedup.set_snapshot_s(policies.deduplication_snapshot_s)
        if not (self._is_dedup_as_wanted or self.is_switching_dedup or self.refusal is not None):
            name = f"dedup {self._topic}"
            self._dedup_switch = self._loop.create_task(self._switch_dedup_until_as_wanted(), name=name)

    @property
    def has_room(self) -> bool:
        return self.log.has_room or self.refusal is not None

    def publish(self, publish: Publish, body: Buffer, *, counts: bool = True) -> None:
        if self.refusal is not None:
            self.require_open()
        if self._inspects:
            self._inspect(body)
        if self.dedup is not None and not self._is_new(self.dedup, publish, counts):
            return
        producer, _, _, messages, _, _ = publish
        producer.pending += 1
        try:
            self.log.append(body, messages, publish)
        except BaseException:
            producer.pending -= 1
            if self.dedup is not None:
                self.dedup.take_back()
            raise
        if self._limit is not None:
            self._limit_rate(self._limit, publish)

    def publish_staged(self, publish: Publish, body: Buffer) -> None:
        """Takes an entry without a check for duplicates, of a caller that knows which of its own are in the log."""
        if self.refusal is not None:
            self.require_open()
        if self._inspects:
            self._inspect(body)
        producer, _, _, messages, _, _ = publish
        self.log.append(body, messages, publish)
        producer.pending += 1
        if self._limit is not None:
            self._limit_rate(self._limit, publish)

    def publish_parts(self, publish: Publish, parts: Sequence[Buffer]) -> None:
        """Takes an entry of a front end that checks duplicates and policies itself, joined from these parts. Its
        sequence ids are −1: deduplication does not count it."""
        if self.refusal is not None:
            self.require_open()
        producer, _, _, messages, _, _ = publish
        self.log.append_parts(parts, messages, publish)
        producer.pending += 1
        if self._limit is not None:
            self._limit_rate(self._limit, publish)

    def publish_run(
        self, producer: Producer, offers: Sequence[Offer], first: int, end: int, view: memoryview, now: float
    ) -> TakenRun:
        if self.dedup is not None or self._inspects or self.refusal is not None or self._limit is not None:
            return super().publish_run(producer, offers, first, end, view, now)
        result, log = TakenRun(first), self.log
        append, size = log.append, 0
        while result.end < end and log.has_room:
            some = offers[result.end : min(end, result.end + ENTRIES_AT_ONCE)]
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
        if verdict is Verdict.NEW:
            return True
        producer, sequence_id, _, _, _, _ = publish
        if verdict is Verdict.UNDECIDED:
            raise DuplicateUndecidedError(
                f"a message of producer {producer.name!r} with sequence id {sequence_id} is being stored: send it "
                "again to learn whether it was"
            )
        producer.pending += 1
        producer.published(-1, -1, (publish,))
        return False

    def _inspect(self, body: Buffer) -> None:
        policies = self._policies
        if policies.message_bytes_max and len(body) > policies.message_bytes_max:
            raise NotAllowedError(f"topic {self._topic} accepts messages of up to {policies.message_bytes_max} bytes")
        if not policies.encryption_required and not policies.delayed.max_ms:
            return
        head = read_body(body)
        if policies.encryption_required and not head.is_encrypted:
            raise NotAllowedError(f"topic {self._topic} takes encrypted messages only")
        if policies.delayed.max_ms and head.deliver_at_ms:
            delay_ms = head.deliver_at_ms - self._entropy.wall_ms()
            if delay_ms > policies.delayed.max_ms:
                raise NotAllowedError(f"topic {self._topic} delays messages by up to {policies.delayed.max_ms} ms")

    # --- what the log reports -----------------------------------------------------------------------------------------

    def on_appended(self, first: Position, tokens: Sequence[Publish]) -> None:
        ledger_id, first_entry_id = first
        count = len(tokens)
        if self.dedup is not None:
            self.dedup.on_appended(tokens, Position(ledger_id, first_entry_id + count - 1))
        self.entries_in += count
        _, _, _, _, _, self.last_published_s = tokens[-1]
        entry_id = first_entry_id
        for producer, group in groupby(tokens, producer_of):
            run = list(group)
            messages, size = producer.published(ledger_id, entry_id, run)
            self.messages_in += messages
            self.bytes_in += size
            entry_id += len(run)

    def on_append_failed(self, tokens: Sequence[Publish], error: MagnetarError) -> None:
        if not isinstance(error, TopicTerminatedError):  # Otherwise it takes no more, and is read to its end.
            self.refuse(error)
        elif self.dedup is not None:
            self.dedup.on_lost(tokens)
        by_producer: dict[Producer, list[Publish]] = {}
        for publish in tokens:
            by_producer.setdefault(producer_of(publish), []).append(publish)
        for producer, run in by_producer.items():
            producer.publish_failed(run, error)

    # --- deduplication ------------------------------------------------------------------------------------------------

    def last_sequence_id(self, producer: str) -> int:
        return -1 if self.dedup is None else self.dedup.last_sequence_id(producer)

    def on_connected(self, producer: str) -> None:
        if self.dedup is not None:
            self.dedup.on_connected(producer)

    def on_disconnected(self, producer: str) -> None:
        if self.dedup is not None:
            self.dedup.on_disconnected(producer, self._loop.time())

    def forget_producers(self, idle_s: float, is_connected: Callable[[str], bool]) -> None:
        if self.dedup is not None:
            self.dedup.forget_idle(idle_s, self._loop.time(), is_connected)

    @property
    def is_switching_dedup(self) -> bool:
        return self._dedup_switch is not None

    @property
    def _is_dedup_as_wanted(self) -> bool:
        return self._policies.deduplication == (self.dedup is not None)

    async def switch_dedup(self) -> None:
        wanted = self._policies.deduplication
        if wanted and self.dedup is None:
            broker = self._config.broker
            cursor = self._cursors.get(DEDUP_CURSOR) or await self._cursors.create(DEDUP_CURSOR, LATEST)
            self.dedup = Deduplication(
                cursor,
                snapshot_s=self._policies.deduplication_snapshot_s,
                snapshot_entries=broker.deduplication_snapshot_entries,
                producers_max=broker.deduplication_producers_max,
                messages_in_flight=self._messages_in_flight(),
            )
            await self.dedup.learn(self.log, self._loop.time())
        elif not wanted:
            self.forget_dedup()
            if self._cursors.get(DEDUP_CURSOR) is not None:
                await self._cursors.delete(DEDUP_CURSOR)

    def _messages_in_flight(self) -> int:
        """Counts messages that are appended and not durable, without those that waited when the topic was
        terminated."""
        return 0 if self.log.is_terminated else self.log.next_index - self.log.next_confirmed_index

    async def _switch_dedup_until_as_wanted(self) -> None:
        """Switches until it fits: the policies may change again meanwhile."""
        try:
            async with asyncio.timeout(self._config.upkeep.topic_load_timeout_ms / 1000):
                while not self._is_dedup_as_wanted and self.refusal is None:
                    await self.switch_dedup()
        except (MagnetarError, TimeoutError) as error:  # The next load of the topic tries again, or reports the reason.
            self.on_fenced(TopicFencedError(f"deduplication of {self._topic} could not be changed: {error}"))
        finally:
            self._dedup_switch = None

    def cancel_dedup_switch(self) -> None:
        if self._dedup_switch is not None:
            self._dedup_switch.cancel()

    async def store_dedup(self) -> None:
        """Stores what is known of producers. If it fails, more of the log is replayed at the next load."""
        if self.dedup is not None:
            with contextlib.suppress(MagnetarError):
                await self.dedup.snapshot()

    def forget_dedup(self) -> None:
        if self.dedup is not None:
            self.dedup.close()
            self.dedup = None


def _must_inspect(policies: EffectivePolicies) -> bool:
    return policies.encryption_required or bool(policies.delayed.max_ms) or policies.message_bytes_max is not None
