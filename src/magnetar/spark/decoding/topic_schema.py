"""A topic's schema as columns: the fields of a record, `key` and `value` of a pair, else one column `value`.

Primitive: DATE, TIME and TIMESTAMP are all milliseconds since 1970, as clients write them: TIMESTAMP. INSTANT is cut to
           µs. LOCAL_TIME is BIGINT, nanoseconds of the day; LOCAL_DATE is DATE; LOCAL_DATE_TIME is TIMESTAMP_NTZ.
Opaque:    PROTOBUF and PROTOBUF_NATIVE stay BINARY: decode them with Spark's `from_protobuf` and the descriptor.
Read next: avro_types.py, for records
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from magnetar.broker.schemas.avro.schema import RecordSchema
from magnetar.broker.schemas.data import SchemaData, SchemaType
from magnetar.broker.schemas.key_value import split_key_value
from magnetar.broker.schemas.validation import parsed
from magnetar.errors import InvalidSchemaError
from magnetar.spark.decoding.arrow_types import LOCAL_TIMESTAMP, TIMESTAMP
from magnetar.spark.decoding.avro_types import arrow_type, record_fields

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


def typed_fields(schema: SchemaData) -> list[tuple[str, pa.DataType]]:
    """Names and types of the columns. InvalidSchemaError names the part that has none."""
    if schema.type is SchemaType.KEY_VALUE:
        key, value = split_key_value(schema)
        return [(KEY, whole_type(key)), (VALUE, whole_type(value))]
    if is_record(schema):
        return record_fields(parsed(schema))
    return [(VALUE, whole_type(schema))]


def is_record(schema: SchemaData) -> bool:
    """Its fields are columns of their own."""
    return schema.type in (SchemaType.AVRO, SchemaType.JSON) and isinstance(parsed(schema), RecordSchema)


def whole_type(schema: SchemaData) -> pa.DataType:
    """Of one value in one column."""
    if schema.type in (SchemaType.AVRO, SchemaType.JSON):
        return arrow_type(parsed(schema))
    kind = PRIMITIVE_TYPES.get(schema.type)
    if kind is None:
        raise InvalidSchemaError(f"messages of schema type {schema.type.name} have no columns: use valueSchema=raw")
    return kind
