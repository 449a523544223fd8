"""Finds where the messages of a batch begin and end, without parsing them.

Format:    (metadata_size u32 | SingleMessageMetadata | payload) …: wire/pulsar/batch.py
Order:     if every message has the size of the first one, all sizes are compared in a few numpy calls. Otherwise a loop
           steps from message to message. Clients write a header's fields in order, so its size comes after properties
           and key, which are stepped over; an unusual header is parsed.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from magnetar.wire.pulsar.batch import messages_of_batch
from magnetar.wire.pulsar.frames import SIZE, SIZE_BYTES, Buffer

PROPERTIES_TAG: Final = 0x0A
KEY_TAG: Final = 0x12
PAYLOAD_SIZE_TAG: Final = 0x18
_LOOP_MESSAGES_MAX: Final = 12  # Up to this number the loop is quicker than numpy's calls.
_WORD_BYTES: Final = 8
_CONTINUED: Final = 0x80
_STEPPED_OVER: Final = (KEY_TAG, PROPERTIES_TAG)
_USUAL_HEAD = struct.Struct(">IBBBB")  # Size, tag, and a payload's size in up to three bytes.
_FIELD = struct.Struct(">BBBB")  # The same without the header's size.

Places: TypeAlias = "array[int]"


class Shape(NamedTuple):
    """The sizes of messages that are all alike."""

    stride: int
    head: int
    """Bytes before the payload."""


def uniform(data: Buffer, offset: int, count: int) -> Shape | None:
    """Returns the shape of all messages; None if they are not alike, or too few for the check to pay."""
    if count <= _LOOP_MESSAGES_MAX:
        return None
    try:
        (size,) = SIZE.unpack_from(data, offset)
        payload_size, pieces = _sizes_in(data, offset)
    except (struct.error, IndexError, _UnusualHeader):
        return None
    shape = Shape(SIZE_BYTES + size + payload_size, SIZE_BYTES + size)
    if shape.stride * count != len(data) - offset or shape.stride < _WORD_BYTES:
        return None
    for start, width in pieces:
        place = min(start, shape.stride - _WORD_BYTES)  # Words that do not leave their message.
        words = np.ndarray((count,), ">u8", data, offset + place, (shape.stride,))
        skipped = 8 * (_WORD_BYTES - width - (start - place))
        mask = ((1 << 8 * width) - 1) << skipped
        if ((words ^ words[0]) & np.uint64(mask)).any():
            return None
    return shape


class _UnusualHeader(Exception):  # noqa: N818  # It is not an error, and does not leave this file.
    """The fields are not in order, or there are others: protobuf must read them."""


def _sizes_in(data: Buffer, offset: int) -> tuple[int, list[tuple[int, int]]]:
    """Returns the payload's size, and the bytes of the header with sizes: their place in the message, and their
    number."""
    if data[offset + SIZE_BYTES] == PAYLOAD_SIZE_TAG:  # No key, no properties: one piece.
        size, end = _varint(data, offset + SIZE_BYTES + 1)
        width = end - offset
        return size, [(0, width)] if width <= _WORD_BYTES else [(0, SIZE_BYTES), (SIZE_BYTES, width - SIZE_BYTES)]
    pieces = [(0, SIZE_BYTES)]
    at = offset + SIZE_BYTES
    while (tag := data[at]) != PAYLOAD_SIZE_TAG:
        length = data[at + 1]
        if tag not in _STEPPED_OVER or length >= _CONTINUED:
            raise _UnusualHeader
        pieces.append((at - offset, 2))
        at += 2 + length
    size, end = _varint(data, at + 1)
    pieces.append((at - offset, end - at))
    return size, pieces


def _varint(data: Buffer, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) >= _CONTINUED:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 28:  # A payload of 2^35 bytes or more, or a negative one.
            raise _UnusualHeader
    return value | byte << shift, at + 1


def scan(data: Buffer, offset: int, count: int) -> tuple[Places, Places]:
    """Returns the beginning of each message, and the end of the last one; and the beginning of each payload. Raises
    MalformedEntryError if they are missing."""
    try:
        try:
            begins, values = _scan_usual(data, offset, count)
        except struct.error:  # The last message may be shorter than the bytes that are looked at.
            begins, values = _scan_usual(bytes(data) + bytes(_USUAL_HEAD.size), offset, count)
    except (struct.error, _UnusualHeader):
        return _scan_slowly(data, offset, count)
    return (begins, values) if begins[-1] <= len(data) else _scan_slowly(data, offset, count)


def _scan_usual(data: Buffer, offset: int, count: int) -> tuple[Places, Places]:
    begins, values = array("q", (offset,)), array("q")
    add_begin, add_value, unpack, unpack_field = (
        begins.append,
        values.append,
        _USUAL_HEAD.unpack_from,
        _FIELD.unpack_from,
    )
    position = offset
    for _ in range(count):
        head, tag, first, second, third = unpack(data, position)
        at = position + SIZE_BYTES
        value = at + head
        while tag in _STEPPED_OVER and first < _CONTINUED:
            at += 2 + first
            tag, first, second, third = unpack_field(data, at)
        if tag != PAYLOAD_SIZE_TAG or at >= value:
            raise _UnusualHeader
        if first < _CONTINUED:
            position = value + first
        elif second < _CONTINUED:
            position = value + (first & 0x7F | second << 7)
        elif third < _CONTINUED:
            position = value + (first & 0x7F | (second & 0x7F) << 7 | third << 14)
        else:
            position = value + _varint(data, at + 1)[0]
        add_value(value)
        add_begin(position)
    return begins, values


def _scan_slowly(data: Buffer, offset: int, count: int) -> tuple[Places, Places]:
    """Scans with protobuf, which knows every case and explains errors."""
    begins, values = array("q", (offset,)), array("q")
    position = offset
    for message in messages_of_batch(memoryview(data)[offset:], count):
        value = position + SIZE_BYTES + int(SIZE.unpack_from(data, position)[0])
        position = value + len(message.payload)
        values.append(value)
        begins.append(position)
    return begins, values
