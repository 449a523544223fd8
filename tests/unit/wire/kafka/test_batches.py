from __future__ import annotations

import io
import struct

import cramjam
import pytest
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from magnetar.errors import KafkaRefusedError
from magnetar.wire.kafka.batches import (
    HEAD_BYTES,
    Header,
    Record,
    check,
    encode_batch,
    encode_gap,
    read_head,
    records_of,
)
from magnetar.wire.kafka.compression import Codec, compress, decompress
from magnetar.wire.kafka.error_codes import ErrorCode

LIMIT = 10**6
RECORDS = [
    Record(0, 1_000, b"key", b"value", [Header("a", b"1"), Header("a", b"\xff"), Header("n", None)]),
    Record(1, 999, None, None),
    Record(3, 2**41, b"", b"", []),
]


def read(batch: bytes) -> list[Record]:
    head = read_head(batch)
    check(batch, head)
    return list(records_of(batch, head, LIMIT))


@pytest.mark.parametrize("codec", list(Codec))
def test_records_are_the_same_after_encoding_and_reading(codec: Codec) -> None:
    batch = encode_batch(RECORDS, base_offset=40, leader_epoch=2, codec=codec, producer=(7, 1, 5))
    head = read_head(batch)
    assert (head.base_offset, head.leader_epoch, head.codec, head.records) == (40, 2, codec, 3)
    assert (head.producer_id, head.producer_epoch, head.base_sequence) == (7, 1, 5)
    assert (head.last_offset_delta, head.base_timestamp, head.max_timestamp) == (3, 1_000, 2**41)
    assert [record._replace(headers=list(record.headers)) for record in read(batch)] == [
        record._replace(headers=list(record.headers)) for record in RECORDS
    ]


def test_kafka_python_reads_our_batches_and_we_read_its() -> None:
    (theirs,) = list(MemoryRecords(encode_batch(RECORDS[:2], base_offset=9)))
    found = [(record.offset, record.key, record.value, record.headers) for record in theirs]
    assert found == [(9, b"key", b"value", [("a", b"1"), ("a", b"\xff"), ("n", None)]), (10, None, None, [])]
    builder = MemoryRecordsBuilder(2, 1, 10_000)
    builder.append(timestamp=5, key=b"k", value=b"v", headers=[("h", b"x")])
    builder.append(timestamp=6, key=None, value=b"w", headers=[])
    builder.close()
    assert read(bytes(builder.buffer())) == [
        Record(0, 5, b"k", b"v", [Header("h", b"x")]),
        Record(1, 6, None, b"w", []),
    ]


def test_a_gap_covers_its_offsets_without_records() -> None:
    head = read_head(encode_gap(100, 5, 3))
    assert (head.base_offset, head.last_offset_delta, head.records, head.leader_epoch) == (100, 4, 0, 3)
    assert read(encode_gap(100, 5, 3)) == []


def test_offset_and_epoch_change_without_a_new_checksum() -> None:
    batch = bytearray(encode_batch(RECORDS))
    batch[:8] = struct.pack(">q", 77)
    batch[12:16] = struct.pack(">i", 4)
    check(batch, read_head(batch))


def test_damage_old_formats_and_several_batches_are_refused_with_their_codes() -> None:
    batch = encode_batch(RECORDS)
    damaged = batch[:-1] + bytes([batch[-1] ^ 1])
    old = batch[:16] + b"\x01" + batch[17:]
    longer = batch[:8] + struct.pack(">i", 10**9) + batch[12:]
    for data, code in (
        (damaged, ErrorCode.CORRUPT_MESSAGE),
        (old, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (old[: HEAD_BYTES - 20], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (batch[: HEAD_BYTES - 1], ErrorCode.CORRUPT_MESSAGE),
        (batch[:-1], ErrorCode.CORRUPT_MESSAGE),
        (longer, ErrorCode.CORRUPT_MESSAGE),
        (batch + batch, ErrorCode.INVALID_RECORD),
    ):
        with pytest.raises(KafkaRefusedError) as refused:
            check(data, read_head(data))
        assert refused.value.code == code


def test_records_that_claim_more_than_the_batch_has_are_refused() -> None:
    for content in (b"\xff" * 12, b"\x7e\x00", b"\x02", b"\x10\x00\x00\x00\x01\x01\xfe\xff\x07", b""):
        head = read_head(encode_batch(RECORDS))._replace(length=HEAD_BYTES - 12 + len(content))
        with pytest.raises(KafkaRefusedError):
            list(records_of(bytes(HEAD_BYTES) + content, head, LIMIT))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_nothing_is_decompressed_beyond_the_limit(codec: Codec) -> None:
    data = compress(codec, bytes(100_000))
    assert decompress(codec, data, 100_000) == bytes(100_000)
    with pytest.raises(KafkaRefusedError):
        decompress(codec, data, 99_999)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_data_that_does_not_decompress_is_corrupt(codec: Codec) -> None:
    for data in (b"", b"\x00\xff" * 9, compress(codec, b"hello" * 100)[:-9]):
        with pytest.raises(KafkaRefusedError) as refused:
            decompress(codec, data, LIMIT)
        assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


def test_snappy_is_read_in_the_container_of_java_too() -> None:
    blocks = io.BytesIO()
    blocks.write(b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1))
    for part in (b"hello ", b"world"):
        block = bytes(cramjam.snappy.compress_raw(part))
        blocks.write(struct.pack(">i", len(block)) + block)
    assert decompress(Codec.SNAPPY, blocks.getvalue(), LIMIT) == b"hello world"
    for cut in (17, 19, len(blocks.getvalue()) - 1):
        with pytest.raises(KafkaRefusedError):
            decompress(Codec.SNAPPY, blocks.getvalue()[:cut], LIMIT)
