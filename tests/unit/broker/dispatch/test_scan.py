from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.dispatch.hashing import key_hash, key_of, murmur3_32
from magnetar.broker.dispatch.scan import special_of
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
    if form != "long header":  # Of which only the bounds are known here: it is not parsed unless it must be.
        assert special_of(entry_of(metadata, form, payload)) is None


@given(plain_metadata, st.sampled_from(FORMS), st.integers(1, 2**60))
def test_a_delivery_time_is_found_in_every_form_of_entry(metadata: MessageMetadata, form: str, due: int) -> None:
    metadata.deliver_at_time = due
    special = special_of(entry_of(metadata, form))
    assert special is not None
    assert special.deliver_at_ms == due


@pytest.mark.parametrize("form", FORMS)
def test_markers_transactions_and_chunks_are_found(form: str) -> None:
    base = {"producer_name": "p", "sequence_id": 1, "publish_time": 2}
    marker = special_of(entry_of(MessageMetadata(**base, marker_type=20), form))
    assert marker is not None
    assert marker.is_marker
    transactional = special_of(entry_of(MessageMetadata(**base, txnid_most_bits=0, txnid_least_bits=9), form))
    assert transactional is not None
    assert transactional.is_transactional
    chunk = special_of(entry_of(MessageMetadata(**base, uuid="u", chunk_id=2, num_chunks_from_msg=3), form))
    assert chunk is not None
    assert (chunk.uuid, chunk.is_last_chunk) == ("u", True)


@given(st.binary(max_size=64))
def test_bytes_that_are_no_entry_raise_nothing(data: bytes) -> None:
    special_of(LogEntry(Position(1, 0), data))


# Values of Pulsar's Murmur3_32Hash, as its own tests and other implementations of the algorithm have them.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"a", 0x3C2569B2),
        (b"abc", 0xB3DD93FA & 0x7FFFFFFF),
        (b"hello", 0x248BFA47),
        (b"hello, world", 0x149BBB7F),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_the_hash_is_murmur3_without_its_sign(data: bytes, expected: int) -> None:
    assert murmur3_32(data) == expected


@given(st.binary(max_size=40), st.sampled_from([0, 1]))
def test_key_hashes_are_within_their_range_and_never_zero(key: bytes, first: int) -> None:
    assert 1 <= key_hash(key, first) <= 65_535


def test_the_ordering_key_goes_before_the_key_and_a_message_without_either_has_one_of_its_own() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=3, publish_time=2)
    assert key_of(metadata) == b"p-3"
    metadata.partition_key = "key"
    assert key_of(metadata) == b"key"
    metadata.partition_key = "AAEC"
    metadata.partition_key_b64_encoded = True
    assert key_of(metadata) == b"\x00\x01\x02"
    metadata.ordering_key = b"order"
    assert key_of(metadata) == b"order"
