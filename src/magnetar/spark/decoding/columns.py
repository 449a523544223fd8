"""The columns that a topic can be read as, with their types in Arrow's and in Spark's words.

Format:    raw: the fixed columns of `RAW`; `properties` only if headers are wanted.
           typed: the topic's schema first (the fields of a record, `key` and `value` of a pair, otherwise one column
           `value`), then the raw columns without `value`, with `__` before their names.
           Types are those that Spark accepts from `read()`: timestamps in µs of UTC, plain strings, every field
           nullable. DATE, TIME and TIMESTAMP are all milliseconds since 1970, as clients write them: TIMESTAMP. INSTANT
           is cut to µs. LOCAL_TIME is BIGINT, nanoseconds of the day; LOCAL_DATE is DATE; LOCAL_DATE_TIME is
           TIMESTAMP_NTZ. PROTOBUF and PROTOBUF_NATIVE stay BINARY: decode them with Spark's `from_protobuf` and the
           descriptor.
           Of Avro schemas (AVRO and JSON topics), null and one type is that type; int with long, float with double is
           the wider one; any other union has no type. Logical types are date, timestamps, decimal and uuid; times of
           the day stay numbers, as in Spark's own Avro source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from magnetar.config.load import nearest
from magnetar.errors import ConfigError, InvalidSchemaError
from magnetar.schemas.avro.schema import (
    ArraySchema,
    EnumSchema,
    FixedSchema,
    MapSchema,
    RecordSchema,
    Schema,
    UnionSchema,
    name_of,
)
from magnetar.schemas.data import SchemaData, SchemaType
from magnetar.schemas.validation import parsed, split_key_value

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
LOCAL_TIMESTAMP: Final = pa.timestamp("us")
PROPERTIES_TYPE: Final = pa.map_(pa.string(), pa.string())

_DDL: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMP",
    LOCAL_TIMESTAMP: "TIMESTAMP_NTZ",
}
_PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final[dict[tuple[str, str], tuple[str, str | None]]] = {  # Kind, logical type → unit and zone of a timestamp.
    ("long", "timestamp-millis"): ("ms", "UTC"),
    ("long", "timestamp-micros"): ("us", "UTC"),
    ("long", "local-timestamp-millis"): ("ms", None),
    ("long", "local-timestamp-micros"): ("us", None),
}
_WIDER: Final = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}
_DECIMAL_DIGITS_MAX: Final = 38
PRIMITIVE_TYPES: Final[dict[SchemaType, pa.DataType]] = {
    **dict.fromkeys((SchemaType.NONE, SchemaType.BYTES, SchemaType.EXTERNAL), pa.binary()),
    **dict.fromkeys((SchemaType.PROTOBUF, SchemaType.PROTOBUF_NATIVE), pa.binary()),
    **dict.fromkeys((SchemaType.DATE, SchemaType.TIME, SchemaType.TIMESTAMP, SchemaType.INSTANT), TIMESTAMP),
    SchemaType.STRING: pa.string(),
    SchemaType.BOOLEAN: pa.bool_(),
    SchemaType.INT8: pa.int8(),
    SchemaType.INT16: pa.int16(),
    SchemaType.INT32: pa.int32(),
    SchemaType.INT64: pa.int64(),
    SchemaType.FLOAT: pa.float32(),
    SchemaType.DOUBLE: pa.float64(),
    SchemaType.LOCAL_DATE: pa.date32(),
    SchemaType.LOCAL_TIME: pa.int64(),
    SchemaType.LOCAL_DATE_TIME: LOCAL_TIMESTAMP,
}
KEY: Final = "key"
VALUE: Final = "value"
META_PREFIX: Final = "__"
FIELD: Final = "field"


def ddl_of(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_map(kind):
        return f"MAP<{ddl_of(kind.key_type)}, {ddl_of(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{ddl_of(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{quoted(field.name)}: {ddl_of(field.type)}' for field in kind)}>"
    return _DDL[kind]


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def arrow_type(schema: Schema) -> pa.DataType:
    """Returns the type for Spark. InvalidSchemaError names the part without a type."""
    return _Types(lambda _unit, zone: pa.timestamp("us", tz=zone)).of(schema, "")


def stored_type(schema: Schema) -> pa.DataType:
    return _Types(lambda unit, zone: pa.timestamp(unit, tz=zone)).of(schema, "")


class _Types:
    def __init__(self, timestamp: Callable[[str, str | None], pa.DataType]) -> None:
        self._timestamp = timestamp
        self._open: list[RecordSchema] = []

    def of(self, schema: Schema, where: str) -> pa.DataType:
        match schema:
            case RecordSchema():
                return self._record(schema, where)
            case UnionSchema():
                return self._union(schema, where)
            case ArraySchema():
                # With Spark's name for the field: types are compared with it.
                return pa.list_(pa.field("element", self.of(schema.items, f"{where}[]")))
            case MapSchema():
                return pa.map_(pa.string(), self.of(schema.values, f"{where}{{}}"))
            case EnumSchema():
                return pa.string()
            case FixedSchema():
                return _decimal(schema.properties, where) or pa.binary()
            case _:
                return self._primitive(schema.kind, schema.properties, where)

    def _record(self, schema: RecordSchema, where: str) -> pa.DataType:
        if any(schema is each for each in self._open):
            raise _unsupported(where, f"record {schema.name} contains itself")
        self._open.append(schema)
        fields = [(field.name, self.of(field.schema, f"{where}.{field.name}")) for field in schema.fields]
        self._open.pop()
        return pa.struct(fields)

    def _union(self, schema: UnionSchema, where: str) -> pa.DataType:
        branches = [branch for branch in schema.branches if branch.kind != "null"]
        if len(branches) == 1:
            return self.of(branches[0], where)
        wider = _WIDER.get(frozenset(branch.kind for branch in branches))
        if wider is None:
            names = ", ".join(map(name_of, schema.branches))
            raise _unsupported(where, f"a union of {names or 'nothing'} is not a type in Spark")
        return _PRIMITIVES[wider]

    def _primitive(self, kind: str, properties: Any, where: str) -> pa.DataType:
        logical = properties.get("logicalType")
        if (kind, logical) == ("int", "date"):
            return pa.date32()
        if (kind, logical) in _LOGICAL:
            return self._timestamp(*_LOGICAL[kind, str(logical)])
        if kind == "null":
            raise _unsupported(where, "a field that is always null has no type")
        return (_decimal(properties, where) if kind == "bytes" else None) or _PRIMITIVES[kind]


def _decimal(properties: Any, where: str) -> pa.DataType | None:
    if properties.get("logicalType") != "decimal":
        return None
    precision, scale = properties.get("precision"), properties.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision:
        return None  # Avro ignores a logical type that is not valid.
    if not 0 < precision <= _DECIMAL_DIGITS_MAX:
        raise _unsupported(where, f"a decimal of {precision} digits has more than Spark's {_DECIMAL_DIGITS_MAX}")
    return pa.decimal128(precision, scale)


def _unsupported(where: str, what: str) -> InvalidSchemaError:
    place = where.lstrip(".") or "the top"
    return InvalidSchemaError(f"the topic's schema cannot be columns, at {place}: {what}; use valueSchema=raw")


# --- columns ----------------------------------------------------------------------------------------------------------


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
        return [(field.name, field.type) for field in arrow_type(parsed(schema))]
    return [(VALUE, whole_type(schema))]


def is_record(schema: SchemaData) -> bool:
    """Reports whether its fields are columns of their own."""
    return schema.type in (SchemaType.AVRO, SchemaType.JSON) and isinstance(parsed(schema), RecordSchema)


def whole_type(schema: SchemaData) -> pa.DataType:
    if schema.type in (SchemaType.AVRO, SchemaType.JSON):
        return arrow_type(parsed(schema))
    kind = PRIMITIVE_TYPES.get(schema.type)
    if kind is None:
        raise InvalidSchemaError(f"messages of schema type {schema.type.name} have no columns: use valueSchema=raw")
    return kind
