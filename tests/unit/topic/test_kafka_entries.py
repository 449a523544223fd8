"""What becomes of each part of a message when the other protocol reads it; docs/kafka.md has the same table."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.topic.entry_format import kafka
from magnetar.topic.entry_format.conversions import Conversions
from magnetar.topic.entry_format.head import EntryStamp, read_head
from magnetar.topic.entry_format.traits import traits_of
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.wire.compression import Compression, compress
from magnetar.wire.kafka.batches import Header, Record, check, encode_batch, records_of
from magnetar.wire.kafka.batches import read_head as read_batch_head
from magnetar.wire.kafka.compression import Codec
from magnetar.wire.pulsar.entry import encode_batched_message, messages_of_batch
from magnetar.wire.pulsar.frames import verify_checksum, with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import EncryptionKeys, KeyValue, MessageMetadata, SingleMessageMetadata

NOW_MS = 1_700_000_000_000
LIMIT = 10**6
AT = Position(3, 4)


def stored_kafka(records: list[Record], *, base_offset: int = 100, codec: Codec = Codec.NONE) -> LogEntry:
    batch = encode_batch(records, codec=codec)
    parts = kafka.body_parts(batch, base_offset, 0, NOW_MS)
    count = records[-1].offset_delta + 1
    return LogEntry(AT, EntryStamp(lambda: NOW_MS).on_parts(base_offset + count - 1, parts))


def stored_pulsar(payload: bytes = b"v", *, index: int = 100, **fields: Any) -> LogEntry:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=NOW_MS, **fields)
    return LogEntry(AT, EntryStamp(lambda: NOW_MS).on(index, with_checksum(metadata.SerializeToString(), payload)))


def to_pulsar(record: Record) -> tuple[SingleMessageMetadata, bytes]:
    made = kafka.as_pulsar(stored_kafka([record]).data, LIMIT)
    head = read_head(made)
    ((single, payload),) = messages_of_batch(made[head.payload_offset :], 1)
    return single, bytes(payload)


def to_kafka(entry: LogEntry, messages: int = 1) -> list[Record]:
    batch = kafka.as_kafka(entry.head, entry.data, 100, messages, 0, LIMIT)
    head = read_batch_head(batch)
    check(batch, head)
    assert (head.base_offset, head.last_offset_delta) == (100, messages - 1)
    return list(records_of(batch, head, LIMIT))


# --- the stored form --------------------------------------------------------------------------------------------------


def test_a_batch_is_stored_as_it_came_with_its_offset_and_counts_for_its_messages() -> None:
    batch = encode_batch([Record(delta, 1, None, b"v") for delta in range(3)])
    entry = LogEntry(AT, EntryStamp(lambda: NOW_MS).on_parts(102, kafka.body_parts(batch, 100, 7, NOW_MS)))
    assert kafka.is_kafka(entry.data)
    found = kafka.batch_of(entry.data)
    head = read_batch_head(found)
    check(found, head)
    assert (head.base_offset, head.leader_epoch, bytes(found[16:])) == (100, 7, batch[16:])
    assert (entry.messages, entry.head.batch_size, entry.head.index, entry.head.broker_ms) == (3, 3, 102, NOW_MS)
    assert not entry.head.completes_message
    assert traits_of(entry) is None


def test_a_broker_of_apaches_sees_one_message_with_bytes() -> None:
    entry = stored_kafka([Record(delta, 1, None, b"v") for delta in range(3)])
    metadata = entry.head.metadata
    assert not metadata.HasField("num_messages_in_batch")
    assert [(each.key, each.value) for each in metadata.properties] == [("entry.format", "kafka")]
    assert (metadata.producer_name, metadata.sequence_id, metadata.publish_time) == ("kafka", 100, NOW_MS)


def test_entries_of_pulsar_are_not_taken_for_those_of_kafka() -> None:
    entry = stored_pulsar(properties=[KeyValue(key="entry.format", value="kafka")])
    assert not kafka.is_kafka(entry.data)
    assert entry.messages == 1


# --- for readers of Pulsar --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_every_compression_of_kafka_becomes_a_plain_batch_of_pulsar(codec: Codec) -> None:
    entry = stored_kafka([Record(0, 5, None, b"a"), Record(1, 6, None, b"b")], codec=codec)
    made = kafka.as_pulsar(entry.data, LIMIT)
    head = read_head(made)
    assert verify_checksum(made[head.body_offset :])
    assert (head.messages, head.index, head.metadata.compression, head.publish_ms) == (2, 101, 0, NOW_MS)
    found = messages_of_batch(made[head.payload_offset :], 2)
    assert [(each.metadata.event_time, bytes(each.payload)) for each in found] == [(5, b"a"), (6, b"b")]


@pytest.mark.parametrize(
    ("key", "text", "is_encoded"), [(b"k", "k", False), (b"", "", False), (b"\xff\x00", "/wA=", True)]
)
def test_a_key_is_text_or_base64(key: bytes, text: str, is_encoded: bool) -> None:
    single, _ = to_pulsar(Record(0, 1, key, b"v"))
    assert (single.partition_key, single.partition_key_b64_encoded) == (text, is_encoded)


def test_no_key_and_no_value_are_absent_and_null() -> None:
    single, payload = to_pulsar(Record(0, 1, None, None))
    assert not single.HasField("partition_key")
    assert (single.null_value, payload) == (True, b"")
    single, payload = to_pulsar(Record(0, 1, None, b""))
    assert (single.null_value, payload) == (False, b"")


def test_headers_are_properties_and_those_that_are_no_text_are_listed() -> None:
    headers = [Header("a", b"1"), Header("a", "é".encode()), Header("b", b"\xff"), Header("n", None)]
    single, _ = to_pulsar(Record(0, 1, None, b"v", headers))
    found = [(each.key, each.value) for each in single.properties]
    assert found == [("a", "1"), ("a", "é"), ("b", "/w=="), ("n", ""), ("kafka.b64", "b"), ("kafka.null", "n")]


def test_offsets_without_a_record_are_messages_that_were_compacted_out() -> None:
    made = kafka.as_pulsar(stored_kafka([Record(0, 1, None, b"a"), Record(2, 1, None, b"c")]).data, LIMIT)
    found = messages_of_batch(made[read_head(made).payload_offset :], 3)
    assert [each.metadata.compacted_out for each in found] == [False, True, False]


# --- for readers of Kafka ---------------------------------------------------------------------------------------------


def test_a_message_of_pulsar_is_one_record() -> None:
    fields = {"partition_key": "k", "event_time": 9, "properties": [KeyValue(key="a", value="é")]}
    assert to_kafka(stored_pulsar(**fields)) == [Record(0, 9, b"k", b"v", [Header("a", "é".encode())])]


@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch_of_pulsar_is_a_batch_of_kafka_with_gaps_where_messages_are_missing(compression: Compression) -> None:
    payload = b"".join(
        [
            encode_batched_message(SingleMessageMetadata(partition_key="x"), b"a"),
            encode_batched_message(SingleMessageMetadata(compacted_out=True), b""),
            encode_batched_message(SingleMessageMetadata(null_value=True), b""),
        ]
    )
    entry = stored_pulsar(
        compress(compression, payload),
        index=102,
        num_messages_in_batch=3,
        compression=int(compression),
        uncompressed_size=len(payload),
    )
    assert to_kafka(entry, 3) == [Record(0, NOW_MS, b"x", b"a", []), Record(2, NOW_MS, None, None, [])]


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"partition_key": "/wA=", "partition_key_b64_encoded": True}, b"\xff\x00"),
        ({"partition_key": "/wA=", "partition_key_b64_encoded": False}, b"/wA="),
        ({"partition_key": "no base64", "partition_key_b64_encoded": True}, b"no base64"),
        ({"partition_key": ""}, b""),
        ({"partition_key": "", "null_partition_key": True}, None),
        ({"ordering_key": b"\xfe"}, b"\xfe"),
        ({}, None),
    ],
)
def test_the_value_of_the_base64_flag_decides_what_the_key_is(fields: dict[str, Any], key: bytes | None) -> None:
    (record,) = to_kafka(stored_pulsar(**fields))
    assert record.key == key


def test_what_kafka_has_no_place_for_is_a_header() -> None:
    fields = {"partition_key": "k", "ordering_key": b"o", "schema_version": b"\x01", "replicated_from": "west"}
    (record,) = to_kafka(stored_pulsar(**fields))
    assert record.headers == [
        Header("pulsar.ordering_key", b"o"),
        Header("pulsar.schema_version", b"\x01"),
        Header("pulsar.replicated_from", b"west"),
    ]


@pytest.mark.parametrize(
    "fields", [{"marker_type": 10}, {"uuid": "u", "num_chunks_from_msg": 2, "chunk_id": 0, "total_chunk_msg_size": 9}]
)
def test_markers_and_chunks_are_gaps(fields: dict[str, Any]) -> None:
    assert to_kafka(stored_pulsar(**fields)) == []


def test_an_encrypted_entry_is_its_ciphertext_with_what_is_needed_to_decrypt_it() -> None:
    keys = [EncryptionKeys(key="mine", value=b"wrapped")]
    entry = stored_pulsar(
        b"secret", num_messages_in_batch=2, encryption_keys=keys, encryption_algo="AES", encryption_param=b"iv"
    )
    (record,) = to_kafka(entry, 2)
    assert (record.offset_delta, record.value) == (1, b"secret")
    assert record.headers == [
        Header("pulsar.encryption.key.mine", b"wrapped"),
        Header("pulsar.encryption.algorithm", b"AES"),
        Header("pulsar.encryption.param", b"iv"),
    ]


# --- conversions that are kept ----------------------------------------------------------------------------------------


def test_a_conversion_is_made_once_and_the_oldest_is_dropped_at_the_limit() -> None:
    entries = [stored_kafka([Record(0, 1, None, bytes(400))]) for _ in range(3)]
    conversions = Conversions(2_000, LIMIT)
    made = [conversions.for_pulsar(entry) for entry in entries]
    assert conversions.for_pulsar(entries[2]) is made[2]
    assert conversions.bytes_held <= 2_000
    assert conversions.for_pulsar(entries[0]) is not made[0]
    assert conversions.made == 4


def test_a_batch_that_cannot_be_opened_is_passed_on_as_it_is() -> None:
    entry = stored_kafka([Record(0, 1, None, bytes(10_000))], codec=Codec.GZIP)
    assert Conversions(10**6, 1_000).for_pulsar(entry) is entry.data
    pulsar = stored_pulsar()
    assert Conversions(10**6, 1_000).for_pulsar(pulsar) is pulsar.data


def test_an_entry_that_cannot_be_read_is_a_gap() -> None:
    entry = LogEntry(AT, EntryStamp(lambda: NOW_MS).on(4, b"nothing"))
    head = read_batch_head(Conversions(10**6, LIMIT).for_kafka(entry, 4, 1, 0))
    assert (head.base_offset, head.last_offset_delta, head.records) == (4, 0, 0)
