"""The schema of a topic for rows with typed columns: an Avro record, which defines Pulsar's AVRO and JSON alike.

Format:    types as in Spark's own Avro sink: dates are days, timestamps microseconds, decimals bytes, each with its
           logical type; a column that may be null is a union with null, whose default is null. Names are Avro's:
           letters, digits and underscores. A record inside is named after its path.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from magnetar.errors import ConfigError

ROOT_NAME: Final = "record"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final[list[tuple[Any, Any]]] = [
    (types.is_boolean, "boolean"),
    (types.is_int8, "int"),
    (types.is_int16, "int"),
    (types.is_int32, "int"),
    (types.is_int64, "long"),
    (types.is_float32, "float"),
    (types.is_float64, "double"),
    (types.is_string, "string"),
    (types.is_large_string, "string"),
    (types.is_binary, "bytes"),
    (types.is_large_binary, "bytes"),
    (types.is_date32, {"type": "int", "logicalType": "date"}),
]


def record_definition(fields: pa.Schema) -> str:
    """Returns the Avro definition as JSON. Raises ConfigError for a name or a type without one."""
    return json.dumps(_record(list(fields), ROOT_NAME), separators=(",", ":"))


def _record(fields: list[pa.Field], name: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [_field(each, name) for each in fields]}


def _field(field: pa.Field, path: str) -> dict[str, Any]:
    if not _NAME.fullmatch(field.name):
        raise ConfigError(
            f"column {field.name!r} cannot be a field of a schema: rename it to letters, digits and underscores"
        )
    kind = _nullable(field, f"{path}_{field.name}")
    return {"name": field.name, "type": kind, "default": None} if field.nullable else {"name": field.name, "type": kind}


def _nullable(field: pa.Field, path: str) -> Any:
    kind = _type(field.type, path)
    return ["null", kind] if field.nullable else kind


def _type(kind: pa.DataType, path: str) -> Any:
    for is_kind, definition in _PLAIN:
        if is_kind(kind):
            return definition
    if types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if types.is_decimal128(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    return _nested(kind, path)


def _nested(kind: pa.DataType, path: str) -> Any:
    if types.is_struct(kind):
        return _record([kind.field(at) for at in range(kind.num_fields)], path)
    if types.is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, path)}
    if types.is_map(kind) and types.is_string(kind.key_type):
        return {"type": "map", "values": _nullable(kind.item_field, path)}
    raise ConfigError(
        f"a column of type {kind} cannot be a field of a schema (at {path}): cast it, for example to string"
    )
