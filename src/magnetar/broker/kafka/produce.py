"""Produce: batches go to their topics' logs as they came, and are answered when they are durable.

Order:     Batches of one connection are appended in the order of its requests, although several requests may be in
           progress. A request is taken as a whole: when all its partitions are open and have room.
Failure:   Each partition has its own error. A batch is refused if it is damaged, of an old format, too large, or a
           control batch; if its sequence numbers are wrong; or by a policy of the topic. With acks=0 there is no answer
           at all; after an error the connection is closed, so that the client looks the topic up again.
Limits:    The broker's publish memory; the log's room; partitions per connection; records of a batch.
Read next: partition.py, producer_states.py; broker/publishing/topic_publisher.py
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from magnetar.broker.kafka.partition import LEADER_EPOCH, Partition
from magnetar.broker.kafka.producer_states import Batch, ProducerStates, finish, is_idempotent
from magnetar.broker.kafka.session import Answer, Session, refusal_of
from magnetar.broker.publishing.producers import Producer, ProducerOptions, Publish
from magnetar.errors import KafkaRefusedError, MagnetarError, ResourceLimitError
from magnetar.runtime.gather import gather_bounded
from magnetar.topic.entry_format.kafka import body_parts
from magnetar.wire.kafka.batches import HEAD_BYTES, RECORD_BYTES_MIN, BatchHead, check, read_head
from magnetar.wire.kafka.codec import Value
from magnetar.wire.kafka.compression import CODEC_MAX, Codec
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.frames import RequestHead
from magnetar.wire.kafka.tables import PRODUCE
from magnetar.words import counted

_ACKS: Final = (-1, 0, 1)
_ZSTD_SINCE: Final = 7
_NO_SEQUENCE: Final = -1
_OPENED_AT_ONCE: Final = 16
_RECORDS_MAX: Final = 1_000_000
"""A compressed batch, whose records are not looked at, claims no more. It is the most that librdkafka can be set to."""


class Writer:
    """What one connection has of a partition that it writes. It is the sink of a producer on the topic."""

    def __init__(self, session: Session, key: tuple[str, int], partition: Partition, states: ProducerStates) -> None:
        self.partition = partition
        self.states = states
        self._session = session
        self._key = key
        self._pending: deque[_Pending] = deque()
        topic = partition.topic
        options = ProducerOptions(producer_id=0, name=session.service.new_producer_name())
        now_ms = session.service.entropy.wall_ms()
        self._producer = Producer(options, self, address=session.peer, client_version="Kafka", now_ms=now_ms)
        self._topic = topic

    async def begin(self) -> None:
        await self._topic.add_producer(self._producer, lambda: None)

    @property
    def is_usable(self) -> bool:
        return not self._producer.is_closed and not self.partition.is_closed

    def has_room(self) -> bool:
        """If it is false, the session is held until there is room."""
        publisher = self._topic.publisher
        if publisher.has_room:
            return True
        publisher.wait_for_room(self._session)
        return False

    def close(self) -> None:
        """Closes the producer, or does nothing if it is closed."""
        self._forget()
        self._topic.remove_producer(self._producer)

    def _forget(self) -> None:
        self._producer.is_closed = True
        if self._session.writers.get(self._key) is self:
            del self._session.writers[self._key]

    # --- appending ----------------------------------------------------------------------------------------------------

    def append(self, batch: memoryview, head: BatchHead, report: _Report) -> None:
        """Appends a checked batch, or attaches to the one that it repeats. `report` is called in any case, later or at
        once. Raises a MagnetarError if nothing was appended."""
        repeated = self.states.find_repeat(head) if is_idempotent(head) else None
        if repeated is not None:
            self._attach(repeated, report)
            return
        base_offset = self.partition.log.next_index
        try:
            self._append(batch, head, base_offset, report)
        except MagnetarError as error:
            code, why = refusal_of(error)
            refusal = KafkaRefusedError(code, why)
            if is_idempotent(head):
                self.states.note_refused(head, refusal)
            raise refusal from error

    def _append(self, batch: memoryview, head: BatchHead, base_offset: int, report: _Report) -> None:
        session = self._session
        parts = body_parts(batch, base_offset, LEADER_EPOCH, session.service.entropy.wall_ms())
        messages, size = head.last_offset_delta + 1, len(batch)
        publish = (self._producer, _NO_SEQUENCE, _NO_SEQUENCE, messages, size, session.loop.time())
        self._topic.publisher.publish_parts(publish, parts)
        noted = self.states.note(head, base_offset) if is_idempotent(head) else None
        self._pending.append(_Pending(base_offset, noted, report))
        session.shared.memory.take(size, session)

    def _attach(self, repeated: Batch, report: _Report) -> None:
        if repeated.is_stored or repeated.error is not None:
            report(repeated.base_offset, repeated.error)
        else:
            repeated.waiting.append(partial(report, repeated.base_offset))

    def published(
        self, producer: Producer, ledger_id: int, first_entry_id: int, run: Sequence[Publish], size: int
    ) -> None:
        del producer, ledger_id, first_entry_id
        for _ in run:
            self._on_outcome(None)
        self._session.shared.memory.give_back(size)

    def publish_failed(self, producer: Producer, run: Sequence[Publish], error: MagnetarError) -> None:
        del producer
        for _ in run:
            self._on_outcome(error)
        self._session.shared.memory.give_back(sum(size for _, _, _, _, size, _ in run))

    def _on_outcome(self, error: MagnetarError | None) -> None:
        pending = self._pending.popleft()
        pending.report(pending.base_offset, error)
        if pending.batch is not None:
            finish(pending.batch, error)

    # --- what the topic wants -----------------------------------------------------------------------------------------

    def hold(self, reason: str) -> None:
        self._session.hold(reason)

    def let_go(self, reason: str) -> None:
        self._session.let_go(reason)

    async def check_alive(self) -> bool:
        """Kafka's clients cannot be asked."""
        return not self._session.connection.is_closed

    def close_producer(self, producer: Producer) -> None:
        del producer
        self._forget()


