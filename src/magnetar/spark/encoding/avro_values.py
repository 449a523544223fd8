"""Rows of typed columns as Avro records, a column at a time.

Format:    the fields one after the other, without names; int and long are zigzag varints, texts and bytes have their
           length before them, lists and maps are one block with its count and a zero. A field that may be null has
           the branch of its union before it: null is the first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from magnetar.spark.encoding.arrays import (
    BinaryArray,
    as_binary,
    fixed_width,
    group,
    is_null,
    items_of,
    join,
    lengths_of,
    pairs_of,
    repeated,
    where,
    without_nulls,
    zigzag,
)
from magnetar.spark.encoding.layout import Layout

_VALUE_BRANCH = 2  # Zigzag of 1.
_DECIMAL_BYTES = 16
_DECIMAL_LENGTH = b"\x20"  # Zigzag of 16.


def avro_values(batch: pa.RecordBatch, layout: Layout) -> BinaryArray:
    return _joined([_encode(batch.column(field.name), field) for field in layout.fields], batch.num_rows)


def _joined(parts: list[BinaryArray], rows: int) -> BinaryArray:
    return join(*parts) if parts else repeated(b"", rows)


def _encode(column: pa.Array, field: pa.Field) -> BinaryArray:
    """Encodes without nulls: a null is a branch. In a field that must not be null, it means that its parent is null."""
    body = _body(column, field.type)
    if not field.nullable:
        return body
    there = ~is_null(column)
    branches = fixed_width((there * _VALUE_BRANCH).astype(np.uint8).reshape(-1, 1))
    return join(branches, where(body, there))


def _body(column: pa.Array, kind: pa.DataType) -> BinaryArray:
    """Encodes values; a null may become any bytes."""
    if types.is_boolean(kind):
        return fixed_width(_numbers(column.cast(pa.uint8()), "u1").view(np.uint8).reshape(-1, 1))
    if types.is_integer(kind) or types.is_date32(kind) or types.is_timestamp(kind):
        return zigzag(_integers(column, kind))
    if types.is_floating(kind):
        width = kind.bit_width // 8
        return fixed_width(_numbers(column, f"<f{width}").view(np.uint8).reshape(-1, width))
    if types.is_decimal128(kind):
        return _decimals(column)
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return _joined([_encode(*each) for each in zip(column.flatten(), fields, strict=True)], len(column))
    if types.is_list(kind):
        items, offsets = items_of(column)
        return _block(_encode(items, kind.value_field), offsets)
    if types.is_map(kind):
        keys, values, offsets = pairs_of(column)
        return _block(join(_text(keys), _encode(values, kind.item_field)), offsets)
    return _text(column)


def _numbers(column: pa.Array, kind: str) -> npt.NDArray[np.generic]:
    return np.ascontiguousarray(column.fill_null(0).to_numpy(zero_copy_only=False).astype(kind))


def _integers(column: pa.Array, kind: pa.DataType) -> npt.NDArray[np.int64]:
    if types.is_date32(kind):
        column = column.cast(pa.int32())
    elif types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _text(column: pa.Array) -> BinaryArray:
    text = without_nulls(as_binary(column))
    return join(zigzag(lengths_of(text)), text)


def _decimals(column: pa.Array) -> BinaryArray:
    """Encodes two's complement, highest byte first, sixteen of them: longer than needed is allowed."""
    filled = pc.fill_null(column, pa.scalar(0, column.type))
    start = filled.offset * _DECIMAL_BYTES
    raw = np.frombuffer(filled.buffers()[1], np.uint8)[start : start + len(filled) * _DECIMAL_BYTES]
    digits = fixed_width(raw.reshape(-1, _DECIMAL_BYTES)[:, ::-1])
    return join(repeated(_DECIMAL_LENGTH, len(filled)), digits)


def _block(items: BinaryArray, offsets: npt.NDArray[np.int64]) -> BinaryArray:
    counts = np.diff(offsets)
    return join(where(zigzag(counts), counts > 0), group(items, offsets), repeated(b"\x00", len(counts)))
