"""The columns of a topic's schema: a message is read with the schema it was written with, then fitted to the columns.

Invariant: Avro's resolution decides what fits: wider numbers, strings and bytes for each other, other units. It is
           checked by types alone, before any value is read: whether a query fails does not depend on its data. Unknown
           fields are dropped. A field that the writer did not know has the default of the reader's schema, otherwise it
           is null.
Order:     rows are grouped by the version in their entry's metadata; one without a version has the columns' schema.
           A message without a value is null in all columns.
Failure:   an error names the version that does not fit, or the message with an unreadable value.
Format:    a KEY_VALUE message is split. Inline: key_length i32, key, value_length i32, value; a length of −1 is
           null. Separated: the key is the message's key.
           Avro writes a default as JSON: bytes, fixed and decimals are text, one character for each byte; times are
           numbers in the unit of the schema. A union's default is of the first branch that fits. A broker accepts
           schemas with defaults that are not values of their types: such a default is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from magnetar.errors import IncompatibleSchemaError, InvalidSchemaError, MalformedEntryError
from magnetar.schemas.avro.resolution import fits
from magnetar.schemas.avro.schema import ArraySchema, Field, FixedSchema, MapSchema, RecordSchema, Schema, UnionSchema
from magnetar.schemas.data import SchemaData, SchemaType, version_from_bytes
from magnetar.schemas.validation import parsed, split_key_value
from magnetar.spark.decoding.avro_values import read_avro
from magnetar.spark.decoding.byte_spans import Bytes, Ints, fixed, slices
from magnetar.spark.decoding.columns import FIELD, KEY, VALUE, Columns, is_record, stored_type, whole_type
from magnetar.spark.decoding.fixed_columns import Settled, keys, values
from magnetar.spark.decoding.inputs import WriterSchema
from magnetar.spark.decoding.json_values import read_json
from magnetar.spark.decoding.primitive_values import (
    UnreadableValueError,
    data_of,
    edges,
    from_unscaled,
    primitive_reader,
    spread,
)

_WIDER: Final = {
    pa.int32(): (pa.int64(), pa.float32(), pa.float64()),
    pa.int64(): (pa.float32(), pa.float64()),
    pa.float32(): (pa.float64(),),
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.string(): (pa.binary(),),
    pa.binary(): (pa.string(),),
}
_ENCODING: Final = "kv.encoding.type"
_LENGTH: Final = ">i4"
_LENGTH_BYTES: Final = 4
_NO_VERSION: Final = b""
Reader: TypeAlias = Callable[[pa.BinaryArray, pa.BinaryArray | None], pa.StructArray]
"""From payloads and, if needed, keys to a struct of the wanted columns; null where nothing is."""
_Part: TypeAlias = Callable[[pa.BinaryArray], pa.Array]


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


# --- readers of one schema version ------------------------------------------------------------------------------------


def reader_for(written: SchemaData, schema: SchemaData, wanted: pa.StructType) -> Reader:
    """Returns a reader; raises IncompatibleSchemaError if `written` cannot be read as these columns of `schema`."""
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
    is_inline = written.properties.get(_ENCODING, "INLINE").upper() != "SEPARATED"

    def read(payloads: pa.BinaryArray, keys: pa.BinaryArray | None) -> pa.StructArray:
        if is_inline:
            keys, payloads = split_inline(payloads)
        assert keys is not None
        of_name = {KEY: keys, VALUE: payloads}
        arrays = [readers[field.name](of_name[field.name]) for field in wanted]
        return pa.StructArray.from_arrays(arrays, fields=list(wanted))

    return read


def _part_reader(written: SchemaData, schema: SchemaData, wanted: pa.DataType) -> _Part:
    """Returns a reader of one value in one column, or of a record whose fields are the columns."""
    if written.type not in (SchemaType.AVRO, SchemaType.JSON):
        check_fits(whole_type(written), wanted)
        read = primitive_reader(written.type)
        return lambda payloads: fitted(read(payloads), wanted, None)
    definition = parsed(schema) if schema.type in (SchemaType.AVRO, SchemaType.JSON) else None
    writer = parsed(written)
    stored = stored_type(writer)
    if written.type is SchemaType.AVRO:
        check_fits(stored, wanted)
        names = [field.name for field in wanted] if pa.types.is_struct(wanted) else None
        return lambda payloads: fitted(read_avro(writer, payloads, names), wanted, definition)
    # JSON names its own fields; of the writer's schema only the units count. Unwanted fields at the top are not parsed.
    if pa.types.is_struct(stored) and pa.types.is_struct(wanted):
        stored = pa.struct([field for field in stored if wanted.get_field_index(field.name) >= 0])
    check_fits(stored, wanted)
    return lambda payloads: fitted(read_json(payloads, stored), wanted, definition)


def split_inline(payloads: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Returns keys and values. A payload that is null has neither."""
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
        parts.append(spread(found, present))
    return parts[0], parts[1]