class _Pending(NamedTuple):
    base_offset: int
    batch: Batch | None
    report: _Report


class _Report:
    """Takes the outcome of one partition of a request."""

    __slots__ = ("_at", "_request")

    def __init__(self, request: _Request, at: int) -> None:
        self._request = request
        self._at = at

    def __call__(self, base_offset: int, error: BaseException | None) -> None:
        self._request.on_outcome(self._at, base_offset, error)


class Part(NamedTuple):
    """One partition of a request."""

    name: str
    number: int
    records: memoryview | None

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.number


class _Request:
    """One request that is in progress: it is answered when the outcome of each partition is known, or its time is over.

    With acks=0 it has no answer.
    """

    def __init__(self, session: Session, answer: Answer | None, parts: Sequence[Part], timeout_s: float) -> None:
        self._session = session
        self._answer = answer
        self._parts = parts
        self._results: list[dict[str, Any] | None] = [None] * len(parts)
        self._left = len(parts)
        self._timer: asyncio.TimerHandle | None = None
        if answer is not None and parts:
            self._timer = session.loop.call_later(max(0.0, timeout_s), self._on_timeout)

    def on_outcome(self, at: int, base_offset: int, error: BaseException | None) -> None:
        if self._results[at] is not None:  # Its time was over.
            return
        part = self._parts[at]
        if error is None:
            self._results[at] = {"index": part.number, "base_offset": base_offset, "log_start_offset": -1}
        else:
            code, why = refusal_of(error)
            self._results[at] = {"index": part.number, "error_code": code, "error_message": why, "base_offset": -1}
            if self._answer is None:
                self._session.connection.close()
        self._left -= 1
        if not self._left:
            self.finish()

    def _on_timeout(self) -> None:
        late = KafkaRefusedError(
            ErrorCode.REQUEST_TIMED_OUT, "the batch is not durable yet: it may be stored although it was not confirmed"
        )
        for at, result in enumerate(self._results):
            if result is None:
                self.on_outcome(at, -1, late)

    def finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._answer is None:
            return
        topics: dict[str, list[dict[str, Any]]] = {}
        for part, result in zip(self._parts, self._results, strict=True):
            assert result is not None
            topics.setdefault(part.name, []).append(result)
        self._answer.give(
            {"responses": [{"name": name, "partition_responses": results} for name, results in topics.items()]}
        )


def handle(session: Session, head: RequestHead, request: Value) -> bool:
    """Returns False if not all of its partitions are open, or one has no room. It is offered again then."""
    parts = [
        Part(topic["name"], partition["index"], partition["records"])
        for topic in request["topic_data"]
        for partition in topic["partition_data"]
    ]
    refusal = _refusal_of(request)
    if refusal is None:
        missing = {part.key: None for part in parts if not _is_open(session, part.key)}
        if missing:
            session.wait_for(_open(session, list(missing)))
            return False
        writers = [session.writers[part.key] for part in parts if part.key in session.writers]
        if not all(writer.has_room() for writer in writers):
            return False
    acks = request["acks"]
    answer = session.expect_answer(PRODUCE, head) if acks or refusal is not None else None
    taken = _Request(session, answer, parts, request["timeout_ms"] / 1000)
    if not parts:
        taken.finish()
    for at, part in enumerate(parts):
        try:
            if refusal is not None:
                raise refusal
            _append(session, part, head.version, _Report(taken, at))
        except MagnetarError as error:
            taken.on_outcome(at, -1, error)
    session.refused.clear()
    return True


