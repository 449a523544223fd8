"""The parts of the client that need no network."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client import EARLIEST, LATEST, Message, MessageId
from magnetar.client.consuming.acknowledgements import AckState, words_of
from magnetar.client.consuming.incoming import open_entry
from magnetar.client.topics import full_name, java_hash, partition_name, partition_of
from magnetar.client.values import before, id_from_wire
from magnetar.runtime.backoff import Backoff
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import CommandMessage, MessageIdData, MessageMetadata
from tests.unit.wire.pulsar.samples import spoiled

IDS = st.builds(
    MessageId,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-1, 1_000),
    st.integers(0, 1_000),
)


@given(IDS)
def test_a_message_id_is_the_same_after_a_round_through_text_and_wire(message_id: MessageId) -> None:
    assert MessageId.parse(str(message_id)) == message_id
    assert id_from_wire(message_id.to_wire(), message_id.partition) == message_id


def test_message_ids_read_as_pulsar_writes_them() -> None:
    assert str(MessageId(7, 8)) == "7:8"
    assert str(MessageId(7, 8, 3)) == "7:8:-1:3"
    assert str(MessageId(7, 8, partition=2)) == "7:8:2"
    assert MessageId.parse("7:8:2") == MessageId(7, 8, -1, 2)


@pytest.mark.parametrize("text", ["", "7", "7:", "a:b", "7:8:9:10:11", "7:8:x"])
def test_text_that_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a message id"):
        MessageId.parse(text)


def test_before_a_message_is_the_place_behind_which_it_comes_first() -> None:
    assert before(MessageId(7, 8)) == MessageId(7, 7)
    assert before(MessageId(7, 8, 0)) == MessageId(7, 7)
    assert before(MessageId(7, 8, 3)) == MessageId(7, 8, 2)
    assert (before(EARLIEST), before(LATEST)) == (EARLIEST, LATEST)


@given(st.integers(1, 200), st.randoms(use_true_random=False), st.booleans())
def test_a_batch_is_acknowledged_as_a_whole_exactly_with_its_last_message(
    size: int, random: Random, sends_indexes: bool
) -> None:
    messages = [Message(MessageId(1, 2, at), "t", b"", batch_size=size) for at in range(size)]
    acks = AckState(sends_indexes=sends_indexes)
    acks.on_received(messages)
    random.shuffle(messages)
    left = (1 << size) - 1
    for message in messages:
        left &= ~(1 << message.id.batch_index)
        told = acks.acknowledge([message])
        if left and not sends_indexes:
            assert not told
        else:
            (data,) = told
            assert list(data.ack_set) == words_of(left)
            assert data.entryId == 2


def test_many_acknowledgements_at_once_name_each_entry_once() -> None:
    batch = [Message(MessageId(1, 2, at), "t", b"", batch_size=3) for at in range(3)]
    single = Message(MessageId(1, 3), "t", b"")
    acks = AckState(sends_indexes=True)
    acks.on_received(batch)
    told = acks.acknowledge([batch[0], single, batch[2]])
    assert [(data.entryId, list(data.ack_set)) for data in told] == [(2, [0b010]), (3, [])]


def test_a_cumulative_acknowledgement_forgets_what_lies_before() -> None:
    batch = [Message(MessageId(1, 2, at), "t", b"", batch_size=3) for at in range(3)]
    acks = AckState(sends_indexes=True)
    acks.on_received(batch)
    (data,) = acks.acknowledge_to(batch[1])
    assert list(data.ack_set) == [0b100]
    (data,) = acks.acknowledge_to(Message(MessageId(1, 5), "t", b""))
    assert not data.ack_set
    (data,) = acks.acknowledge([batch[0]])
    assert list(data.ack_set) == [0b110]


def test_words_of_a_bit_set_are_java_longs() -> None:
    assert words_of(0) == []
    assert words_of(1 << 63) == [-(2**63)]
    assert words_of((1 << 64) | 5) == [5, 1]


def test_topics_in_full() -> None:
    assert full_name("t") == "persistent://public/default/t"
    assert full_name("a/b/c/d") == "persistent://a/b/c/d"
    assert full_name("non-persistent://a/b/c") == "non-persistent://a/b/c"
    assert partition_of(partition_name("t", 12)) == 12
    assert partition_of("t") == partition_of("t-partition-x") == -1


def test_a_key_has_the_hash_that_java_gives_it() -> None:
    assert java_hash("hello") == 99162322
    assert java_hash("") == 0
    assert java_hash("polygenelubricants") == 0  # The smallest integer in Java; without its sign, nothing is left.


def test_pauses_double_up_to_the_longest_and_begin_anew() -> None:
    backoff = Backoff(Random(1), 1.0, 5.0)
    pauses = [backoff.next_s() for _ in range(5)]
    for pause, most in zip(pauses, (1, 2, 4, 5, 5), strict=True):
        assert most / 2 <= pause <= most
    backoff.reset()
    assert backoff.next_s() <= 1.0


def test_what_is_said_about_a_message_is_text_also_where_it_is_not_utf_8() -> None:
    metadata = MessageMetadata(producer_name="KKKK", sequence_id=0, publish_time=1, partition_key="KKKK")
    metadata.properties.add(key="KKKK", value="KKKK")
    body = with_checksum(spoiled(metadata.SerializeToString()), b"payload")
    command = CommandMessage(consumer_id=1, message_id=MessageIdData(ledgerId=7, entryId=8))
    (message,) = open_entry("t", -1, command, body)
    name = "\ufffd\ufffd\ufffdk"
    assert (message.key, message.producer_name, message.properties) == (name, name, {name: name})
