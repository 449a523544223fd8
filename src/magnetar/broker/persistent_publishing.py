"""The publishing side of a topic whose messages are kept: who may publish, what is refused, what is answered.

Publish:   checked, judged for duplicates, appended; answered when it is durable, in the order of the log, all of one
           run of the log at once.
Refused:   once the log has failed or the topic ends, nothing more is taken; whoever waits for room hears it.
Terminated: the log itself takes no more, and fails what waited in line. That is no end of the topic: it is read on.
Read next: dedup.py, producers.py, persistent_subscribing.py; topic/log.py
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.broker.dedup import Deduplication
from magnetar.broker.finishing import Finishing
from magnetar.broker.names import TopicName
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.producer import Producer, Publish, Published
from magnetar.broker.sequence_ids import Verdict
from magnetar.broker.topic import Topic
from magnetar.errors import (
    BacklogQuotaExceededError,
    DuplicateUndecidedError,
    MagnetarError,
    NotAllowedError,
    TopicFencedError,
    TopicTerminatedError,
)
from magnetar.runtime.entropy import Entropy
from magnetar.topic.log import TopicLog
from magnetar.topic.position import Position
from magnetar.wire.pulsar.entry import metadata_of
from magnetar.wire.pulsar.frames import Buffer
from magnetar.wire.pulsar.hot_path import Send

EPOCH_PROPERTY: Final = "pulsar.topic.epoch"
ENTRIES_AT_ONCE: Final = 64  # Appended before the log is asked for room again; it has some to spare.


class PublishingSide(Topic):
    """Of a persistent topic, which sets `log`, and `dedup` if its policies want it."""

    log: TopicLog

    def __init__(self, name: TopicName, policies: EffectivePolicies) -> None:
        super().__init__(name, policies)
        self._refusal: MagnetarError | None = None
        self._finish = Finishing()
        self._inspects = _must_inspect(policies)
        self.dedup: Deduplication | None = None
        self.quota_error: BacklogQuotaExceededError | None = None
        """Why no producer is admitted now, if its backlog is beyond its quota."""

    @property
    @abstractmethod
    def _entropy(self) -> Entropy:
        """Has the wall clock."""

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

    def publish_staged(self, publish: Publish, body: Buffer) -> None:
        """Like `publish`, for one who knows what of it is here: duplicates are not looked for."""
        if self._refusal is not None:
            raise type(self._refusal)(str(self._refusal))
        if self._inspects:
            self._inspect(body)
        self.log.append(body, publish[3], publish)
        publish[0].pending += 1
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
            delay_ms = metadata.deliver_at_time - self._entropy.wall_ms()
            if delay_ms > policies.delayed_max_ms:
                raise NotAllowedError(f"topic {self.name} delays messages by up to {policies.delayed_max_ms} ms")

    def apply(self, policies: EffectivePolicies) -> None:
        super().apply(policies)
        self._inspects = _must_inspect(policies)

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
        if not isinstance(error, TopicTerminatedError):  # Else it takes no more, and is read to its end.
            self._refuse(error)
        elif self.dedup is not None:
            self.dedup.on_lost(tokens)
        by_producer: dict[Producer, list[Publish]] = {}
        for publish in tokens:
            by_producer.setdefault(publish[0], []).append(publish)
        for producer, run in by_producer.items():
            producer.on_failed(run, error)

    # --- refusals -----------------------------------------------------------------------------------------------------

    def _refuse(self, error: MagnetarError) -> None:
        """Nothing more is taken; whoever waits for room shall come and hear it."""
        if self._refusal is None:
            self._refusal = TopicFencedError(f"topic {self.name} is not served here any more: {error}")
        self.on_room()

    def require_readable(self) -> None:
        if self._refusal is not None:
            raise TopicFencedError(str(self._refusal))

    def require_usable(self) -> None:
        self.require_readable()
        if self.log.is_terminated:
            raise TopicTerminatedError(f"topic {self.name} is terminated: it takes no more messages")

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
        await self.note(EPOCH_PROPERTY, str(epoch))

    async def note(self, key: str, value: str | None) -> None:
        """A property of the topic, durable when this returns; None removes it."""
        await self._finish(self.log.set_property(key, value))


def _must_inspect(policies: EffectivePolicies) -> bool:
    return policies.encryption_required or bool(policies.delayed_max_ms) or policies.message_bytes_max is not None
