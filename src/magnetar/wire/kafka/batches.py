"""Batches of records, format 2: their head, their checksum, and the records inside.

    head = read_head(view)              the head of the batch that begins here
    check(view, head)                   it is complete, of format 2, and undamaged
    records = records_of(view, head)    opened, which costs about a microsecond per record

Format:    base_offset i64 | length i32 | leader_epoch i32 | magic i8 | crc32c u32 | attributes i16 |
           last_offset_delta i32 | base_timestamp i64 | max_timestamp i64 | producer_id i64 | producer_epoch i16 |
           base_sequence i32 | count i32 | records
           `length` counts what follows it. The checksum covers attributes and everything after them, so a server sets
           offset and epoch without computing it again. Attributes: bits 0 to 2 are the compression, bit 3 says that
           the time is the server's, bit 4 that the batch is transactional, bit 5 that it is a control batch.
           A record is length | attributes i8 | timestamp delta | offset delta | key | value | headers; numbers are
           zigzag varints, and a length of -1 is null. A batch may have no records: it then only says that there are
           none at its offsets.
Failure:   A batch that cannot be taken or read is a KafkaRefusedError with the code for its client.
Read next: compression.py; topic/entry_format/kafka.py
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from magnetar.errors import KafkaRefusedError
from magnetar.wire.kafka.codec import Buffer
from magnetar.wire.kafka.compression import Codec, compress, decompress
from magnetar.wire.kafka.error_codes import ErrorCode

HEAD: Final = struct.Struct(">qiibIhiqqqhii")
HEAD_BYTES: Final = HEAD.size
LENGTH_END: Final = 12
"""Where the part that `length` counts begins."""
EPOCH_END: Final = 16
_CRC_OFFSET: Final = 17
_CHECKED_FROM: Final = 21
_LEAST_LENGTH: Final = HEAD_BYTES - LENGTH_END
_MAGIC: Final = 2
_OLD_MAGIC_OFFSET: Final = 16
_CODEC_BITS: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
NO_PRODUCER: Final = -1
NO_TIMESTAMP: Final = -1
RECORD_BYTES_MIN: Final = 7
"""A record without key, value and headers has this size: each field takes a byte."""
_DELTA_MAX: Final = 2**31 - 1
_VARINT_SHIFT_MAX: Final = 63


class BatchHead(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def size(self) -> int:
        """The bytes of the whole batch."""
        return self.length + LENGTH_END

    @property
    def codec(self) -> int:
        return self.attributes & _CODEC_BITS

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def has_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)


class Header(NamedTuple):
    name: str
    value: bytes | None


class Record(NamedTuple):
    offset_delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


def corrupt(why: str) -> KafkaRefusedError:
    return KafkaRefusedError(ErrorCode.CORRUPT_MESSAGE, why)


def read_head(view: Buffer) -> BatchHead:
    if len(view) < HEAD_BYTES:
        if len(view) > _OLD_MAGIC_OFFSET and view[_OLD_MAGIC_OFFSET] < _MAGIC:
            raise _old_format(view[_OLD_MAGIC_OFFSET])
        raise corrupt(f"a batch of {len(view)} bytes is shorter than its head")
    return BatchHead(*HEAD.unpack_from(view))


def check(view: Buffer, head: BatchHead) -> None:
    """Checks that the view is exactly one batch of format 2, and not damaged."""
    if head.magic != _MAGIC:
        raise _old_format(head.magic)
    if head.length < _LEAST_LENGTH or head.size > len(view):
        raise corrupt(f"a batch claims {head.length} bytes of {len(view) - LENGTH_END}")
    if head.size != len(view):
        raise KafkaRefusedError(ErrorCode.INVALID_RECORD, "a partition gets more than one batch in one request")
    if crc32c(memoryview(view)[_CHECKED_FROM:]) != head.crc:
        raise corrupt("the checksum of a batch is wrong: it was damaged in transit")


def _old_format(magic: int) -> KafkaRefusedError:
    return KafkaRefusedError(
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        f"records of format {magic} are not accepted: use a client that writes format 2, as of Kafka 0.11",
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def records_of(batch: Buffer, head: BatchHead, bytes_max: int) -> Iterator[Record]:
    """Yields the records of a checked batch, in order. `bytes_max` limits what they take when decompressed."""
    content: Buffer = memoryview(batch)[HEAD_BYTES : head.size]
    if head.codec:
        content = decompress(head.codec, content, bytes_max)
    data, at = bytes(content), 0
    for _ in range(head.records):
        size, at = _varint(data, at)
        end = at + size
        if size < 0 or end > len(data):
            raise corrupt(f"a record of {size} bytes where {len(data) - at} are left")
        yield _record(data, at, end, head)
        at = end


def _record(data: bytes, at: int, end: int, head: BatchHead) -> Record:
    timestamp_delta, at = _varint(data, at + 1)  # After the attributes, which have no meaning.
    offset_delta, at = _varint(data, at)
    key, at = _bytes(data, at, end)
    value, at = _bytes(data, at, end)
    count, at = _varint(data, at)
    if not 0 <= count <= end - at:
        raise corrupt(f"a record of {count} headers where {end - at} bytes are left")
    headers: list[Header] = []
    for _ in range(count):
        name, at = _bytes(data, at, end)
        content, at = _bytes(data, at, end)
        if name is None:
            raise corrupt("a header without a name")
        headers.append(Header(name.decode("utf-8", "replace"), content))
    if at != end:
        raise corrupt(f"a record has {end - at} bytes more than its fields")
    timestamp = head.max_timestamp if head.has_append_time else head.base_timestamp + timestamp_delta
    return Record(offset_delta, timestamp, key, value, headers)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a zigzag number and where it ends."""
    raw = shift = 0
    try:
        while (byte := data[at]) > 0x7F:
            raw |= (byte & 0x7F) << shift
            shift += 7
            at += 1
            if shift > _VARINT_SHIFT_MAX:
                raise corrupt("a number of more than 64 bits")
    except IndexError:
        raise corrupt("a batch ends inside a number") from None
    raw |= byte << shift
    return (raw >> 1) ^ -(raw & 1), at + 1


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    if size < 0:
        return None, at
    following = at + size
    if following > end:
        raise corrupt(f"a field of {size} bytes where {end - at} are left")
    return data[at:following], following


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] = (NO_PRODUCER, -1, -1),
) -> bytes:
    """`producer`: its id, epoch, and the sequence number of the first record. `last_offset_delta`: that of the last
    record if none is given; a batch without records needs one."""
    base = records[0].timestamp if records else NO_TIMESTAMP
    content: bytes = b"".join(_encode_record(record, base) for record in records)
    if codec:
        content = compress(codec, content)
    last = records[-1].offset_delta if last_offset_delta is None else last_offset_delta
    newest = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    length = _LEAST_LENGTH + len(content)
    fields = (base_offset, length, leader_epoch, _MAGIC, 0, int(codec), last, base, newest, *producer, len(records))
    batch = bytearray(HEAD.pack(*fields))
    batch += content
    batch[_CRC_OFFSET:_CHECKED_FROM] = crc32c(memoryview(batch)[_CHECKED_FROM:]).to_bytes(4, "big")
    return bytes(batch)


def encode_gap(base_offset: int, offsets: int, leader_epoch: int) -> bytes:
    """Encodes a batch that says that these offsets have no records; its reader continues after them."""
    assert 0 < offsets <= _DELTA_MAX
    return encode_batch((), base_offset=base_offset, last_offset_delta=offsets - 1, leader_epoch=leader_epoch)


def _encode_record(record: Record, base_timestamp: int) -> bytes:
    parts = [
        b"\x00",
        _zigzag(record.timestamp - base_timestamp),
        _zigzag(record.offset_delta),
        *_encode_bytes(record.key),
        *_encode_bytes(record.value),
        _zigzag(len(record.headers)),
    ]
    for name, value in record.headers:
        parts += (*_encode_bytes(name.encode()), *_encode_bytes(value))
    content = b"".join(parts)
    return _zigzag(len(content)) + content


def _encode_bytes(data: bytes | None) -> tuple[bytes, ...]:
    return (_zigzag(-1),) if data is None else (_zigzag(len(data)), data)


def _zigzag(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    if raw < 0x80:
        return bytes((raw,))
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)
