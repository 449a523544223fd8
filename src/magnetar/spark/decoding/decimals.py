"""Decimals of as many digits as a column has: Python's usual context has 28, and Spark's columns have up to 38."""

from __future__ import annotations

import decimal
import functools
from typing import Final

import pyarrow as pa

_ROOMY: Final = decimal.Context(prec=76)
"""More digits than any column, so that a number that does not fit is seen to be too long."""


def from_unscaled(value: bytes, kind: pa.DataType) -> decimal.Decimal:
    """As Avro has it: the number without its point, big-endian. It may have more digits than `kind`."""
    return decimal.Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-kind.scale, _ROOMY)


def has_room(kind: pa.DataType, number: decimal.Decimal) -> bool:
    """For a number of the type's scale."""
    return bool(number.adjusted() < kind.precision - kind.scale)


def rounded(number: decimal.Decimal, kind: pa.DataType) -> decimal.Decimal:
    """With as many fractional digits as `kind`, half to even. InvalidOperation: it has no room for the others."""
    quantum, context = _form(kind.precision, kind.scale)
    return number.quantize(quantum, context=context)


@functools.lru_cache
def _form(precision: int, scale: int) -> tuple[decimal.Decimal, decimal.Context]:
    return decimal.Decimal(1).scaleb(-scale), decimal.Context(prec=precision, rounding=decimal.ROUND_HALF_EVEN)
