"""Messages that are not simply values: tombstones, markers, encrypted and damaged ones; ranges; indexes."""

from __future__ import annotations

import struct

import pytest

from magnetar.errors import EncryptedMessageError, MalformedEntryError
from magnetar.spark.decoding.columns import raw_columns
from magnetar.spark.decoding.decoder import EntryDecoder
from magnetar.spark.decoding.inputs import DecodeOptions
from magnetar.topic.entry_format import kafka
from magnetar.topic.entry_format.head import EntryStamp
from magnetar.wire.kafka.batches import Header, Record, encode_batch
from magnetar.wire.kafka.compression import Codec
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import LZ4, EncryptionKeys, MessageMetadata, SingleMessageMetadata
from tests.unit.spark.decoding.stored import (
    EntryFields,
    Sent,
    batch,
    batch_payload,
    decode,
    reference,
    run,
    single,
    stored,
)
from tests.unit.wire.pulsar.samples import spoiled

_KEYS = {"encryption_keys": [EncryptionKeys(key="k", value=b"secret")]}


def _values(*messages: bytes | None) -> list[Sent]:
    return [Sent(value) for value in messages]


def test_a_tombstone_and_an_empty_value_are_told_apart() -> None:
    entries = [batch([*_values(b"", None, b"x"), *_values(*[b"y"] * 20)]), single(Sent(None)), single(Sent(b""))]
    rows = decode(run(entries))
    assert [row["value"] for row in rows] == [b"", None, b"x", *[b"y"] * 20, None, b""]


def test_tombstones_among_like_messages_are_nulls() -> None:
    rows = decode(run([batch([Sent(None, "key") for _ in range(20)]), batch([Sent(b"", "key") for _ in range(20)])]))
    assert [row["value"] for row in rows] == [None] * 20 + [b""] * 20


def test_a_key_of_bytes_is_decoded_and_a_null_key_is_null() -> None:
    messages = [Sent(key=b"\xff\x00"), Sent(key="text"), Sent(key="gone", has_null_key=True), Sent(key=""), Sent()]
    assert [row["key"] for row in decode(run([batch(messages)]))] == [b"\xff\x00", b"text", None, b"", None]


def test_a_key_that_is_not_base64_though_it_says_so_stays_as_it_is() -> None:
    odd = stored(b"v", partition_key="!", partition_key_b64_encoded=True)
    assert decode(run([odd]))[0]["key"] == b"!"


def test_markers_are_passed_over_but_have_an_index() -> None:
    entries = [single(Sent(b"a")), stored(b"", marker_type=10), single(Sent(b"b"))]
    decoder = EntryDecoder(raw_columns(include_headers=False), DecodeOptions())
    assert not list(decoder.feed(run(entries)))
    (made,) = decoder.finish()
    assert made.column("index").to_pylist() == [1000, 1002]


def test_an_index_in_an_entry_counts_more_than_one_that_is_counted() -> None:
    messages = _values(b"a", b"b", b"c")
    entries = [batch(messages), batch(messages, EntryFields(index=5002)), single(Sent(b"d"))]
    rows = decode(run(entries))
    assert [row["index"] for row in rows] == [1000, 1001, 1002, 5000, 5001, 5002, 5003]


def test_an_encrypted_message_is_refused_with_its_place() -> None:
    entry = single(Sent(b"secret"), EntryFields(more=_KEYS))
    with pytest.raises(EncryptedMessageError, match=r"default/read, entry 7:101 .*encrypted=raw"):
        decode(run([single(Sent()), entry]))


def test_an_encrypted_batch_is_one_row_if_it_is_wanted_raw() -> None:
    fields = EntryFields(more=_KEYS, index=9)
    entries = [stored(b"cipher", fields, num_messages_in_batch=3, partition_key="k"), single(Sent(b"x"))]
    rows = decode(run(entries), options=DecodeOptions(encrypted="raw"))
    assert [(row["value"], row["message_id"]) for row in rows] == [(b"cipher", "7:100:2:-1"), (b"x", "7:101:2:-1")]
    assert rows[1]["index"] == 10


def test_a_damaged_entry_is_an_error_with_its_place() -> None:
    whole = bytearray(batch(_values(b"a", b"b")))
    whole[-1] ^= 1
    with pytest.raises(MalformedEntryError, match=r"default/read, entry 7:101 is damaged: the checksum is wrong"):
        decode(run([single(Sent()), bytes(whole)]))


@pytest.mark.parametrize("cut", [1, 5, 12, 30])
def test_a_batch_that_ends_too_early_is_an_error_with_its_place(cut: int) -> None:
    payload = batch_payload([Sent(b"v" * 10) for _ in range(20)])[:-cut]
    with pytest.raises(MalformedEntryError, match="entry 7:100 is damaged"):
        decode(run([stored(payload, num_messages_in_batch=20)]))


@pytest.mark.parametrize("header", [b"", b"\x18", b"\xff\xff", b"\x18\x00\x12\x7f", b"\x40\x01"])
def test_a_header_that_is_none_is_an_error_with_its_place(header: bytes) -> None:
    payload = batch_payload([Sent(b"")] * 2) + struct.pack(">I", len(header)) + header
    with pytest.raises(MalformedEntryError, match="7:100"):
        decode(run([stored(payload, num_messages_in_batch=3)]))


