from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.publishing.dedup import SequenceIds, Verdict
from magnetar.errors import NotAllowedError
from magnetar.topic.entry_format.head import read_body
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata
from tests.unit.wire.pulsar.samples import spoiled


def judge(ids: SequenceIds, sequence_id: int, highest: int = 0, *, counts: bool = True) -> Verdict:
    return ids.judge("p", sequence_id, highest, counts=counts)


def replay(ids: SequenceIds, metadata: MessageMetadata) -> None:
    ids.replay(read_body(with_checksum(metadata.SerializeToString(), b"")))


def test_a_message_is_new_then_undecided_then_a_duplicate() -> None:
    ids = SequenceIds()
    assert judge(ids, 5) is Verdict.NEW
    assert judge(ids, 5) is Verdict.UNDECIDED
    ids.on_appended("p", 5, 0)
    assert judge(ids, 5) is Verdict.DUPLICATE
    assert judge(ids, 4) is Verdict.DUPLICATE
    assert judge(ids, 6) is Verdict.NEW


def test_what_could_not_be_appended_may_be_sent_again() -> None:
    ids = SequenceIds({"p": 3})
    judge(ids, 4)
    ids.take_back()
    assert judge(ids, 4) is Verdict.NEW
    judge(ids, 9, counts=False)
    ids.take_back()
    ids.on_appended("p", 4, 0)
    assert ids.persisted == {"p": 4}


def test_the_first_message_of_a_producer_can_be_taken_back_too() -> None:
    ids = SequenceIds()
    judge(ids, 0)
    ids.take_back()
    assert ids.pushed("p") == -1


def test_only_the_last_chunk_completes_a_message() -> None:
    ids = SequenceIds()
    assert judge(ids, 7, counts=False) is Verdict.NEW
    assert judge(ids, 7, counts=False) is Verdict.NEW
    assert judge(ids, 7) is Verdict.NEW
    for _ in range(2):
        ids.on_appended("p", 7, 0)
        assert ids.persisted == {}
    ids.on_appended("p", 7, 0)
    assert ids.persisted == {"p": 7}


def test_a_message_of_which_only_some_chunks_are_in_the_log_is_not_known_after_a_restart() -> None:
    ids = SequenceIds()
    for chunk in (0, 1):
        replay(
            ids,
            MessageMetadata(producer_name="p", sequence_id=7, publish_time=1, num_chunks_from_msg=3, chunk_id=chunk),
        )
    assert judge(ids, 7) is Verdict.NEW


def test_replaying_markers_and_old_messages_changes_nothing() -> None:
    ids = SequenceIds({"p": 9})
    replay(ids, MessageMetadata(producer_name="p", sequence_id=3, publish_time=1))
    replay(ids, MessageMetadata(producer_name="p", sequence_id=99, publish_time=1, marker_type=1))
    assert ids.persisted == {"p": 9}


@pytest.mark.parametrize(("sequence_id", "highest"), [(2**63, 0), (2**64 - 1, 0), (1, 2**63), (1, 2**64 - 1)])
@pytest.mark.parametrize("counts", [True, False])
def test_a_sequence_id_beyond_a_javas_long_is_refused_and_changes_nothing(
    sequence_id: int, highest: int, counts: bool
) -> None:
    ids = SequenceIds({"p": 0})
    with pytest.raises(NotAllowedError, match="sequence id"):
        judge(ids, sequence_id, highest, counts=counts)
    assert (ids.persisted, ids.pushed("p")) == ({"p": 0}, 0)
    assert judge(ids, 2**63 - 1) is Verdict.NEW


def test_sequence_ids_in_the_log_that_nobody_judged_are_read_as_java_reads_them() -> None:
    ids = SequenceIds()
    for sequence_id, highest in ((2**64 - 1, 0), (2**63, 2**64 - 1), (4, 2**63)):
        replay(
            ids,
            MessageMetadata(producer_name="p", sequence_id=sequence_id, highest_sequence_id=highest, publish_time=1),
        )
        ids.on_appended("q", sequence_id, highest)
    assert ids.persisted == {"p": 4, "q": 4}


def test_a_name_in_the_log_that_is_not_utf_8_is_text_that_a_snapshot_can_hold() -> None:
    ids = SequenceIds()
    metadata = MessageMetadata(producer_name="KKKK", sequence_id=3, publish_time=1)
    replay(ids, MessageMetadata.FromString(spoiled(metadata.SerializeToString())))
    assert ids.persisted == {"\ufffd\ufffd\ufffdk": 3}


def test_producers_do_not_know_of_one_another() -> None:
    ids = SequenceIds({"p": 9})
    assert ids.judge("q", 1, 0, counts=True) is Verdict.NEW


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans())))
def test_nothing_is_stored_twice_whatever_is_repeated_and_whenever_it_becomes_durable(
    steps: list[tuple[int, int, bool]],
) -> None:
    ids = SequenceIds()
    stored: list[tuple[int, int]] = []
    under_way: list[tuple[int, int]] = []
    for sequence_id, more, settles in steps:
        highest = sequence_id + more
        if judge(ids, sequence_id, highest) is Verdict.NEW:
            assert all(sequence_id > last for _, last in stored + under_way)
            under_way.append((sequence_id, highest))
        if settles and under_way:
            first, last = under_way.pop(0)
            ids.on_appended("p", first, last)
            stored.append((first, last))
            assert judge(ids, first, last) is Verdict.DUPLICATE
