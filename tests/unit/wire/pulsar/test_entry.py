"""What is stored: found where it is, whole or refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import MalformedEntryError
from magnetar.wire.pulsar.entry import body_offset_of, broker_entry_header, messages_in, metadata_of, parse_entry
from magnetar.wire.pulsar.frames import FrameDecoder, has_checksum, verify_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BrokerEntryMetadata
from tests.unit.wire.pulsar.samples import golden, headers_and_payload

BODY = headers_and_payload(b"the payload", num_messages_in_batch=9)


def _sent(name: str) -> bytes:
    (frame, *_) = golden()[name]
    ((decoded, _),) = FrameDecoder().frames(frame, 0, len(frame))
    assert decoded.headers_and_payload is not None
    return bytes(decoded.headers_and_payload)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_the_brokers_header_is_what_protobuf_makes(index: int, broker_ms: int) -> None:
    metadata = BrokerEntryMetadata(index=index, broker_timestamp=broker_ms).SerializeToString()
    assert broker_entry_header(index, broker_ms) == struct.pack(">HI", 0x0E02, len(metadata)) + metadata


@pytest.mark.parametrize("name", [name for name in golden() if name.startswith("send ")])
def test_what_the_official_client_sends_is_read_with_and_without_a_brokers_header(name: str) -> None:
    body = _sent(name)
    plain = parse_entry(body)
    assert (plain.index, plain.broker_ms, plain.body_offset) == (None, None, 0)
    assert verify_checksum(body)
    header = broker_entry_header(1_000, 1_700_000_000_000)
    stored = parse_entry(bytearray(header + body))
    assert (stored.index, stored.broker_ms, stored.body_offset) == (1_000, 1_700_000_000_000, len(header))
    assert stored.metadata == plain.metadata == metadata_of(body)
    assert stored.payload_offset == len(header) + plain.payload_offset
    assert messages_in(plain.metadata) == (3 if "batch" in name else 1)


def test_metadata_of_the_official_client_says_what_was_sent() -> None:
    body = _sent("send plain")
    head = parse_entry(body)
    assert {pair.key: pair.value for pair in head.metadata.properties} == {"a": "1", "b": ""}
    assert (head.metadata.partition_key, head.metadata.ordering_key) == ("key", b"order")
    assert body[head.payload_offset :] == b"hello"


def test_an_entry_without_a_checksum_is_read_and_never_wrong() -> None:
    bare = BODY[6:]
    assert not has_checksum(bare)
    assert verify_checksum(bare)
    assert parse_entry(bare).metadata == parse_entry(BODY).metadata
    assert parse_entry(bare).payload_offset == parse_entry(BODY).payload_offset - 6


@given(st.integers(0, len(BODY) - 1), st.integers(0, 7))
def test_one_wrong_bit_is_noticed(at: int, bit: int) -> None:
    damaged = bytearray(BODY)
    damaged[at] ^= 1 << bit
    assert not has_checksum(damaged) or not verify_checksum(damaged)


def test_the_offset_alone_is_that_of_the_whole() -> None:
    header = broker_entry_header(5, 6)
    assert body_offset_of(header + BODY) == len(header)
    assert body_offset_of(BODY) == body_offset_of(b"") == 0


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "ends before"),
        (BODY[:8], "ends before"),
        (BODY[:12], "metadata up to"),
        (b"\x0e\x02\xff\xff\xff\xff" + BODY, "broker entry header"),
        (b"\x0e\x02\x00\x00\x00\x02\xff\xff" + BODY, "not protobuf"),
        (b"\x00\x00\x00\x02\xff\xff", "not protobuf"),
        (b"\x00\x00\x00\x00", "required"),
    ],
)
def test_an_entry_that_is_none_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(MalformedEntryError, match=what):
        parse_entry(data)


def test_a_batch_that_counts_no_messages_counts_for_one() -> None:
    assert messages_in(metadata_of(headers_and_payload(num_messages_in_batch=0))) == 1
    assert messages_in(metadata_of(headers_and_payload())) == 1