def test_headers_that_no_client_writes_are_read_like_any_other() -> None:
    fields = SingleMessageMetadata(payload_size=3, partition_key="k", sequence_id=4).SerializeToString()
    reversed_fields = b"\x40\x04" + b"\x18\x03" + b"\x12\x01k"
    unknown = fields + b"\xa2\x06\x02hi"  # Field 100.
    parts = [fields, reversed_fields, unknown]
    payload = b"".join(struct.pack(">I", len(each)) + each + b"abc" for each in parts * 7)
    made = run([stored(payload, num_messages_in_batch=21)])
    assert {
        tuple(sorted((name, str(row[name])) for name in ("key", "value", "sequence_id"))) for row in decode(made)
    } == {(("key", "b'k'"), ("sequence_id", "4"), ("value", "b'abc'"))}


def test_bytes_behind_the_last_message_are_ignored() -> None:
    payload = batch_payload([Sent(b"v", sequence_id=None) for _ in range(20)]) + b"more"
    assert len(decode(run([stored(payload, num_messages_in_batch=20)]))) == 20


def test_messages_that_compaction_took_out_keep_their_numbers() -> None:
    messages = [Sent(bytes([n]), is_compacted_out=n % 3 == 0) for n in range(9)]
    made = run([batch(messages)])
    assert [row["message_id"] for row in decode(made)] == [f"7:100:2:{n}" for n in (1, 2, 4, 5, 7, 8)]
    assert not decode(run([batch([Sent(is_compacted_out=True)] * 3)]))


def test_a_property_given_twice_has_its_last_value() -> None:
    messages = [Sent(properties=[("a", "1"), ("b", "2"), ("a", "3")]), Sent(properties=[("a", "1")])]
    assert [row["properties"] for row in decode(run([batch(messages)]))] == [{"a": "3", "b": "2"}, {"a": "1"}]


def test_a_property_that_is_not_utf8_does_not_break_the_column() -> None:
    header = b"\x0a\x06\x0a\x01a\x12\x01\xff" + b"\x18\x00"
    payload = struct.pack(">I", len(header)) + header
    assert decode(run([stored(payload, num_messages_in_batch=1)]))[0]["properties"] == {"a": "\ufffd"}


def test_a_key_and_a_producer_that_are_not_utf8_do_not_break_their_columns() -> None:
    metadata = MessageMetadata(producer_name="KKKK", sequence_id=0, publish_time=1, partition_key="KKKK")
    (row,) = decode(run([with_checksum(spoiled(metadata.SerializeToString()), b"v")]))
    assert (row["key"].decode(), row["producer"]) == ("\ufffd\ufffd\ufffdk", "\ufffd\ufffd\ufffdk")


def test_a_range_may_begin_and_end_inside_a_batch() -> None:
    entries = [batch(_values(*[b"%d" % n for n in range(20)])) for _ in range(3)]
    rows = decode(run(entries, first_batch_index=18, end_batch_index=1))
    assert [row["message_id"] for row in rows] == (
        ["7:100:2:18", "7:100:2:19"] + [f"7:101:2:{n}" for n in range(20)] + ["7:102:2:0"]
    )
    assert [row["index"] for row in rows] == [*range(1018, 1041)]
    only = decode(run(entries[:1], first_batch_index=3, end_batch_index=5))
    assert [row["value"] for row in only] == [b"3", b"4"]


def test_messages_outside_the_range_of_time_are_left_out() -> None:
    entries = [batch(_values(*[b"x"] * 5), EntryFields(publish_ms=1000 * n, compression=LZ4)) for n in range(1, 5)]
    by_time = decode(run(entries), options=DecodeOptions(publish_ms_min=2000, publish_ms_end=4000))
    assert [row["index"] for row in by_time] == list(range(1005, 1015))


def test_an_event_time_of_zero_is_none() -> None:
    rows = decode(run([batch([Sent(), Sent(event_ms=1)]), single(Sent(event_ms=5))]))
    assert [row["event_time"] and row["event_time"].microsecond for row in rows] == [None, 1000, 5000]


def test_messages_of_many_topics_and_producers_keep_their_names() -> None:
    one = run([batch(_values(b"a", b"b"), EntryFields(producer="p")), single(Sent(), EntryFields(producer="q"))])
    other = run([single(Sent())], topic="persistent://public/default/other", partition=-1)
    rows = decode(one, other)
    assert rows == [{**dict.fromkeys(rows[0]), **row} for each in (one, other) for row in reference(each)]


def test_batches_of_kafka_producers_are_rows_with_keys_headers_and_times() -> None:
    records = [
        Record(0, 1_700_000_000_000, b"\xff", b"a", [Header("h", b"x")]),
        Record(1, 1_700_000_000_001, b"k", None),
    ]
    parts = kafka.body_parts(encode_batch(records, codec=Codec.ZSTD), 7, 0, 1_700_000_000_009)
    rows = decode(run([EntryStamp(lambda: 1_700_000_000_009).on_parts(8, parts)]))
    assert [(row["key"], row["value"], row["index"]) for row in rows] == [(b"\xff", b"a", 7), (b"k", None, 8)]
    assert [row["event_time"].timestamp() for row in rows] == [1_700_000_000, 1_700_000_000.001]
