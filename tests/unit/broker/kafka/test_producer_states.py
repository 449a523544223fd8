from __future__ import annotations

import pytest

from magnetar.broker.kafka.producer_states import Batch, ProducerStates, finish
from magnetar.errors import KafkaRefusedError, LogBusyError
from magnetar.wire.kafka.batches import BatchHead, Record, encode_batch, read_head
from magnetar.wire.kafka.error_codes import ErrorCode


def head(first: int, records: int = 1, *, producer: int = 7, epoch: int = 0) -> BatchHead:
    each = [Record(delta, 1, None, b"") for delta in range(records)]
    return read_head(encode_batch(each, producer=(producer, epoch, first)))


def append(states: ProducerStates, batch: BatchHead, offset: int) -> Batch:
    assert states.find_repeat(batch) is None
    return states.note(batch, offset)


def code_of(states: ProducerStates, batch: BatchHead) -> int:
    with pytest.raises(KafkaRefusedError) as refused:
        states.find_repeat(batch)
    return refused.value.code


def test_a_batch_that_is_sent_again_is_found_while_it_is_one_of_the_last_five() -> None:
    states = ProducerStates()
    made = [append(states, head(2 * number, 2), 100 + 2 * number) for number in range(6)]
    assert states.find_repeat(head(2, 2)) is made[1]
    assert states.find_repeat(head(10, 2)) is made[5]
    assert code_of(states, head(0, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_repeat_has_the_same_first_and_last_sequence() -> None:
    states = ProducerStates()
    append(states, head(0, 3), 0)
    assert code_of(states, head(0, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_next_sequence_follows_the_last_one_also_around_the_highest() -> None:
    states = ProducerStates()
    append(states, head(2**31 - 2, 2), 0)
    assert code_of(states, head(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(states, head(0), 2)


def test_a_producer_of_which_nothing_is_known_may_begin_anywhere() -> None:
    append(ProducerStates(), head(12_345), 0)


def test_an_older_epoch_is_refused_and_a_newer_one_begins_with_zero() -> None:
    states = ProducerStates()
    append(states, head(5, epoch=1), 0)
    assert code_of(states, head(6, epoch=0)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(states, head(6, epoch=2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(states, head(0, epoch=2), 1)
    assert code_of(states, head(5, epoch=1)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_after_a_batch_that_could_not_be_appended_the_following_ones_get_the_same_error() -> None:
    states = ProducerStates()
    append(states, head(0), 0)
    refusal = KafkaRefusedError(ErrorCode.NOT_ENOUGH_REPLICAS, "busy")
    states.note_refused(head(1), refusal)
    assert code_of(states, head(2)) == ErrorCode.NOT_ENOUGH_REPLICAS
    append(states, head(1), 1)
    append(states, head(2), 2)
    assert code_of(states, head(5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_repeat_of_a_batch_in_flight_gets_its_outcome() -> None:
    states = ProducerStates()
    batch = append(states, head(0), 0)
    outcomes: list[BaseException | None] = []
    batch.waiting.append(outcomes.append)
    finish(batch, None)
    assert outcomes == [None]
    assert batch.is_stored
    other, error = append(states, head(1), 1), LogBusyError("no room")
    other.waiting.append(outcomes.append)
    finish(other, error)
    assert outcomes == [None, error]
    assert (other.is_stored, other.error) == (False, error)


def test_the_producer_that_wrote_longest_ago_is_forgotten_first() -> None:
    states = ProducerStates(producers_max=2)
    for producer in (1, 2, 1, 3):
        states.note(head(0, producer=producer), 0)
    assert len(states) == 2
    assert states.find_repeat(head(9, producer=2)) is None
    assert code_of(states, head(9, producer=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
