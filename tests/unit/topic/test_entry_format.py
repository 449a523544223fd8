from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.topic.entry_format.head import EntryStamp, read_body
from magnetar.topic.entry_format.traits import ordering_key_of, traits_of
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.wire.pulsar.entry import broker_entry_header
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata
from tests.unit.broker.dispatch.world import body


def entry_of(metadata: MessageMetadata, form: str, payload: bytes = b"x") -> LogEntry:
    with_checksum = body(metadata, payload)
    forms = {
        "header and checksum": broker_entry_header(7, 1_700_000_000_000) + with_checksum,
        "header only": broker_entry_header(7, 1_700_000_000_000) + with_checksum[6:],
        "checksum only": with_checksum,
        "neither": with_checksum[6:],
        "long header": b"\x0e\x02" + (300).to_bytes(4, "big") + bytes(300) + with_checksum,
    }
    return LogEntry(Position(1, 0), forms[form])


FORMS = ["header and checksum", "header only", "checksum only", "neither"]
plain_metadata = st.builds(
    MessageMetadata,
    producer_name=st.text(max_size=20),
    sequence_id=st.integers(0, 2**63),
    publish_time=st.integers(0, 2**45),
    uncompressed_size=st.integers(0, 2**31),
    num_messages_in_batch=st.integers(1, 1_000),
)


@given(plain_metadata, st.sampled_from([*FORMS, "long header"]), st.binary(max_size=200))
def test_whatever_a_plain_entry_looks_like_it_is_not_special(
    metadata: MessageMetadata, form: str, payload: bytes
) -> None:
    if form != "long header":  # Only its bounds are known here: it is not parsed unless it must be.
        assert traits_of(entry_of(metadata, form, payload)) is None


@given(plain_metadata, st.sampled_from(FORMS), st.integers(1, 2**60))
def test_a_delivery_time_is_found_in_every_form_of_entry(metadata: MessageMetadata, form: str, due: int) -> None:
    metadata.deliver_at_time = due
    traits = traits_of(entry_of(metadata, form))
    assert traits is not None
    assert traits.deliver_at_ms == due


@pytest.mark.parametrize("form", FORMS)
def test_markers_transactions_and_chunks_are_found(form: str) -> None:
    base = {"producer_name": "p", "sequence_id": 1, "publish_time": 2}
    marker = traits_of(entry_of(MessageMetadata(**base, marker_type=20), form))
    assert marker is not None
    assert marker.is_marker
    transactional = traits_of(entry_of(MessageMetadata(**base, txnid_most_bits=0, txnid_least_bits=9), form))
    assert transactional is not None
    assert transactional.is_transactional
    chunk = traits_of(entry_of(MessageMetadata(**base, uuid="u", chunk_id=2, num_chunks_from_msg=3), form))
    assert chunk is not None
    assert (chunk.uuid, chunk.is_last_chunk) == ("u", True)


@given(st.binary(max_size=64))
def test_bytes_that_are_no_entry_raise_nothing(data: bytes) -> None:
    traits_of(LogEntry(Position(1, 0), data))


def test_the_ordering_key_goes_before_the_key_and_a_message_without_either_has_one_of_its_own() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=3, publish_time=2)
    assert ordering_key_of(body(metadata)) == b"p-3"
    metadata.partition_key = "key"
    assert ordering_key_of(body(metadata)) == b"key"
    metadata.partition_key = "AAEC"
    metadata.partition_key_b64_encoded = True
    assert ordering_key_of(body(metadata)) == b"\x00\x01\x02"
    metadata.ordering_key = b"order"
    assert ordering_key_of(body(metadata)) == b"order"


@given(
    st.lists(
        st.tuples(st.integers(0, 140) | st.integers(0, 2**14 + 2) | st.integers(0, 2**63), st.integers(0, 3)),
        min_size=1,
    ),
    st.integers(1, 2**44),
)
def test_an_entry_is_stamped_with_its_index_and_the_time(steps: list[tuple[int, int]], start_ms: int) -> None:
    now_ms = start_ms
    stamp = EntryStamp(lambda: now_ms)
    for index, passed_ms in sorted(steps):
        now_ms += passed_ms
        assert stamp.on(index, b"body") == broker_entry_header(index, now_ms) + b"body"


def test_an_entry_without_a_count_has_one_message_and_a_batch_as_many_as_it_states() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=3, publish_time=2)
    alone = read_body(body(metadata))
    assert (alone.messages, alone.batch_size, alone.is_readable_batch) == (1, None, False)
    metadata.num_messages_in_batch = 7
    batch = read_body(body(metadata))
    assert (batch.messages, batch.batch_size, batch.is_readable_batch) == (7, 7, True)
    metadata.encryption_keys.add(key="k", value=b"v")
    assert not read_body(body(metadata)).is_readable_batch


def test_markers_and_chunks_before_the_last_do_not_complete_a_message() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=3, publish_time=2)
    assert read_body(body(metadata)).completes_message
    metadata.num_chunks_from_msg = 2
    metadata.uuid = "u"
    metadata.chunk_id = 0
    first = read_body(body(metadata))
    assert (first.completes_message, first.chunk) == (False, ("u", 0, 2))
    metadata.chunk_id = 1
    assert read_body(body(metadata)).completes_message
    metadata.marker_type = 1
    assert not read_body(body(metadata)).completes_message
