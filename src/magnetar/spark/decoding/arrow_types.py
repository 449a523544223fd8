"""Arrow's types that Spark takes, their names in Spark's DDL, and the types of Avro schemas (of AVRO and JSON topics).

Invariant: null and one type is that type; int with long, float with double is the wider one; any other union has no
           type. Logical types are date, timestamps, decimal and uuid; times of the day stay numbers, as in Spark's own
           Avro source. `stored_type` has timestamps in the unit they are written in: values are cast later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from magnetar.errors import InvalidSchemaError
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


def ddl_of(kind: pa.DataType) -> str:
    """Returns the type as Spark writes it in a schema."""
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


def list_of(element: pa.DataType) -> pa.DataType:
    """Returns a list type with Spark's name for the field: types are compared with it."""
    return pa.list_(pa.field("element", element))


def record_fields(schema: Schema) -> list[tuple[str, pa.DataType]]:
    assert isinstance(schema, RecordSchema)
    kind = arrow_type(schema)
    return [(field.name, field.type) for field in kind]


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
                return list_of(self.of(schema.items, f"{where}[]"))
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
