"""Arrow's types that Spark takes, and their names in Spark's DDL."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

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


def ddl_of(kind: pa.DataType) -> str:
    """As Spark writes it in a schema."""
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
    """With the field's name that Spark gives it: types are compared with it."""
    return pa.list_(pa.field("element", element))