def _lengths(data: Bytes, start: Ints, stop: Ints, rows: Ints) -> Ints:
    lengths = fixed(data, start, _LENGTH).astype(np.int64) if len(start) else np.zeros(0, np.int64)
    wrong = (start + _LENGTH_BYTES > stop) | (start + _LENGTH_BYTES + lengths > stop)
    if wrong.any():
        raise UnreadableValueError(int(rows[np.flatnonzero(wrong)[0]]), "it ends before its key and value do")
    return lengths


class TypedColumns:
    def __init__(self, columns: Columns, writer_schema: WriterSchema | None) -> None:
        self._schema = columns.topic_schema
        self._wanted = pa.struct([(column.name, column.type) for column in columns.columns if column.source == FIELD])
        self._writer_schema = writer_schema
        self._readers: dict[tuple[str, bytes], Reader] = {}

    @property
    def sources(self) -> set[str]:
        """The raw columns that these need. Pairs may be separated though the columns' schema is inline: those of
        another version, or of another topic."""
        is_pair = self._schema is not None and self._schema.type is SchemaType.KEY_VALUE
        return {"key"} if is_pair and self._wanted.num_fields > 0 else set()

    def columns(self, settled: Settled) -> dict[str, pa.Array]:
        if self._schema is None or not self._wanted.num_fields:
            return {}
        found = self._read(self._schema, settled)
        return dict(zip((field.name for field in self._wanted), found.flatten(), strict=True))

    def _read(self, schema: SchemaData, settled: Settled) -> pa.StructArray:
        rows = settled.rows
        payloads = values(settled)
        key_of_rows = keys(settled) if self.sources else None
        versions = [(part.topic, part.schema_version) for part in rows.parts]
        known = sorted(set(versions))
        if len(known) == 1:
            return self._read_version(schema, settled, known[0], np.arange(len(rows)), payloads, key_of_rows)
        number_of = {version: number for number, version in enumerate(known)}
        codes = np.array([number_of[version] for version in versions])[rows.entry]
        order = np.argsort(codes, kind="stable")
        arrays: list[pa.Array] = []
        for number, version in enumerate(known):
            which = np.flatnonzero(codes == number)
            taken = pa.array(which)
            part_keys = None if key_of_rows is None else key_of_rows.take(taken)
            arrays.append(self._read_version(schema, settled, version, which, payloads.take(taken), part_keys))
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return pa.concat_arrays(arrays).take(pa.array(places))

    def _read_version(
        self,
        schema: SchemaData,
        settled: Settled,
        version: tuple[str, bytes],
        rows: Ints,
        payloads: pa.BinaryArray,
        key_of_rows: pa.BinaryArray | None,
    ) -> pa.StructArray:
        reader = self._reader(schema, version)
        try:
            return reader(payloads, key_of_rows)
        except UnreadableValueError as error:
            row = int(rows[error.row])
            raise MalformedEntryError(
                f"{version[0]}: message {settled.rows.place(row)} is not of {_named(version[1])}: {error.reason}; "
                "valueSchema=raw reads it as bytes"
            ) from None

    def _reader(self, schema: SchemaData, version: tuple[str, bytes]) -> Reader:
        reader = self._readers.get(version)
        if reader is None:
            topic, number = version
            written = schema if number == _NO_VERSION or self._writer_schema is None else self._writer_schema(*version)
            try:
                reader = reader_for(written, schema, self._wanted)
            except (IncompatibleSchemaError, InvalidSchemaError) as error:
                raise IncompatibleSchemaError(
                    f"{topic}: messages of {_named(number)} do not fit the columns: {error}; leave that column out of "
                    "the query's .schema(…), or use valueSchema=raw"
                ) from error
            self._readers[version] = reader
        return reader


def _named(version: bytes) -> str:
    if version == _NO_VERSION:
        return "the topic's schema"
    try:
        return f"schema version {version_from_bytes(version)}"
    except InvalidSchemaError:
        return f"schema version 0x{version.hex()}"
