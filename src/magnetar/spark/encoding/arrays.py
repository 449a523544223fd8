"""Arrow's binary arrays as building blocks: made of numpy buffers, joined row by row, cut by offsets.

All of them have 32-bit offsets, as Spark sends them, and none has nulls unless it says so.
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

OFFSET_BYTES = 4


def binary_array(offsets: npt.NDArray[Any], data: Any) -> BinaryArray:
    """Row i is `data[offsets[i]:offsets[i + 1]]`; nothing is copied but the offsets."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32, copy=False)), _buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _buffer(data: Any) -> pa.Buffer:
    return data if isinstance(data, pa.Buffer) else pa.py_buffer(data)


def fixed_width(rows: Bytes) -> BinaryArray:
    """A row of the matrix is a row of the array."""
    count, width = rows.shape
    return binary_array(np.arange(count + 1) * width, np.ascontiguousarray(rows))


def repeated(value: bytes, count: int) -> BinaryArray:
    """The same in every row, stored so many times: only for short ones."""
    return fixed_width(np.broadcast_to(np.frombuffer(value, np.uint8), (count, len(value))))


def flags(is_set: npt.NDArray[np.bool_], value: bytes) -> BinaryArray:
    """`value` where it is set, nothing elsewhere."""
    offsets = np.zeros(len(is_set) + 1, np.int32)
    np.cumsum(is_set * len(value), out=offsets[1:])
    return binary_array(offsets, value * int(np.count_nonzero(is_set)))


def offsets_of(array: BinaryArray) -> Ints:
    """Into `data_of`, one more than rows; a slice's begin where the slice begins."""
    start = array.offset
    raw = array.buffers()[1]
    if raw is None or not len(array):  # Arrow may leave the buffer of an empty array out.
        return np.zeros(1, np.int64)
    return np.frombuffer(raw, np.int32)[start : start + len(array) + 1].astype(np.int64)


def data_of(array: BinaryArray) -> memoryview:
    """All bytes behind the array, those of rows outside of a slice included."""
    data = array.buffers()[2]
    return memoryview(b"") if data is None else memoryview(data)


def lengths_of(array: BinaryArray) -> Ints:
    return np.diff(offsets_of(array))


def as_binary(array: pa.Array) -> BinaryArray:
    """Of strings and bytes of any kind, nulls kept."""
    return array if array.type == pa.binary() else array.cast(pa.binary())


def without_nulls(array: BinaryArray) -> BinaryArray:
    """An empty row for every null."""
    return array.fill_null(b"") if array.null_count else array


def is_null(array: pa.Array) -> npt.NDArray[np.bool_]:
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)


def join(*parts: BinaryArray) -> BinaryArray:
    """Row by row, one behind the other."""
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b"")


def where(rows: BinaryArray, is_there: npt.NDArray[np.bool_]) -> BinaryArray:
    """Empty where it is not."""
    return rows if is_there.all() else pc.if_else(pa.array(is_there), rows, pa.scalar(b"", pa.binary()))


def group(items: BinaryArray, group_offsets: npt.NDArray[Any]) -> BinaryArray:
    """Rows that follow one another as one: group i is items `group_offsets[i]` up to `group_offsets[i + 1]`."""
    return binary_array(offsets_of(items)[group_offsets], data_of(items))
