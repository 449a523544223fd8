"""Protobuf's and Avro's variable-length integers, a column at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from magnetar.spark.encoding.arrays import BinaryArray, binary_array, fixed_width

_BITS = 7
_MORE = 0x80


def varints(values: npt.NDArray[np.signedinteger | np.unsignedinteger], tag: bytes = b"") -> BinaryArray:
    """Each value behind the same `tag`. Negative ones take ten bytes, as protobuf has them."""
    numbers = values.astype(np.uint64)
    width = _width(int(numbers.max())) if len(numbers) else 1
    first = len(tag)
    rows = np.empty((len(numbers), first + width), np.uint8)
    rows[:, :first] = np.frombuffer(tag, np.uint8)
    lengths = np.full(len(numbers), first + 1, np.int32)
    for at in range(width):
        rest = numbers >> np.uint64(at * _BITS)
        rows[:, first + at] = rest | np.uint64(_MORE)  # The low byte of it: numpy cuts the rest off.
        if at:
            lengths += rest != 0
    if width == 1:
        rows[:, first] &= _MORE - 1
        return fixed_width(rows)
    rows[np.arange(len(rows)), lengths - 1] &= _MORE - 1
    return _cut(rows, lengths)


def zigzag(values: npt.NDArray[np.signedinteger], tag: bytes = b"") -> BinaryArray:
    """Avro's int and long."""
    numbers = values.astype(np.int64)
    return varints((numbers << 1) ^ (numbers >> 63), tag)


def varint_lengths(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many bytes each takes; of values that are not negative."""
    lengths = np.ones(len(values), np.int64)
    rest = values >> _BITS
    while rest.any():
        lengths += rest != 0
        rest >>= _BITS
    return lengths


def _width(value: int) -> int:
    return max(1, -(-value.bit_length() // _BITS))


def _cut(rows: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int32]) -> BinaryArray:
    """The first so many bytes of each row."""
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] == rows.size:  # All of one length.
        return fixed_width(rows)
    return binary_array(offsets, rows[np.arange(rows.shape[1]) < lengths[:, None]])
