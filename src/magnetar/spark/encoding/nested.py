"""Columns inside columns: what rows of lists, maps and structs are made of, and which of it is whose.

A null has nothing inside, whatever Arrow has left behind it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from magnetar.spark.encoding.arrays import Ints, is_null


def items_of(column: pa.Array) -> tuple[pa.Array, Ints]:
    """Of a column of lists: all items, and where each row's begin; one more than rows."""
    column = _without_hidden(column)
    first, count, offsets = _range(column)
    return column.values.slice(first, count), offsets


def pairs_of(column: pa.Array) -> tuple[pa.Array, pa.Array, Ints]:
    """Of a column of maps: all keys, all values, and where each row's begin."""
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
