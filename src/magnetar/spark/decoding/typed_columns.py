"""The columns of a topic's schema: a message is read with the schema it was written with, then fitted to the columns.

Order:     rows are grouped by the version in their entry's metadata; one without a version has the columns' schema.
           A message without a value is null in all columns.
Failure:   an error names the version that does not fit, or the message with an unreadable value.
Format:    a KEY_VALUE message is split. Inline: key_length i32, key, value_length i32, value; a length of −1 is
           null. Separated: the key is the message's key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from magnetar.errors import IncompatibleSchemaError, InvalidSchemaError, MalformedEntryError
from magnetar.schemas.avro.schema import Schema
from magnetar.schemas.data import SchemaData, SchemaType, version_from_bytes
from magnetar.schemas.validation import parsed, split_key_value
from magnetar.spark.decoding.arrow_types import stored_type
from magnetar.spark.decoding.avro_values import read_avro
from magnetar.spark.decoding.byte_spans import Ints, fixed, slices
from magnetar.spark.decoding.columns import FIELD, KEY, VALUE, Columns, is_record, whole_type
from magnetar.spark.decoding.fixed_columns import values
from magnetar.spark.decoding.headers import Settled, keys
from magnetar.spark.decoding.json_values import read_json
from magnetar.spark.decoding.options import WriterSchema
from magnetar.spark.decoding.primitive_values import UnreadableValueError, data_of, edges, primitive_reader
from magnetar.spark.decoding.resolve_schema import check_fits, fitted

_ENCODING: Final = "kv.encoding.type"
_LENGTH: Final = ">i4"
_LENGTH_BYTES: Final = 4


Reader: TypeAlias = Callable[[pa.BinaryArray, pa.BinaryArray | None], pa.StructArray]
"""From payloads and, if needed, keys to a struct of the wanted columns; null where nothing is."""


_Part: TypeAlias = Callable[[pa.BinaryArray], pa.Array]


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
    """Returns a reader of one value in one column, or of a record whose fields are the columns."""
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
    """Returns a reader of JSON, which names its own fields; of the writer's schema only the units count."""
    stored = _restricted(stored_type(written), wanted)
    check_fits(stored, wanted)
    return lambda payloads: fitted(read_json(payloads, stored), wanted, schema)


def _restricted(stored: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Returns the type without unwanted fields at the top: they are not parsed."""
    if not pa.types.is_struct(stored) or not pa.types.is_struct(wanted):
        return stored
    return pa.struct([field for field in stored if wanted.get_field_index(field.name) >= 0])


def is_separated(schema: SchemaData) -> bool:
    return schema.properties.get(_ENCODING, "INLINE").upper() == "SEPARATED"


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


_NO_VERSION: Final = b""


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
