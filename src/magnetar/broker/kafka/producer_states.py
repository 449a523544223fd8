"""What a partition knows of its idempotent producers, so that a batch that is sent again is stored once. Pure.

    batch = states.submit(head, base_offset)       in the turn in which the batch is appended; or an earlier `Batch`
    states.on_stored(batch) / states.on_failed()   when its outcome is known

The epoch and the last five batches of each producer id are known, since clients have at most five requests in flight.
Batches are judged in the order in which they are appended, against what was appended before, and not only against what
is durable.

Order:     A batch with the sequence numbers of one of the five is a repeat: it is not appended, and gets the outcome of
           the first one when that is known. A lower epoch is INVALID_PRODUCER_EPOCH. A higher epoch begins with
           sequence 0. Otherwise the first sequence follows the last one, or OUT_OF_ORDER_SEQUENCE_NUMBER. A producer
           of which nothing is known may begin anywhere: its state may have expired.
Failure:   After a batch that could not be appended, the following ones of the same producer get the same error, which
           the client answers by sending all of them again. OUT_OF_ORDER_SEQUENCE_NUMBER would make it begin a new
           epoch, and batches in flight to other partitions would then be stored twice.
Limits:    `producers_max` producers; the one that wrote longest ago is forgotten first.
Read next: partition.py, which rebuilds the state from the log
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from magnetar.errors import KafkaRefusedError
from magnetar.wire.kafka.batches import NO_PRODUCER, BatchHead
from magnetar.wire.kafka.error_codes import ErrorCode

_BATCHES_KEPT: Final = 5
_SEQUENCES: Final = 2**31
PRODUCERS_MAX: Final = 10_000


@dataclass(slots=True, eq=False)
class Batch:
    first_sequence: int
    last_sequence: int
    base_offset: int
    is_stored: bool = False
    error: BaseException | None = None
    """Why it was not stored."""
    waiting: list[Callable[[BaseException | None], None]] = field(default_factory=list)
    """Repeats that wait for the outcome."""


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: deque[Batch] = field(default_factory=lambda: deque(maxlen=_BATCHES_KEPT))
    refusal: KafkaRefusedError | None = None
    """Why the batch that is expected next could not be appended."""

    @property
    def next_sequence(self) -> int | None:
        return (self.batches[-1].last_sequence + 1) % _SEQUENCES if self.batches else None


class ProducerStates:
    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        self._producers_max = producers_max

    def __len__(self) -> int:
        return len(self._producers)

    def find_repeat(self, head: BatchHead) -> Batch | None:
        """Returns the batch that this one repeats; None if it is to be appended. KafkaRefusedError if it must not."""
        producer = self._producers.get(head.producer_id)
        if producer is None:
            return None
        if head.producer_epoch < producer.epoch:
            raise KafkaRefusedError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {head.producer_id} has epoch {producer.epoch}, and the batch {head.producer_epoch}",
            )
        first = head.base_sequence
        if head.producer_epoch > producer.epoch:
            if first:
                raise self._out_of_order(head, 0)
            return None
        for batch in producer.batches:
            if (batch.first_sequence, batch.last_sequence) == (first, _last_sequence(head)):
                return batch
        expected = producer.next_sequence
        if expected is not None and first != expected:
            raise producer.refusal or self._out_of_order(head, expected)
        return None

    def _out_of_order(self, head: BatchHead, expected: int) -> KafkaRefusedError:
        return KafkaRefusedError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {head.producer_id} sent sequence {head.base_sequence}, and {expected} is the next one",
        )

    def note(self, head: BatchHead, base_offset: int, *, is_stored: bool = False) -> Batch:
        """Notes a batch that was appended, or that the log has."""
        producer = self._producers.get(head.producer_id)
        if producer is None or producer.epoch != head.producer_epoch:
            producer = self._producers[head.producer_id] = _Producer(head.producer_epoch)
        self._producers.move_to_end(head.producer_id)
        batch = Batch(head.base_sequence, _last_sequence(head), base_offset, is_stored)
        producer.batches.append(batch)
        producer.refusal = None
        while len(self._producers) > self._producers_max:
            self._producers.popitem(last=False)
        return batch

    def note_refused(self, head: BatchHead, refusal: KafkaRefusedError) -> None:
        """Notes that a batch which was in order could not be appended."""
        producer = self._producers.get(head.producer_id)
        if producer is not None and producer.epoch == head.producer_epoch:
            producer.refusal = refusal


def is_idempotent(head: BatchHead) -> bool:
    return head.producer_id != NO_PRODUCER


def finish(batch: Batch, error: BaseException | None) -> None:
    """Reports the outcome of a batch to those that repeat it."""
    batch.is_stored, batch.error = error is None, error
    waiting, batch.waiting = batch.waiting, []
    for report in waiting:
        report(error)


def _last_sequence(head: BatchHead) -> int:
    return (head.base_sequence + head.last_offset_delta) % _SEQUENCES
