"""Runs of SEND frames over one buffer: all work per entry where messages come in.

Limits:    one loop over one received region with local names; a plain tuple per frame comes out. The parser is
           protobuf's own, on `PlainSend`: one written in Python takes about as long, and can have more bugs.
Invariant: sizes, required fields, and the checksum of the producer's bytes are checked. The metadata is not read.
Failure:   a run ends at the first frame that is of another kind, incomplete, unusual or to be refused: the caller gives
           that one to `FrameDecoder`, which knows every case, and continues after it. So a scan never raises. Unusual
           are a chunk, a marker, a part of a transaction, a message with a given id, no messages at all.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c
from google.protobuf.message import DecodeError

from magnetar.wire.pulsar.frames import (
    CHECKSUM,
    CHECKSUM_BYTES,
    CHECKSUM_MAGIC,
    FRAME_BYTES_MAX,
    SIZE_BYTES,
    SIZES,
    Buffer,
)
from magnetar.wire.pulsar.proto.hot_path_pb2 import PlainSend

_HEAD = struct.Struct(">IIIB")  # total_size | command_size | type, field and length of the command | its first tag
_SEND_START: Final = 0x08063200  # type = SEND, then field 6; the length of CommandSend goes into the last byte.
_SEND_LENGTH_MAX: Final = 0x7F  # Up to this, its length has one byte. A plain one has at most 43.
_SEND_OFFSET: Final = SIZES.size + 4
_PRODUCER_ID_TAG: Final = 0x08
_BODY_BYTES_MIN: Final = CHECKSUM_BYTES + 4  # Without a checksum it may be shorter; that is unusual enough.

Send: TypeAlias = tuple[int, int, int, int, int, int]
"""producer_id, sequence_id, highest_sequence_id (0: none given), messages, offset and length of headers_and_payload"""


class SendRun(NamedTuple):
    """SEND frames in a row in the buffer, from the scan's start up to `end`."""

    end: int
    sends: list[Send]


def scan_sends(buffer: Buffer, start: int, end: int, limit: int = FRAME_BYTES_MAX) -> SendRun:
    """Scans all SENDs from `start` on up to the first frame that is not a whole, plain, valid one."""
    unpack_head, unpack_checksum, parse = _HEAD.unpack_from, CHECKSUM.unpack_from, PlainSend.FromString
    view = memoryview(buffer)
    sends: list[Send] = []
    add = sends.append
    position = start
    last = end - _SEND_OFFSET - _BODY_BYTES_MIN
    size_max = limit - SIZE_BYTES
    while position <= last:
        size, command_size, send_start, tag = unpack_head(buffer, position)
        following = position + SIZE_BYTES + size
        body = position + SIZES.size + command_size
        length = command_size - 4
        is_send = send_start == _SEND_START + length and tag == _PRODUCER_ID_TAG and length <= _SEND_LENGTH_MAX
        if not is_send or following > end or size > size_max or body + _BODY_BYTES_MIN > following:
            break
        try:
            send = parse(view[position + _SEND_OFFSET : body])  # type: ignore[arg-type]  # The stub knows only bytes.
        except DecodeError:
            break
        sequence_id = send.sequence_id
        messages = send.num_messages
        is_plain = messages > 0 and send.WhichOneof("rare") is None
        if not is_plain or (not sequence_id and not send.HasField("sequence_id")):
            break
        magic, checksum = unpack_checksum(buffer, body)
        if magic != CHECKSUM_MAGIC or crc32c(view[body + CHECKSUM_BYTES : following]) != checksum:
            break
        add((send.producer_id, sequence_id, send.highest_sequence_id, messages, body, following - body))
        position = following
    return SendRun(position, sends)