def _refusal_of(request: Value) -> KafkaRefusedError | None:
    """Returns why the whole request is refused."""
    if request["acks"] not in _ACKS:
        return KafkaRefusedError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is -1, 0 or 1, not {request['acks']}")
    if request["transactional_id"] is not None:
        return KafkaRefusedError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "this broker has no transactions: produce without one"
        )
    return None


def _is_open(session: Session, key: tuple[str, int]) -> bool:
    writer = session.writers.get(key)
    return key in session.refused or (writer is not None and writer.is_usable)


async def _open(session: Session, keys: Sequence[tuple[str, int]]) -> None:
    await gather_bounded([partial(_open_one, session, key) for key in keys], _OPENED_AT_ONCE)


async def _open_one(session: Session, key: tuple[str, int]) -> None:
    name, index = key
    try:
        if len(session.writers) >= session.config.partitions_per_connection_max:
            raise ResourceLimitError(
                f"this connection writes {counted(len(session.writers), 'partition')}, which is the limit"
            )
        partition = await session.open_partition(name, index)
        writer = Writer(session, key, partition, await partition.learn_producers())
        await partition.topic.require_producer_room()
        await writer.begin()
    except (MagnetarError, TimeoutError) as error:
        session.refused[key] = error
        return
    if session.connection.is_closed:
        writer.close()
    else:
        session.writers[key] = writer


def _append(session: Session, part: Part, version: int, report: _Report) -> None:
    refused = session.refused.get(part.key)
    if refused is not None:
        raise KafkaRefusedError(*refusal_of(refused))
    writer = session.writers.get(part.key)
    if writer is None or not writer.is_usable:  # It was closed for another partition of the same request.
        raise KafkaRefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is not served here: look it up again")
    head = _checked(session, part, version)
    policies = writer.partition.topic.policies
    if policies.encryption_required:
        raise KafkaRefusedError(ErrorCode.POLICY_VIOLATION, f"topic {part.name} takes encrypted messages only")
    if policies.message_bytes_max and head.size > policies.message_bytes_max:
        raise _too_large(head.size, policies.message_bytes_max)
    assert part.records is not None
    writer.append(part.records, head, report)


def _checked(session: Session, part: Part, version: int) -> BatchHead:
    """Returns the head of a batch that may be stored. KafkaRefusedError."""
    config, records = session.config, part.records
    if not records:
        raise KafkaRefusedError(ErrorCode.INVALID_RECORD, "a partition is produced to without a batch")
    if len(records) > config.message_bytes_max:
        raise _too_large(len(records), config.message_bytes_max)
    head = read_head(records)
    check(records, head)
    if head.records < 1 or head.last_offset_delta != head.records - 1 or head.base_offset:
        raise KafkaRefusedError(
            ErrorCode.INVALID_RECORD,
            f"a batch of {head.records} records has base offset {head.base_offset} and last offset delta "
            f"{head.last_offset_delta}",
        )
    _check_count(head)
    if head.is_control or head.is_transactional or head.has_append_time:
        raise KafkaRefusedError(
            ErrorCode.INVALID_RECORD, "a producer's batch has no control records, transaction or time of the server"
        )
    if head.codec > CODEC_MAX or (head.codec == Codec.ZSTD and version < _ZSTD_SINCE):
        raise KafkaRefusedError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {head.codec} is not accepted in Produce v{version}"
        )
    if is_idempotent(head) and (head.base_sequence < 0 or head.producer_epoch < 0):
        raise KafkaRefusedError(ErrorCode.INVALID_RECORD, "an idempotent batch has no sequence or no epoch")
    if head.max_timestamp > session.service.entropy.wall_ms() + config.timestamp_after_max_ms:
        raise KafkaRefusedError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {head.max_timestamp} is more than {config.timestamp_after_max_ms} ms after the broker's time",
        )
    return head


def _check_count(head: BatchHead) -> None:
    """Refuses a number that cannot be true: permits, backlogs and offsets are counted by it, in both protocols."""
    records_max = _RECORDS_MAX if head.codec else (head.size - HEAD_BYTES) // RECORD_BYTES_MIN
    if head.records > records_max:
        raise KafkaRefusedError(
            ErrorCode.INVALID_RECORD,
            f"a batch of {head.size} bytes claims {head.records} records, and at most {records_max} are accepted",
        )


def _too_large(size: int, limit: int) -> KafkaRefusedError:
    return KafkaRefusedError(
        ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes exceeds the {limit} that are accepted"
    )
