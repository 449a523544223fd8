"""Reads values of primitive schemas, many messages at once: fixed numbers, big-endian, and decimals.

Limits:    decimals of as many digits as a column has: Python's usual context has 28, and Spark's columns have up to 38.
Failure:   a value that does not match its schema is raised with its row; the caller adds the message's id.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from magnetar.schemas.data import SchemaType
from magnetar.spark.decoding.byte_spans import Flags, Ints
from magnetar.spark.decoding.columns import LOCAL_TIMESTAMP, TIMESTAMP

_ROOMY: Final = decimal.Context(prec=76)
"""More digits than any column, so that a number that does not fit is found to be too long."""


class UnreadableValueError(Exception):
    """Does not leave decoding/: typed_columns.py turns it into a MalformedEntryError that names the message."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


_NUMBERS: Final = {
    SchemaType.INT8: ">i1",
    SchemaType.INT16: ">i2",
    SchemaType.INT32: ">i4",
    SchemaType.INT64: ">i8",
    SchemaType.FLOAT: ">f4",
    SchemaType.DOUBLE: ">f8",
    SchemaType.LOCAL_TIME: ">i8",
}
_MILLISECONDS: Final = (SchemaType.DATE, SchemaType.TIME, SchemaType.TIMESTAMP)
_US_PER_MS: Final = 1_000
_US_PER_S: Final = 1_000_000
_US_PER_DAY: Final = 86_400 * _US_PER_S
_NS_PER_US: Final = 1_000
_INSTANT: Final = np.dtype([("seconds", ">i8"), ("nanoseconds", ">i4")])
_DATE_TIME: Final = np.dtype([("days", ">i8"), ("nanoseconds", ">i8")])

Reader = Callable[[pa.BinaryArray], pa.Array]


def primitive_reader(kind: SchemaType) -> Reader:
    """Returns the reader for any schema that is not a record; unknown types stay bytes."""
    if kind in _NUMBERS:
        return lambda values: _filled(values, _fixed(values, _NUMBERS[kind]))
    if kind in _MILLISECONDS:
        return lambda values: _filled(values, _fixed(values, ">i8") * _US_PER_MS).view(TIMESTAMP)
    return _OTHERS.get(kind, lambda values: values)


def text(values: pa.BinaryArray) -> pa.Array:
    """Replaces bytes that are not UTF-8 by replacement characters, as in Pulsar's Java client."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        found = [None if each is None else each.decode(errors="replace") for each in values.to_pylist()]
        return pa.array(found, pa.string())


def _microseconds(values: pa.BinaryArray, kind: np.dtype[Any], us_per_unit: int) -> pa.Array:
    found = _fixed(values, kind)
    return _filled(values, found[(kind.names or ())[0]] * us_per_unit + found["nanoseconds"] // _NS_PER_US)


_OTHERS: Final[dict[SchemaType, Reader]] = {
    SchemaType.STRING: text,
    SchemaType.BOOLEAN: lambda values: _filled(values, _fixed(values, ">u1") != 0),
    SchemaType.INSTANT: lambda values: _microseconds(values, _INSTANT, _US_PER_S).view(TIMESTAMP),
    SchemaType.LOCAL_DATE: lambda values: _filled(values, _fixed(values, ">i8")).cast(pa.int32()).view(pa.date32()),
    SchemaType.LOCAL_DATE_TIME: lambda values: _microseconds(values, _DATE_TIME, _US_PER_DAY).view(LOCAL_TIMESTAMP),
}


def edges(values: pa.BinaryArray) -> Ints:
    """Returns the beginning of each value in the array's data, and the end of the last one."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    return offsets[values.offset : values.offset + len(values) + 1].astype(np.int64)


def spread(found: pa.Array, present: Flags) -> pa.Array:
    """Returns the values at these rows, and null at others."""
    return found if present.all() else found.take(pa.array(np.cumsum(present) - 1, mask=~present))


def data_of(values: pa.BinaryArray) -> npt.NDArray[np.uint8]:
    buffer = values.buffers()[2]
    return np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _fixed(values: pa.BinaryArray, kind: str | np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns the values that are not null, in their order."""
    width = np.dtype(kind).itemsize
    places = edges(values)
    lengths = np.diff(places)
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((lengths != width) & ~is_null)
    if len(wrong):
        row = int(wrong[0])
        raise UnreadableValueError(row, f"it has {lengths[row]} bytes, and must have {width}")
    data = data_of(values)[places[0] : places[-1]]
    found = np.frombuffer(data.tobytes(), kind)
    return found if found.dtype.names else found.astype(found.dtype.newbyteorder("="))


def _filled(values: pa.BinaryArray, numbers: npt.NDArray[Any]) -> pa.Array:
    """Returns the numbers with nulls where the values have them."""
    if not values.null_count:
        return pa.array(numbers)
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    everywhere = np.zeros(len(values), numbers.dtype)
    everywhere[~is_null] = numbers
    return pa.array(everywhere, mask=is_null)


def from_unscaled(value: bytes, kind: pa.DataType) -> decimal.Decimal:
    """Returns a decimal from Avro's form: the number without its point, big-endian. It may have more digits than
    `kind`."""
    return decimal.Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-kind.scale, _ROOMY)


def has_room(kind: pa.DataType, number: decimal.Decimal) -> bool:
    """Reports room for a number of the type's scale."""
    return bool(number.adjusted() < kind.precision - kind.scale)


def rounded(number: decimal.Decimal, kind: pa.DataType) -> decimal.Decimal:
    """Returns the number with the fractional digits of `kind`, half to even. InvalidOperation: the others do not
    fit."""
    quantum, context = _form(kind.precision, kind.scale)
    return number.quantize(quantum, context=context)


@functools.lru_cache
def _form(precision: int, scale: int) -> tuple[decimal.Decimal, decimal.Context]:
    return decimal.Decimal(1).scaleb(-scale), decimal.Context(prec=precision, rounding=decimal.ROUND_HALF_EVEN)
