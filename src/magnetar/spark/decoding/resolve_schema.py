"""Makes values of the writer's schema fit the columns: missing fields are null, unknown ones are dropped.

Invariant: Avro's resolution decides what is allowed: wider numbers, strings and bytes for each other, other units. It
           is checked by types alone, before any value is read: whether a query fails does not depend on its data. A
           field that the writer did not know has the default of the reader's schema, otherwise it is null.
Format:    Avro writes a default as JSON: bytes, fixed and decimals are text, one character for each byte; times are
           numbers in the unit of the schema. A union's default is of the first branch that fits. A broker accepts
           schemas with defaults that are not values of their types: such a default is ignored.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from magnetar.errors import IncompatibleSchemaError
from magnetar.schemas.avro.defaults import fits
from magnetar.schemas.avro.schema import ArraySchema, Field, FixedSchema, MapSchema, RecordSchema, Schema, UnionSchema
from magnetar.spark.decoding.arrow_types import stored_type
from magnetar.spark.decoding.primitive_values import from_unscaled

_WIDER: Final = {
    pa.int32(): (pa.int64(), pa.float32(), pa.float64()),
    pa.int64(): (pa.float32(), pa.float64()),
    pa.float32(): (pa.float64(),),
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.string(): (pa.binary(),),
    pa.binary(): (pa.string(),),
}


def check_fits(written: pa.DataType, wanted: pa.DataType, where: str = "") -> None:
    """Raises IncompatibleSchemaError with the misfit and its place."""
    if written == wanted or wanted in _WIDER.get(written, ()) or pa.types.is_null(written):
        return
    if pa.types.is_struct(written) and pa.types.is_struct(wanted):
        for field in wanted:
            if (index := written.get_field_index(field.name)) >= 0:
                check_fits(written.field(index).type, field.type, f"{where}.{field.name}")
    elif pa.types.is_list(written) and pa.types.is_list(wanted):
        check_fits(written.value_type, wanted.value_type, f"{where}[]")
    elif pa.types.is_map(written) and pa.types.is_map(wanted):
        check_fits(written.item_type, wanted.item_type, f"{where}{{}}")
    elif not _same_clock(written, wanted):
        place = where.lstrip(".") or "value"
        raise IncompatibleSchemaError(f"{place} was written as {written} and cannot be read as {wanted}")


def _same_clock(written: pa.DataType, wanted: pa.DataType) -> bool:
    both = pa.types.is_timestamp(written) and pa.types.is_timestamp(wanted)
    return both and (written.tz is None) == (wanted.tz is None)


def fitted(array: pa.Array, wanted: pa.DataType, reader: Schema | None) -> pa.Array:
    """Fits values after `check_fits`. `reader`: the schema of the columns, for its defaults."""
    if array.type == wanted:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if pa.types.is_struct(wanted):
        return _fitted_struct(array, wanted, _of_kind(reader, RecordSchema))
    if pa.types.is_map(wanted):
        inner = _of_kind(reader, MapSchema)
        items = fitted(array.items, wanted.item_type, inner.values if inner else None)
        return _with_validity(pa.MapArray.from_arrays(array.offsets, array.keys, items, type=wanted), array)
    if pa.types.is_list(wanted):
        inner_list = _of_kind(reader, ArraySchema)
        elements = fitted(array.values, wanted.value_type, inner_list.items if inner_list else None)
        return _with_validity(pa.ListArray.from_arrays(array.offsets, elements, type=wanted), array)
    return array.cast(wanted, safe=False)


def _fitted_struct(array: pa.Array, wanted: pa.DataType, reader: RecordSchema | None) -> pa.Array:
    by_name = {field.name: field for field in reader.fields} if reader else {}
    arrays: list[pa.Array] = []
    for field in wanted:
        known = by_name.get(field.name)
        index = array.type.get_field_index(field.name)
        if index >= 0:
            arrays.append(fitted(array.field(index), field.type, known.schema if known else None))
        else:
            arrays.append(_constant(known, field.type, len(array)))
    if not arrays:
        return array
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(arrays, fields=list(wanted), mask=mask)


def _constant(field: Field | None, kind: pa.DataType, count: int) -> pa.Array:
    """Returns the field's default, which is fitted as any other value of its schema."""
    if field is None:
        return pa.nulls(count, kind)
    return pa.repeat(fitted(default_of(field), kind, field.schema)[0], count)


def _of_kind(schema: Schema | None, kind: type[Any]) -> Any:
    """Returns the schema, or the branch of a union, that is of this kind."""
    if isinstance(schema, UnionSchema):
        return next((branch for branch in schema.branches if isinstance(branch, kind)), None)
    return schema if isinstance(schema, kind) else None


def _with_validity(made: pa.Array, array: pa.Array) -> pa.Array:
    if not array.null_count:
        return made
    order = pa.array(range(len(array)), pa.int64(), mask=array.is_null().to_numpy(zero_copy_only=False))
    return made.take(order)


def default_of(field: Field) -> pa.Array:
    """Returns one element of `stored_type(field.schema)`; null without a default."""
    kind = stored_type(field.schema)
    if not field.has_default or not fits(field.schema, field.default):
        return pa.nulls(1, kind)
    try:
        return pa.array([_value(field.schema, field.default)], kind)
    except (pa.ArrowInvalid, OverflowError, _NoValueError, UnicodeEncodeError):
        return pa.nulls(1, kind)


class _NoValueError(Exception):
    """The default has the form of the type, and is not one of its values."""


def _value(schema: Schema, default: Any) -> Any:
    """Returns a default that `fits` as Arrow takes it."""
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
            return _bytes(schema, default.encode("latin-1", "replace"))  # "?" for other characters, as in Java.
        case _:
            return default


def _bytes(schema: Schema, default: bytes) -> Any:
    if isinstance(schema, FixedSchema) and len(default) != schema.size:
        raise _NoValueError
    kind = stored_type(schema)
    return from_unscaled(default, kind) if pa.types.is_decimal(kind) else default
