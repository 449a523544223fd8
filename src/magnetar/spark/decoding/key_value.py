"""Messages of KEY_VALUE schemas taken apart: both parts in the payload, or the key where messages have theirs.

Inline:    key_length i32, key, value_length i32, value; a length of −1 is null.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from magnetar.broker.schemas.data import SchemaData
from magnetar.spark.decoding.primitive_values import data_of, edges
from magnetar.spark.decoding.spans import Ints, fixed, slices
from magnetar.spark.decoding.unreadable import UnreadableValueError

_ENCODING: Final = "kv.encoding.type"
_LENGTH: Final = ">i4"
_LENGTH_BYTES: Final = 4


def is_separated(schema: SchemaData) -> bool:
    return schema.properties.get(_ENCODING, "INLINE").upper() == "SEPARATED"


def split_inline(payloads: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Keys and values. A payload that is null has neither."""
    places = edges(payloads)
    present = payloads.is_valid().to_numpy(zero_copy_only=False)
    data, buffer = data_of(payloads), payloads.buffers()[2] or pa.py_buffer(b"")
    rows = np.flatnonzero(present)
    start, stop = places[:-1][rows], places[1:][rows]
    parts: list[pa.BinaryArray] = []
    for _ in range(2):
        lengths = _lengths(data, start, stop, rows)
        begin = start + _LENGTH_BYTES
        start = begin + np.maximum(lengths, 0)
        found = slices(buffer, begin, start, lengths < 0)
        parts.append(found if len(rows) == len(payloads) else _spread(found, present))
    return parts[0], parts[1]


def _lengths(data: np.ndarray[tuple[int], np.dtype[np.uint8]], start: Ints, stop: Ints, rows: Ints) -> Ints:
    lengths = fixed(data, start, _LENGTH).astype(np.int64) if len(start) else np.zeros(0, np.int64)
    wrong = (start + _LENGTH_BYTES > stop) | (start + _LENGTH_BYTES + lengths > stop)
    if wrong.any():
        raise UnreadableValueError(int(rows[np.flatnonzero(wrong)[0]]), "it ends before its key and value do")
    return lengths


def _spread(found: pa.BinaryArray, present: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.BinaryArray:
    return found.take(pa.array(np.cumsum(present) - 1, mask=~present))
