"""The columns that a topic can be read as, with their types in Arrow's and in Spark's words.

Raw:       the fixed columns of `RAW`; `properties` only if headers are wanted.
Typed:     the topic's schema first, then the same columns without `value`, their names with `__` before them.
Types:     those that Spark accepts from `read()`: timestamps in µs of UTC, plain strings, every field nullable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from magnetar.broker.schemas.data import SchemaData
from magnetar.config.suggest import nearest
from magnetar.errors import ConfigError
from magnetar.spark.decoding.arrow_types import PROPERTIES_TYPE, TIMESTAMP, ddl_of, quoted
from magnetar.spark.decoding.topic_schema import typed_fields

META_PREFIX: Final = "__"
FIELD: Final = "field"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: pa.DataType
    source: str
    """What it is filled with: a name of `RAW`, or `FIELD`: the topic's schema has it under this name."""

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
    """What a decoder puts out, in this order. Values that can be pickled."""

    columns: tuple[Column, ...]
    topic_schema: SchemaData | None = None
    """What the typed columns are made by; None: there are none."""

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    @property
    def ddl(self) -> str:
        """For `DataSource.schema()`."""
        return ", ".join(column.ddl for column in self.columns)

    def select(self, wanted: pa.Schema) -> Columns:
        """Only what the user's `.schema(…)` names, in its order: names must exist, types must be the same."""
        known = {column.name: column for column in self.columns}
        chosen: list[Column] = []
        for field in wanted:
            column = known.get(field.name)
            if column is None:
                hint = nearest(field.name, list(known))
                raise ConfigError(
                    f"there is no column {field.name!r} to read, did you mean {hint!r}? There are: {self.ddl}"
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
    """InvalidSchemaError names the part that has no type in Spark."""
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
