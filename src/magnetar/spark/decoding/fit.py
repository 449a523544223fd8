"""Values of the schema they were written with, made to fit the columns: what is missing is null, what is unknown goes.

Allowed:   what Avro's resolution allows: numbers that become wider, strings and bytes for each other, other units.
           A field that the writer did not know has the default that the reader's schema gives it, else it is null.
Checked:   by types alone, before any value is seen: whether a query fails does not depend on its data.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from magnetar.broker.schemas.avro.schema import ArraySchema, Field, MapSchema, RecordSchema, Schema, UnionSchema
from magnetar.errors import IncompatibleSchemaError
from magnetar.spark.decoding.defaults import default_of

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
    """IncompatibleSchemaError says what does not, and where."""
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
    """After `check_fits`. `reader`: the schema that the columns are of, for its defaults."""
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
    """The field's default, which is fitted as any other value of its schema is."""
    if field is None:
        return pa.nulls(count, kind)
    return pa.repeat(fitted(default_of(field), kind, field.schema)[0], count)


def _of_kind(schema: Schema | None, kind: type[Any]) -> Any:
    """The schema, or the branch of a union, that is of this kind."""
    if isinstance(schema, UnionSchema):
        return next((branch for branch in schema.branches if isinstance(branch, kind)), None)
    return schema if isinstance(schema, kind) else None


def _with_validity(made: pa.Array, array: pa.Array) -> pa.Array:
    if not array.null_count:
        return made
    order = pa.array(range(len(array)), pa.int64(), mask=array.is_null().to_numpy(zero_copy_only=False))
    return made.take(order)
