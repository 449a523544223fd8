"""A topic's node: Pulsar's bytes in and out."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import MalformedMetadataError
from magnetar.topic.chain import LedgerSpan
from magnetar.topic.log.managed_ledger import ManagedLedger, decode_managed_ledger, encode_managed_ledger, is_offloaded
from magnetar.topic.position import Position
from magnetar.topic.proto.managed_ledger_pb2 import LZ4, SNAPPY, ZLIB, ZSTD, InfoMetadata, ManagedLedgerInfo
from magnetar.wire.compression import compress

# Two ledgers, one property, one terminated position, written out by hand from the field numbers.
GOLDEN = bytes.fromhex("0a0a08051002186420c0c407 0a0408092000 120408051001 1a0a0a05696e646578120131")


def packed(value: bytes, kind: int, body: bytes) -> bytes:
    head = InfoMetadata(compression_type=kind, uncompressed_size=len(value)).SerializeToString()  # type: ignore[arg-type]
    return struct.pack(">Hi", 0x4778, len(head)) + head + body


def test_node_is_what_pulsar_writes() -> None:
    message = ManagedLedgerInfo()
    message.ledger_info.add(ledger_id=5, entries=2, size=100, timestamp=123_456)
    message.ledger_info.add(ledger_id=9, timestamp=0)
    message.terminated_position.ledger_id, message.terminated_position.entry_id = 5, 1
    message.properties.add(key="index", value="1")
    assert decode_managed_ledger(message.SerializeToString()) == decode_managed_ledger(GOLDEN)


def test_ledgers_properties_and_end_are_read() -> None:
    info = decode_managed_ledger(GOLDEN)
    assert [(span.ledger_id, span.entries, span.size_bytes, span.closed_ms) for span in info.spans] == [
        (5, 2, 100, 123_456),
        (9, 0, 0, 0),
    ]
    assert info.properties == {"index": "1"}
    assert info.terminated == Position(5, 1)


def test_what_is_not_changed_is_written_back_byte_for_byte() -> None:
    assert encode_managed_ledger(decode_managed_ledger(GOLDEN)) == GOLDEN


def test_empty_node_is_a_topic_without_ledgers() -> None:
    assert decode_managed_ledger(b"") == ManagedLedger()


def test_unknown_fields_survive_a_change() -> None:
    unknown = b"\xfa\x06\x03abc"  # Field 111, of a later release.
    ledger = ManagedLedgerInfo.LedgerInfo(ledger_id=5, entries=2, size=100, timestamp=7)
    ledger.properties.add(key="EntryFormat", value="pulsar")
    ledger.offload_context.uid_msb = 77
    inner = ledger.SerializeToString() + unknown
    value = b"\x0a" + bytes([len(inner)]) + inner + unknown
    info = decode_managed_ledger(value)
    changed = ManagedLedger((*info.spans, LedgerSpan(8)), {"colour": "red"}, None, info.kept)
    written = ManagedLedgerInfo.FromString(encode_managed_ledger(changed))
    assert written.ledger_info[0].SerializeToString() == inner
    assert written.ledger_info[1].ledger_id == 8
    assert encode_managed_ledger(changed).count(unknown) == 2


@pytest.mark.parametrize("kind", [LZ4, ZLIB, ZSTD, SNAPPY])
def test_compressed_node_is_read_and_written_plain(kind: int) -> None:
    if kind != ZLIB:
        pytest.importorskip("cramjam")
    value = packed(GOLDEN, kind, compress(kind, GOLDEN))  # The numbers are those of a message's compression.
    assert decode_managed_ledger(value) == decode_managed_ledger(GOLDEN)
    assert encode_managed_ledger(decode_managed_ledger(value)) == GOLDEN


def test_node_that_pulsar_wrapped_without_compressing_is_read() -> None:
    assert decode_managed_ledger(packed(GOLDEN, 0, GOLDEN)) == decode_managed_ledger(GOLDEN)


@pytest.mark.parametrize(
    "value",
    [
        b"\xff\xff",
        b"\x1a\x07\x0a\x02\xe4\xe4\x12\x01x",  # A property whose name is no text.
        packed(GOLDEN, ZLIB, b"not zlib"),
        packed(GOLDEN, ZLIB, zlib.compress(GOLDEN + b"more")),
        packed(bytes(2**27), ZLIB, b""),
        struct.pack(">Hi", 0x4778, 1000) + b"short",
        struct.pack(">Hi", 0x4778, -1),
    ],
)
def test_damaged_node_is_malformed_metadata(value: bytes) -> None:
    with pytest.raises(MalformedMetadataError):
        decode_managed_ledger(value)


@given(st.binary(max_size=80))
def test_no_value_does_anything_but_decode_or_be_malformed(value: bytes) -> None:
    for candidate in (value, b"\x47\x78" + value, GOLDEN + value):
        try:
            info = decode_managed_ledger(candidate)
        except MalformedMetadataError:
            continue
        assert decode_managed_ledger(encode_managed_ledger(info)).spans == info.spans


def test_numbers_of_a_ledger_that_is_written_are_not_stored() -> None:
    stored = ManagedLedgerInfo.FromString(encode_managed_ledger(ManagedLedger((LedgerSpan(4, 10, 1000),))))
    assert not stored.ledger_info[0].HasField("entries")
    assert stored.ledger_info[0].timestamp == 0


def test_offloaded_ledger_is_one_that_bookies_do_not_have_any_more() -> None:
    ledger = ManagedLedgerInfo.LedgerInfo(ledger_id=5)
    ledger.offload_context.complete = True
    assert not is_offloaded(LedgerSpan(5, kept=ledger.SerializeToString()))
    ledger.offload_context.bookkeeper_deleted = True
    assert is_offloaded(LedgerSpan(5, kept=ledger.SerializeToString()))
