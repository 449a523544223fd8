"""Which column of the rows becomes which part of a message.

Plain:     value (binary or string), key (binary or string), topic (string), partition (int), event_time (timestamp, or
           milliseconds as bigint), properties or headers (map, or array of structs of key and value).
Typed:     with a schema, every other column is a field of the value. If one of `__key`, `__topic`, … is there, as the
           source names them beside typed columns, then only those are parts of the message, and `key` is a field.
Ignored:   what only a broker can say: message id, index, publish time, producer, sequence id, redelivery count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from magnetar.config.suggest import nearest
from magnetar.errors import ConfigError
from magnetar.spark.encoding.arrays import as_binary
from magnetar.spark.encoding.keys import read_keys
from magnetar.spark.encoding.messages import Messages

PARTS = ("key", "topic", "partition", "event_time", "properties", "headers")
READ_ONLY = ("message_id", "index", "publish_time", "producer", "sequence_id", "redelivery_count")
_TYPED_PREFIX = "__"


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of columns; "" where there is none."""

    value: str = ""
    key: str = ""
    topic: str = ""
    partition: str = ""
    event_time: str = ""
    properties: str = ""
    fields: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """What the value is made of, with a schema."""

    def messages(self, batch: pa.RecordBatch, values: pa.Array) -> Messages:
        return Messages(
            values,
            read_keys(batch.column(self.key)) if self.key else None,
            _milliseconds(batch.column(self.event_time)) if self.event_time else None,
            batch.column(self.properties) if self.properties else None,
        )


def plan_layout(schema: pa.Schema, *, is_typed: bool) -> Layout:
    """Raises `ConfigError` for columns that cannot be written."""
    prefix = _TYPED_PREFIX if is_typed and _has_prefixed_parts(schema) else ""
    found = {part: prefix + part for part in PARTS if prefix + part in schema.names}
    if "properties" in found and "headers" in found:
        raise ConfigError("both columns, properties and headers, are there: they mean the same, drop one")
    if "headers" in found:
        found["properties"] = found.pop("headers")
    for part, name in found.items():
        _require(schema.field(name), part)
    ignored = {prefix + name for name in READ_ONLY}
    rest = [each for each in schema if each.name not in found.values() and each.name not in ignored]
    if is_typed:
        return Layout(fields=_value_fields(rest), **found)
    return Layout(value=_value_column(rest), **found)


def read_values(batch: pa.RecordBatch, layout: Layout) -> pa.Array:
    """The values of plain rows."""
    return as_binary(batch.column(layout.value))


def _has_prefixed_parts(schema: pa.Schema) -> bool:
    return any(_TYPED_PREFIX + name in schema.names for name in (*PARTS, *READ_ONLY))


def _value_column(rest: list[pa.Field]) -> str:
    names = [each.name for each in rest]
    if "value" not in names:
        raise ConfigError(
            f"no column value, only {', '.join(names) or 'none'}: name one so, "
            "or write all columns as fields of the value with option schema=json or schema=avro"
        )
    _require(rest[names.index("value")], "value")
    unknown = [name for name in names if name != "value"]
    if unknown:
        meant = nearest(unknown[0], ["value", *PARTS])
        raise ConfigError(
            f"column {unknown[0]!r} is no part of a message: did you mean {meant!r}? Drop it, "
            "or use option schema=json or schema=avro to write columns as fields of the value"
        )
    return "value"


def _value_fields(rest: list[pa.Field]) -> pa.Schema:
    if not rest:
        raise ConfigError(
            "no column is left for the value: with a schema, columns other than those of the message are it"
        )
    return pa.schema(rest)


# --- types ------------------------------------------------------------------------------------------------------------


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_bytes_or_text(kind: pa.DataType) -> bool:
    return bool(_is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) or types.is_int64(kind))


def _are_pairs(kind: pa.DataType) -> bool:
    if types.is_map(kind):
        return _is_text(kind.key_type) and _is_bytes_or_text(kind.item_type)
    if not types.is_list(kind) or not types.is_struct(kind.value_type):
        return False
    pair = kind.value_type
    names = [pair.field(at).name for at in range(pair.num_fields)]
    return names == ["key", "value"] and _is_text(pair.field(0).type) and _is_bytes_or_text(pair.field(1).type)


_RULES: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "value": (_is_bytes_or_text, "binary or string"),
    "key": (_is_bytes_or_text, "binary or string"),
    "topic": (_is_text, "string"),
    "partition": (types.is_integer, "int"),
    "event_time": (_is_time, "timestamp, or bigint with milliseconds"),
    "properties": (_are_pairs, "map<string,string> or array<struct<key:string,value:string>>"),
}


def _require(column: pa.Field, part: str) -> None:
    is_right, wanted = _RULES[part]
    if not is_right(column.type):
        raise ConfigError(f"column {column.name} has type {column.type}, not {wanted}: cast it in the query")


def _milliseconds(column: pa.Array) -> pa.Array:
    if types.is_int64(column.type):
        return column
    return pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", column.type.tz)).cast(pa.int64())
