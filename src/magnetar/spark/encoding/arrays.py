"""Arrow's arrays as building blocks: binary arrays from numpy buffers, variable-length integers, nested columns.

Invariant: all have 32-bit offsets, as Spark sends them; only those that say so have nulls. A null in a nested column
           has nothing inside, whatever bytes Arrow has left for it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
BinaryArray: TypeAlias = pa.Array


def binary_array(offsets: npt.NDArray[Any], data: Any) -> BinaryArray:
    """Makes row i of `data[offsets[i]:offsets[i + 1]]`; nothing is copied but the offsets."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32, copy=False)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def fixed_width(rows: Bytes) -> BinaryArray:
    """Makes each row of the matrix a row of the array."""
    count, width = rows.shape
    return binary_array(np.arange(count + 1) * width, np.ascontiguousarray(rows))


def repeated(value: bytes, count: int) -> BinaryArray:
    """Returns the same value in every row, stored `count` times: only for short ones."""
    return fixed_width(np.broadcast_to(np.frombuffer(value, np.uint8), (count, len(value))))


def flags(is_set: npt.NDArray[np.bool_], value: bytes) -> BinaryArray:
    """Returns `value` where it is set, nothing elsewhere."""
    offsets = np.zeros(len(is_set) + 1, np.int32)
    np.cumsum(is_set * len(value), out=offsets[1:])
    return binary_array(offsets, value * int(np.count_nonzero(is_set)))


def offsets_of(array: BinaryArray) -> Ints:
    """Returns offsets into `data_of`, one more than rows; a slice's begin where the slice begins."""
    start = array.offset
    raw = array.buffers()[1]
    if raw is None or not len(array):  # Arrow may leave the buffer of an empty array out.
        return np.zeros(1, np.int64)
    return np.frombuffer(raw, np.int32)[start : start + len(array) + 1].astype(np.int64)


def data_of(array: BinaryArray) -> memoryview:
    """Returns all bytes of the array, those of rows outside of a slice included."""
    data = array.buffers()[2]
    return memoryview(b"") if data is None else memoryview(data)


def lengths_of(array: BinaryArray) -> Ints:
    return np.diff(offsets_of(array))


def as_binary(array: pa.Array) -> BinaryArray:
    """Converts strings and bytes of any kind, nulls kept."""
    return array if array.type == pa.binary() else array.cast(pa.binary())


def without_nulls(array: BinaryArray) -> BinaryArray:
    """Returns an empty row for every null."""
    return array.fill_null(b"") if array.null_count else array


def is_null(array: pa.Array) -> npt.NDArray[np.bool_]:
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)


def join(*parts: BinaryArray) -> BinaryArray:
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b"")


def where(rows: BinaryArray, is_there: npt.NDArray[np.bool_]) -> BinaryArray:
    """Returns the rows, empty where `is_there` is false."""
    return rows if is_there.all() else pc.if_else(pa.array(is_there), rows, pa.scalar(b"", pa.binary()))


def group(items: BinaryArray, group_offsets: npt.NDArray[Any]) -> BinaryArray:
    """Joins rows: group i is items `group_offsets[i]` up to `group_offsets[i + 1]`."""
    return binary_array(offsets_of(items)[group_offsets], data_of(items))


_BITS = 7
_MORE = 0x80


def varints(values: npt.NDArray[np.signedinteger | np.unsignedinteger], tag: bytes = b"") -> BinaryArray:
    """Encodes each value after the same `tag`. Negative ones take ten bytes, as in protobuf."""
    numbers = values.astype(np.uint64)
    width = max(1, -(-int(numbers.max()).bit_length() // _BITS)) if len(numbers) else 1
    first = len(tag)
    rows = np.empty((len(numbers), first + width), np.uint8)
    rows[:, :first] = np.frombuffer(tag, np.uint8)
    lengths = np.full(len(numbers), first + 1, np.int32)
    for at in range(width):
        rest = numbers >> np.uint64(at * _BITS)
        rows[:, first + at] = rest | np.uint64(_MORE)  # Only its low byte: numpy cuts the rest off.
        if at:
            lengths += rest != 0
    if width == 1:
        rows[:, first] &= _MORE - 1
        return fixed_width(rows)
    rows[np.arange(len(rows)), lengths - 1] &= _MORE - 1
    return _cut(rows, lengths)


def zigzag(values: npt.NDArray[np.signedinteger], tag: bytes = b"") -> BinaryArray:
    numbers = values.astype(np.int64)
    return varints((numbers << 1) ^ (numbers >> 63), tag)


def varint_lengths(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the bytes of each; for values that are not negative."""
    lengths = np.ones(len(values), np.int64)
    rest = values >> _BITS
    while rest.any():
        lengths += rest != 0
        rest >>= _BITS
    return lengths


def _cut(rows: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int32]) -> BinaryArray:
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] == rows.size:  # All of one length.
        return fixed_width(rows)
    return binary_array(offsets, rows[np.arange(rows.shape[1]) < lengths[:, None]])


def items_of(column: pa.Array) -> tuple[pa.Array, Ints]:
    """Returns all items of a column of lists, and the beginning of each row's; one more than rows."""
    column = _without_hidden(column)
    first, count, offsets = _range(column)
    return column.values.slice(first, count), offsets


def pairs_of(column: pa.Array) -> tuple[pa.Array, pa.Array, Ints]:
    """Returns all keys and values of a column of maps, and the beginning of each row's."""
    column = _without_hidden(column)
    first, count, offsets = _range(column)
    return column.keys.slice(first, count), column.items.slice(first, count), offsets


def _range(column: pa.Array) -> tuple[int, int, Ints]:
    offsets = np.asarray(column.offsets).astype(np.int64)
    return int(offsets[0]), int(offsets[-1] - offsets[0]), offsets - offsets[0]


def _without_hidden(column: pa.Array) -> pa.Array:
    if column.null_count and np.diff(np.asarray(column.offsets))[is_null(column)].any():
        return pa.array(column.to_pylist(), column.type)
    return column
