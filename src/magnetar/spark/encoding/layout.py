"""Decides which column of the rows becomes which part of a message.

Format:    plain: value (binary or string), key (binary or string), topic (string), partition (int), event_time
           (timestamp, or milliseconds as bigint), properties or headers (map, or array of structs of key and value).
           typed: with a schema, every other column is a field of the value. If one of `__key`, `__topic`, … exists, as
           the source names them beside typed columns, then only those are parts of the message, and `key` is a field.
Invariant: columns that only a broker fills are ignored: message id, index, publish time, producer, sequence id,
           redelivery count. A timestamp without a zone (timestamp_ntz) is a time of the session's zone, as in Spark's
           own cast to timestamp: a time that a change of the clocks skips is as much later, one that comes twice is the
           first. Times before 1970 are refused: Pulsar's event time has no sign, and clients would read a date in the
           far future.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from magnetar.config.load import nearest
from magnetar.errors import ConfigError, SinkDataError
from magnetar.spark.encoding.arrays import as_binary
from magnetar.spark.encoding.messages import Messages, read_keys

PARTS = ("key", "topic", "partition", "event_time", "properties", "headers")
READ_ONLY = ("message_id", "index", "publish_time", "producer", "sequence_id", "redelivery_count")
_TYPED_PREFIX = "__"


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of columns; "" for missing ones."""

    value: str = ""
    key: str = ""
    topic: str = ""
    partition: str = ""
    event_time: str = ""
    properties: str = ""
    fields: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """The fields of the value, with a schema."""
    time_zone: str = ""
    """The session's zone, for event times without a zone; empty: the task does not know it."""

    def messages(self, batch: pa.RecordBatch, values: pa.Array) -> Messages:
        return Messages(
            values,
            read_keys(batch.column(self.key)) if self.key else None,
            event_milliseconds(batch.column(self.event_time), self.time_zone) if self.event_time else None,
            batch.column(self.properties) if self.properties else None,
        )


def plan_layout(schema: pa.Schema, *, is_typed: bool) -> Layout:
    """Plans the layout; raises `ConfigError` for columns that cannot be written."""
    has_prefixed = any(_TYPED_PREFIX + name in schema.names for name in (*PARTS, *READ_ONLY))
    prefix = _TYPED_PREFIX if is_typed and has_prefixed else ""
    found = {part: prefix + part for part in PARTS if prefix + part in schema.names}
    if "properties" in found and "headers" in found:
        raise ConfigError("the rows have both columns, properties and headers: they mean the same, so drop one of them")
    if "headers" in found:
        found["properties"] = found.pop("headers")
    for part, name in found.items():
        _require(schema.field(name), part)
    ignored = {prefix + name for name in READ_ONLY}
    rest = [each for each in schema if each.name not in found.values() and each.name not in ignored]
    if not is_typed:
        return Layout(value=_value_column(rest, schema.names), **found)
    if not rest:
        raise ConfigError(
            "no column is left for the value: with a schema, columns other than those of the message are it"
        )
    return Layout(fields=pa.schema(rest), **found)


def read_values(batch: pa.RecordBatch, layout: Layout) -> pa.Array:
    return as_binary(batch.column(layout.value))


def _value_column(rest: list[pa.Field], given: list[str]) -> str:
    names = [each.name for each in rest]
    if "value" not in names:
        raise ConfigError(
            f"the rows have no column value. They have {', '.join(given)}: rename the column with the message to "
            "value, or write columns as fields of the value with option schema=json or schema=avro"
        )
    _require(rest[names.index("value")], "value")
    unknown = [name for name in names if name != "value"]
    if unknown:
        meant = nearest(unknown[0], ["value", *PARTS])
        raise ConfigError(
            f"column {unknown[0]!r} is not part of a message: did you mean {meant!r}? Drop it, "
            "or use option schema=json or schema=avro to write columns as fields of the value"
        )
    return "value"


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_bytes_or_text(kind: pa.DataType) -> bool:
    return bool(_is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind))


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
    "event_time": (
        lambda kind: types.is_timestamp(kind) or types.is_int64(kind),
        "timestamp, or bigint with milliseconds",
    ),
    "properties": (_are_pairs, "map<string,string> or array<struct<key:string,value:string>>"),
}


def _require(column: pa.Field, part: str) -> None:
    is_right, wanted = _RULES[part]
    if not is_right(column.type):
        raise ConfigError(f"column {column.name} has type {column.type}, not {wanted}: cast it in the query")


def event_milliseconds(column: pa.Array, time_zone: str) -> pa.Array:
    """Returns int64; null stays null. `time_zone`: of the session; empty: not known."""
    if types.is_int64(column.type):
        found = column
    else:
        at = column if column.type.tz is not None else _in_zone(column, time_zone)
        found = pc.floor_temporal(at, unit="millisecond").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    earliest = pc.min(found).as_py()
    if earliest is not None and earliest < 0:
        raise SinkDataError(
            f"an event time is before 1970 ({earliest} ms): a message cannot carry it. Set it to null in the query, or "
            "keep it in the value"
        )
    return found


def _in_zone(column: pa.Array, time_zone: str) -> pa.Array:
    if not time_zone:
        raise SinkDataError(
            "the column event_time has no time zone (timestamp_ntz), and the session sets no "
            "spark.sql.session.timeZone: set it, or write CAST(event_time AS TIMESTAMP) in the query"
        )
    try:
        return pc.assume_timezone(column, time_zone, ambiguous="earliest", nonexistent="raise")
    except pa.ArrowInvalid:
        return _one_by_one(column, time_zone)


def _one_by_one(column: pa.Array, time_zone: str) -> pa.Array:
    """Converts times that do not exist in this zone: Python takes the offset before the change, as Java does."""
    try:
        zone = ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise SinkDataError(
            f"the session's time zone {time_zone!r} is not known here, and the column event_time has none of its own "
            "(timestamp_ntz): write CAST(event_time AS TIMESTAMP) in the query"
        ) from None
    values = [None if at is None else at.replace(tzinfo=zone).astimezone(UTC) for at in column.to_pylist()]
    return pa.array(values, pa.timestamp("us", "UTC"))
