"""The columns that a topic can be read as, with their types in Arrow's and in Spark's words.

Format:    raw: the fixed columns of `RAW`; `properties` only if headers are wanted.
           typed: the topic's schema first (the fields of a record, `key` and `value` of a pair, otherwise one column
           `value`), then the raw columns without `value`, with `__` before their names.
           Types are those that Spark accepts from `read()`: timestamps in µs of UTC, plain strings, every field
           nullable. DATE, TIME and TIMESTAMP are all milliseconds since 1970, as clients write them: TIMESTAMP. INSTANT
           is cut to µs. LOCAL_TIME is BIGINT, nanoseconds of the day; LOCAL_DATE is DATE; LOCAL_DATE_TIME is
           TIMESTAMP_NTZ. PROTOBUF and PROTOBUF_NATIVE stay BINARY: decode them with Spark's `from_protobuf` and the
           descriptor.
Read next: arrow_types.py, for records
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from magnetar.config.load import nearest
from magnetar.errors import ConfigError, InvalidSchemaError
from magnetar.schemas.avro.schema import RecordSchema
from magnetar.schemas.data import SchemaData, SchemaType
from magnetar.schemas.validation import parsed, split_key_value
from magnetar.spark.decoding.arrow_types import (
    LOCAL_TIMESTAMP,
    PROPERTIES_TYPE,
    TIMESTAMP,
    arrow_type,
    ddl_of,
    quoted,
    record_fields,
)

PRIMITIVE_TYPES: Final[dict[SchemaType, pa.DataType]] = {
    SchemaType.NONE: pa.binary(),
    SchemaType.BYTES: pa.binary(),
    SchemaType.STRING: pa.string(),
    SchemaType.BOOLEAN: pa.bool_(),
    SchemaType.INT8: pa.int8(),
    SchemaType.INT16: pa.int16(),
    SchemaType.INT32: pa.int32(),
    SchemaType.INT64: pa.int64(),
    SchemaType.FLOAT: pa.float32(),
    SchemaType.DOUBLE: pa.float64(),
    SchemaType.DATE: TIMESTAMP,
    SchemaType.TIME: TIMESTAMP,
    SchemaType.TIMESTAMP: TIMESTAMP,
    SchemaType.INSTANT: TIMESTAMP,
    SchemaType.LOCAL_DATE: pa.date32(),
    SchemaType.LOCAL_TIME: pa.int64(),
    SchemaType.LOCAL_DATE_TIME: LOCAL_TIMESTAMP,
    SchemaType.PROTOBUF: pa.binary(),
    SchemaType.PROTOBUF_NATIVE: pa.binary(),
    SchemaType.EXTERNAL: pa.binary(),
}
KEY: Final = "key"
VALUE: Final = "value"


META_PREFIX: Final = "__"


FIELD: Final = "field"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: pa.DataType
    source: str
    """The source of its values: a name of `RAW`, or `FIELD`: a field of this name in the topic's schema."""

    @property
    def ddl(self) -> str:
        return f"{quoted(self.name)} {ddl_of(self.type)}"


RAW: Final[tuple[Column, ...]] = tuple(
    Column(name, kind, name)
    for name, kind in (
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("message_id", pa.string()),
        ("index", pa.int64()),
        ("publish_time", TIMESTAMP),
        ("event_time", TIMESTAMP),
        ("producer", pa.string()),
        ("sequence_id", pa.int64()),
        ("properties", PROPERTIES_TYPE),
        ("redelivery_count", pa.int32()),
    )
)


@dataclass(frozen=True, slots=True)
class Columns:
    """The output of a decoder, in this order. Values that can be pickled."""

    columns: tuple[Column, ...]
    topic_schema: SchemaData | None = None
    """The schema of the typed columns; None: there are none."""

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    @property
    def ddl(self) -> str:
        """Returns the columns for `DataSource.schema()`."""
        return ", ".join(column.ddl for column in self.columns)

    def select(self, wanted: pa.Schema) -> Columns:
        """Selects the columns that the user's `.schema(…)` names, in its order: names must exist, types must be the
        same."""
        known = {column.name: column for column in self.columns}
        chosen: list[Column] = []
        for field in wanted:
            column = known.get(field.name)
            if column is None:
                hint = nearest(field.name, list(known))
                raise ConfigError(
                    f"there is no column {field.name!r} to read, did you mean {hint!r}? The columns are: {self.ddl}"
                )
            if column.type != field.type:
                raise ConfigError(
                    f"column {field.name!r} is {ddl_of(column.type)} and cannot be read as {field.type}: "
                    "leave the type as it is and cast() after reading"
                )
            chosen.append(column)
        return Columns(tuple(chosen), self.topic_schema)


def raw_columns(*, include_headers: bool) -> Columns:
    return Columns(tuple(column for column in RAW if include_headers or column.name != "properties"))


def topic_columns(schema: SchemaData, *, include_headers: bool) -> Columns:
    """Returns the typed columns. InvalidSchemaError names the part without a type in Spark."""
    fields = tuple(Column(name, kind, FIELD) for name, kind in typed_fields(schema))
    metadata = tuple(
        Column(META_PREFIX + column.name, column.type, column.source)
        for column in raw_columns(include_headers=include_headers).columns
        if column.name != "value"
    )
    taken = {column.name for column in metadata}
    for column in fields:
        if column.name in taken:
            raise ConfigError(
                f"the topic's schema has a field {column.name!r}, which is the name of a column of every topic: "
                "read it with valueSchema=raw"
            )
    return Columns(fields + metadata, schema)


def typed_fields(schema: SchemaData) -> list[tuple[str, pa.DataType]]:
    """Returns names and types of the columns. InvalidSchemaError names the part without a type."""
    if schema.type is SchemaType.KEY_VALUE:
        key, value = split_key_value(schema)
        return [(KEY, whole_type(key)), (VALUE, whole_type(value))]
    if is_record(schema):
        return record_fields(parsed(schema))
    return [(VALUE, whole_type(schema))]


def is_record(schema: SchemaData) -> bool:
    """Reports whether its fields are columns of their own."""
    return schema.type in (SchemaType.AVRO, SchemaType.JSON) and isinstance(parsed(schema), RecordSchema)


def whole_type(schema: SchemaData) -> pa.DataType:
    """Returns the type of one value in one column."""
    if schema.type in (SchemaType.AVRO, SchemaType.JSON):
        return arrow_type(parsed(schema))
    kind = PRIMITIVE_TYPES.get(schema.type)
    if kind is None:
        raise InvalidSchemaError(f"messages of schema type {schema.type.name} have no columns: use valueSchema=raw")
    return kind
