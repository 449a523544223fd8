"""A field's default, which Avro writes as JSON, as a value of the type that its schema says.

Forms:     bytes, fixed and decimals are text, one character for each byte; times are numbers in the unit of the schema.
Unions:    the first branch that the default is a value of.
Wrong:     a broker takes schemas whose defaults are no values of their types: such a default is none.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from magnetar.broker.schemas.avro.defaults import fits
from magnetar.broker.schemas.avro.schema import (
    ArraySchema,
    Field,
    FixedSchema,
    MapSchema,
    RecordSchema,
    Schema,
    UnionSchema,
)
from magnetar.spark.decoding.avro_types import stored_type
from magnetar.spark.decoding.decimals import from_unscaled


def default_of(field: Field) -> pa.Array:
    """One element of `stored_type(field.schema)`; null if there is no default."""
    kind = stored_type(field.schema)
    if not field.has_default or not fits(field.schema, field.default):
        return pa.nulls(1, kind)
    try:
        return pa.array([_value(field.schema, field.default)], kind)
    except (pa.ArrowInvalid, OverflowError, _NoValueError, UnicodeEncodeError):
        return pa.nulls(1, kind)


class _NoValueError(Exception):
    """It has the form of the type, and is none of its values."""


def _value(schema: Schema, default: Any) -> Any:
    """As Arrow takes it, of a default that `fits`."""
    match schema:
        case UnionSchema():
            return _value(next(branch for branch in schema.branches if fits(branch, default)), default)
        case RecordSchema():
            given = {each.name: default.get(each.name, each.default) for each in schema.fields}
            return {each.name: _value(each.schema, given[each.name]) for each in schema.fields}
        case ArraySchema():
            return [_value(schema.items, each) for each in default]
        case MapSchema():
            return [(name, _value(schema.values, each)) for name, each in default.items()]
        case _:
            return _leaf(schema, default)


def _leaf(schema: Schema, default: Any) -> Any:
    match schema.kind:
        case "int" | "long":
            if default != int(default):
                raise _NoValueError
            return int(default)
        case "float" | "double":
            return float(default)
        case "bytes" | "fixed":
            return _bytes(schema, default.encode("latin-1", "replace"))  # "?" for what is no byte, as in Java.
        case _:
            return default


def _bytes(schema: Schema, default: bytes) -> Any:
    if isinstance(schema, FixedSchema) and len(default) != schema.size:
        raise _NoValueError
    kind = stored_type(schema)
    return from_unscaled(default, kind) if pa.types.is_decimal(kind) else default
