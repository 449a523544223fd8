"""Which reader takes payloads of one schema to the columns of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from magnetar.broker.schemas.avro.schema import Schema
from magnetar.broker.schemas.data import SchemaData, SchemaType
from magnetar.broker.schemas.key_value import split_key_value
from magnetar.broker.schemas.validation import parsed
from magnetar.errors import IncompatibleSchemaError
from magnetar.spark.decoding.avro_types import stored_type
from magnetar.spark.decoding.avro_values import read_avro
from magnetar.spark.decoding.fit import check_fits, fitted
from magnetar.spark.decoding.json_values import read_json
from magnetar.spark.decoding.key_value import is_separated, split_inline
from magnetar.spark.decoding.primitive_values import primitive_reader
from magnetar.spark.decoding.topic_schema import KEY, VALUE, is_record, whole_type

Reader: TypeAlias = Callable[[pa.BinaryArray, pa.BinaryArray | None], pa.StructArray]
"""Payloads and, if they are needed, keys, to a struct of the wanted columns; null where nothing is."""
_Part: TypeAlias = Callable[[pa.BinaryArray], pa.Array]


def reader_for(written: SchemaData, schema: SchemaData, wanted: pa.StructType) -> Reader:
    """IncompatibleSchemaError if what was written cannot be these columns of `schema`."""
    if schema.type is SchemaType.KEY_VALUE:
        return _pair_reader(written, schema, wanted)
    if is_record(schema):
        part = _part_reader(written, schema, wanted)
        return lambda payloads, _keys: part(payloads)
    (field,) = wanted
    part = _part_reader(written, schema, field.type)
    return lambda payloads, _keys: pa.StructArray.from_arrays([part(payloads)], fields=[field])


def _pair_reader(written: SchemaData, schema: SchemaData, wanted: pa.StructType) -> Reader:
    if written.type is not SchemaType.KEY_VALUE:
        raise IncompatibleSchemaError(f"they are {written.type.name}, and the columns are of a KEY_VALUE schema")
    parts = dict(zip((KEY, VALUE), zip(split_key_value(written), split_key_value(schema), strict=True), strict=True))
    readers = {field.name: _part_reader(*parts[field.name], field.type) for field in wanted}
    is_inline = not is_separated(written)

    def read(payloads: pa.BinaryArray, keys: pa.BinaryArray | None) -> pa.StructArray:
        if is_inline:
            keys, payloads = split_inline(payloads)
        assert keys is not None
        of_name = {KEY: keys, VALUE: payloads}
        arrays = [readers[field.name](of_name[field.name]) for field in wanted]
        return pa.StructArray.from_arrays(arrays, fields=list(wanted))

    return read


def _part_reader(written: SchemaData, schema: SchemaData, wanted: pa.DataType) -> _Part:
    """Of one value in one column, or of a record whose fields are the columns."""
    if written.type is SchemaType.AVRO:
        return _avro_reader(parsed(written), _definition(schema), wanted)
    if written.type is SchemaType.JSON:
        return _json_reader(parsed(written), _definition(schema), wanted)
    check_fits(whole_type(written), wanted)
    read = primitive_reader(written.type)
    return lambda payloads: fitted(read(payloads), wanted, None)


def _definition(schema: SchemaData) -> Schema | None:
    return parsed(schema) if schema.type in (SchemaType.AVRO, SchemaType.JSON) else None


def _avro_reader(written: Schema, schema: Schema | None, wanted: pa.DataType) -> _Part:
    check_fits(stored_type(written), wanted)
    names = [field.name for field in wanted] if pa.types.is_struct(wanted) else None
    return lambda payloads: fitted(read_avro(written, payloads, names), wanted, schema)


def _json_reader(written: Schema, schema: Schema | None, wanted: pa.DataType) -> _Part:
    """JSON says itself which fields it has; of the writer's schema only the units count."""
    stored = _restricted(stored_type(written), wanted)
    check_fits(stored, wanted)
    return lambda payloads: fitted(read_json(payloads, stored), wanted, schema)


def _restricted(stored: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Without fields at the top that nobody wants: they are not parsed."""
    if not pa.types.is_struct(stored) or not pa.types.is_struct(wanted):
        return stored
    return pa.struct([field for field in stored if wanted.get_field_index(field.name) >= 0])
